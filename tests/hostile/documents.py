"""Configurations, policies and reports that are none, and names of files that are read."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from report_builder import make_report, row

from hostile.case import CANARY, DATA, MODEL, OUTPUT, Case

Content = bytes | Callable[[Path], object]

POLICY = f"gate report.json --policy hostile.yaml {OUTPUT}"
CONFIG = f"scan --config hostile.yaml {OUTPUT}"
REPORT = f"gate hostile.json {OUTPUT}"
BASELINE = f"gate report.json --baseline hostile.json {OUTPUT}"
SHOWN = "render hostile.json -o out.html"
COMPARED = "compare report.json hostile.json"

_APPLY = f"!!python/object/apply:os.system ['touch {CANARY}']"
_BOMB = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
)

YAML: dict[str, tuple[Content, str]] = {
    "code": (f"rules: {_APPLY}".encode(), "not valid YAML: could not determine a const"),
    "an object": (b"rules: !!python/object:os.system {}", "not valid YAML"),
    "a module": (b"rules: !!python/module:antigravity", "not valid YAML"),
    "a truth value of 7": (b"rules: !!bool 7", "a value cannot be made (KeyError: '7')"),
    "a number of text": (b"rules: !!float x", "not valid YAML"),
    "an impossible date": (b"rules: 2026-99-99", "not valid YAML"),
    "aliases without bound": (_BOMB.encode(), "line 2: not valid YAML: aliases"),
    "an alias of itself": (b"rules: &a [*a]", "aliases"),
    "a merge of itself": (b"a: &a\n  <<: *a", "aliases"),
    "a key twice": (b"rules: []\nrules: []", "the key 'rules' occurs twice"),
    "tabs": (b"rules:\n\t- x", "not valid YAML"),
    "no end": (b"rules: [", "not valid YAML"),
    "two documents": (b"a: 1\n---\nb: 2", "another document"),
    "a deep list": (b"[" * 20_000, "nested too deeply"),
    "a deep mapping": (b"".join(b" " * i + b"a:\n" for i in range(1000)), "nested too deeply"),
    "a list as key": (b"? [a]\n: 1", "unhashable key"),
    "a list": (b"- rules", "the document: "),
    "an unknown key": (b"rules: []\nrulez: []", "rulez: unknown key"),
    "another type": (b"rules: 7", "rules: "),
    "escapes in a key": (b'rules: []\n"\\e[31mred\\n": 1', "unknown key"),
    "a whole number of 5000 digits": (b"rules: " + b"9" * 5000, "not valid YAML"),
    "a number of base 60": (b"rules: " + b"59:" * 4000 + b"59", "rules: "),
    "bytes": (b"\xff\xfe\0", "not UTF-8 text"),
    "a zero byte": (b"rules: \0", "unacceptable character"),
    "over a megabyte": (lambda path: path.write_bytes(b"#" * (2 << 20)), "larger than 1,048,576"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "a pipe": (os.mkfifo, "no regular file"),
    "an endless device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
}

_RULE = b"- {metric: 'a.*', max: 1}\n"


def many(entry: bytes, count: int, head: bytes = b"rules:\n") -> bytes:
    """A policy of the same entry many times."""
    return head + entry * count


POLICIES: dict[str, tuple[Content, str]] = {
    "no limit": (b"rules: [{metric: a.b}]", "rules.0: "),
    "two limits": (b"rules: [{metric: a.b, max: 1, min: 2}]", "rules.0: "),
    "a limit of NaN": (b"rules: [{metric: a.b, max: .nan}]", "rules.0.max: "),
    "a limit of text": (b"rules: [{metric: a.b, max: '1; touch ran'}]", "rules.0.max: "),
    "a level that is none": (b"rules: [{metric: a.b, max: 1, level: fatal}]", "rules.0.level: "),
    "a metric of markup": (b"rules: [{metric: <script>, max: 1}]", "rules.0.metric: "),
    "7,000 rules": (many(_RULE, 7000), "more than 30,000 keys, values and lists"),
    "3,000 rules": (many(_RULE, 3000), "3,000 globs of layers in rules and exceptions"),
    "globs of a rule": (
        b"rules:\n- metric: a.b\n  max: 1\n  layers:\n" + b"  - x\n" * 3000,
        "3,000 globs of layers",
    ),
    "brackets": (many(b"- {metric: 'a." + b"[" * 8000 + b"', max: 1}\n", 1), "rules.0.metric: "),
    "stars": (many(b"- {metric: 'a." + b"*?" * 200_000 + b"', max: 1}\n", 1), "rules.0.metric: "),
    "brackets of a layer": (
        many(b"- {metric: a.b, max: 1, layers: '" + b"[" * 8000 + b"'}\n", 1),
        "rules.0.layers.0: ",
    ),
    "brackets of a variant": (
        many(b"- {metric: a.b, max: 1, variant: {m: '" + b"[" * 8000 + b"'}}\n", 1),
        "variant has more than 500 characters",
    ),
    "exceptions": (
        many(b"- {metric: 'a.*', reason: x}\n", 3000, b"rules: [{metric: a.b, max: 1}]\nignore:\n"),
        "3,001 globs of layers",
    ),
    "no reason to ignore": (b"rules: []\nignore: [{metric: a.b}]", "ignore.0.reason: "),
}

CONFIGS: dict[str, tuple[Content, str]] = {
    "an unknown audit's section": (b"vinfoo: {repeats: 3}", "vinfoo: unknown key"),
    "a seed of text": (b"seed: many", "seed: "),
    "a seed beyond 64 bits": (b"seed: 99999999999999999999", "seed: "),
    "jobs below one": (b"jobs: 0", "jobs: "),
    "a million jobs": (b"jobs: 1000000", "jobs: "),
    "repeats of NaN": (b"vinfo: {repeats: .nan}", "vinfo.repeats: "),
    "a mapping for a model": (b"model: {a: b}", "model: "),
}


FOUND = f"forward -m '{MODEL}' -d {DATA} {OUTPUT}"
FOUND_CODE: dict[str, tuple[str, str, str]] = {
    "an executor": ("executor: evil.py:f", FOUND, "executor: 'evil.py:f' is code"),
    "an executor of a plan": (
        "executor: evil.py:f",
        f"scan -m '{MODEL}' -d {DATA} --dry-run",
        "executor: 'evil.py:f' is code",
    ),
    "a cluster": ("executor: dask:evil.example:8786", FOUND, "executor: 'dask:evil.example"),
    "a model": (f"model: evil.py:f\ndata: {DATA}", f"forward {OUTPUT}", "model: 'evil.py:f'"),
    "a module": ("model: evil:f", f"forward -d {DATA} {OUTPUT}", "model: 'evil:f'"),
    "an exported model": ("model: evil.pt2", f"forward -d {DATA} {OUTPUT}", "model: 'evil.pt2'"),
    "data": ("data: evil.py:f", f"forward -m '{MODEL}' {OUTPUT}", "data: 'evil.py:f'"),
    "a loss": ("loss: evil.py:f", FOUND, "loss: 'evil.py:f'"),
    "a mechanism": (
        "dp-audit: {mechanism: 'flower:evil:f'}",
        f"dp-audit -m '{MODEL}' -d {DATA} -a a {OUTPUT}",
        "dp_audit.mechanism: 'flower:evil:f'",
    ),
    "a job": ("job: {folder: .}", f"scan {OUTPUT}", "job.folder: '.'"),
}
"""Code that a configuration names which lies in the working directory, and was not asked for."""


def found(text: str) -> Callable[[Path], object]:
    """A configuration, and the code that it names."""

    def write(path: Path) -> None:
        path.write_text(text)
        path.with_name("evil.py").write_text(f"open({CANARY!r}, 'w')\ndef f(): pass\n")

    return write


def sound() -> dict[str, object]:
    """A report as JSON."""
    report = make_report(row("sensitivity.input_f", "fc1", 0.5), row("copa-metric.c", None, 3))
    return dict(json.loads(report.to_json()))


def with_value(text: str) -> bytes:
    """A report in which a number is written otherwise."""
    return json.dumps(sound()).replace('"value": 0.5', f'"value": {text}').encode()


def other(**fields: object) -> bytes:
    """A report of which fields are others."""
    return json.dumps({**sound(), **fields}).encode()


def long(path: Path) -> None:
    """A report of 40,001 rows, each of a layer of its own."""
    (first, *_) = sound()["measurements"]  # type: ignore[misc]
    rows = [{**first, "layer": f"l{number}"} for number in range(40_001)]
    path.write_bytes(other(measurements=rows))


REPORTS: dict[str, tuple[Content, str]] = {
    "nothing": (b"", "not a gradaudit report"),
    "half of one": (json.dumps(sound()).encode()[:300], "not a gradaudit report"),
    "a list": (b"[]", "not a gradaudit report"),
    "another document": (b'{"name": "x", "version": 3}', "not a gradaudit report"),
    "deep lists": (b'{"data": ' + b"[" * 100_000, "not a gradaudit report"),
    "deep mappings": (
        b'{"data": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        "not a gradaudit report",
    ),
    "NaN": (with_value("NaN"), "not a gradaudit report"),
    "Infinity": (with_value("-Infinity"), "not a gradaudit report"),
    "a number beyond all bounds": (with_value("1e999"), "not a gradaudit report"),
    "a number of a million digits": (with_value("9" * 10**6), "not a gradaudit report"),
    "text for a number": (with_value('"0.5; touch ran"'), "not a gradaudit report"),
    "a truth value for a number": (with_value("true"), "not a gradaudit report"),
    "a number for text": (other(schema_version="1"), "schema_version"),
    "a key twice": (with_value('0.5, "value": 0.25'), "key 'value' twice"),
    "a key of details twice": (
        json.dumps(sound()).replace('"details": {', '"details": {"a": 1, "a": 2', 1).encode(),
        "key 'a' twice",
    ),
    "no number": (with_value("null"), "not a gradaudit report"),
    "another version": (other(schema_version=2), "schema_version"),
    "an unknown field": (other(extra=1), "extra"),
    "markup as a field": (other(**{"<script>\x1b[31m\n": 1}), "not a gradaudit report"),
    "a row twice": (
        other(measurements=list(sound()["measurements"]) * 2),
        "two measurements share the key",
    ),  # type: ignore[call-overload]
    "rows that are none": (other(measurements={}), "measurements"),
    "bytes": (b"\xff\xfe\0", "not UTF-8 text"),
    "a pickle": (b"\x80\x04cposix\nsystem\n.", "not UTF-8 text"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "a pipe": (os.mkfifo, "no regular file"),
    "an endless device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "512 MiB": (lambda path: os.truncate(path_made(path), 1 << 29), "larger than"),
    "60 MiB of zero bytes": (
        lambda path: os.truncate(path_made(path), 60 << 20),
        "not a gradaudit report",
    ),
    "60 MiB of numbers": (
        lambda path: path.write_bytes(b'{"data": {"x": [' + b"0," * (30 << 20) + b"0]}}"),
        "over 2,000,000 commas",
    ),
    "numbers up to the limit": (
        lambda path: path.write_bytes(other(data={"x": [0] * 1_999_000}, extra=1)),
        "extra",
    ),
}


def path_made(path: Path) -> Path:
    """The path of a new empty file."""
    path.touch()
    return path


def _cases(command: str, file: str, table: dict[str, tuple[Content, str]], kind: str) -> list[Case]:
    return [
        Case(f"{kind}, {name}", file, content, command, words, status=2)
        for name, (content, words) in table.items()
    ]


SUBJECT = f"forward -m '{MODEL}' -d {DATA}"
MECHANISM = f"dp-audit -m '{MODEL}' -d {DATA} -a a --mechanism"
NAMED = {
    "a model": "forward -m hostile.py:net -d digits",
    "an exported model": "forward -m hostile.pt2 -d digits",
    "a checkpoint": f"{SUBJECT} -c hostile.pt",
    "a table": f"forward -m '{MODEL}' -d csv:hostile.csv?label=y",
    "a folder of pictures": f"forward -m '{MODEL}' -d images:hostile",
    "a data factory": f"forward -m '{MODEL}' -d hostile.py:data",
    "a loss": f"{SUBJECT} --loss hostile.py:loss",
    "a mechanism": f"{MECHANISM} hostile.py:noise",
    "an update": f"attack reconstruct -m '{MODEL}' -d {DATA} --update hostile.pt",
    "two updates": f"attack reconstruct -m '{MODEL}' -d {DATA} --update hostile.pt,hostile.pt",
    "a configuration": "scan --config hostile.yaml",
    "a policy": f"scan -m '{MODEL}' -d {DATA} --policy hostile.yaml",
    "a policy of the gate": "gate report.json --policy hostile.yaml",
    "a baseline": "gate report.json --baseline hostile.json",
    "a report": "render hostile.json",
}

READ_AND_WRITTEN = {
    "a checkpoint": f"{SUBJECT} -c hostile.json",
    "a table": f"forward -m '{MODEL}' -d csv:hostile.json?label=y",
    "a table of pictures": f"forward -m '{MODEL}' -d 'images:.?table=hostile.json&label=y'",
    "a model": "forward -m hostile.json:net -d digits",
    "a loss": f"{SUBJECT} --loss ./hostile.json:loss",
    "a mechanism": f"{MECHANISM} hostile.json:noise",
    "an update": f"attack reconstruct -m '{MODEL}' -d {DATA} --update hostile.json",
    "two updates": f"attack reconstruct -m '{MODEL}' -d {DATA} --update x,hostile.json",
    "a configuration": "scan --config hostile.json",
    "a configuration of an audit": f"{SUBJECT} --config hostile.json",
    "a policy": f"scan -m '{MODEL}' -d {DATA} --policy hostile.json",
    "an axis of a sweep": f"sweep forward -d {DATA} --over model=hostile.json:net,zoo:mlp",
    "a report": "gate hostile.json",
    "a policy of the gate": "gate report.json --policy hostile.json",
    "a baseline": "gate report.json --baseline hostile.json",
    "a report that is shown": "render hostile.json",
}

DOCUMENTS = [
    *_cases(POLICY, "hostile.yaml", {**YAML, **POLICIES}, "policy"),
    *_cases(CONFIG, "hostile.yaml", {n: YAML[n] for n in ("code", "a truth value of 7")}, "config"),
    *_cases(CONFIG, "hostile.yaml", CONFIGS, "config"),
    *(
        Case(f"found, {name}", "gradaudit.yaml", found(text), command, words, 2)
        for name, (text, command, words) in FOUND_CODE.items()
    ),
    *_cases(REPORT, "hostile.json", REPORTS, "report"),
    *_cases(BASELINE, "hostile.json", {n: REPORTS[n] for n in ("NaN", "deep lists")}, "baseline"),
    *_cases(SHOWN, "hostile.json", {n: REPORTS[n] for n in ("NaN", "deep lists")}, "shown"),
    Case(
        "shown, 40,001 layers",
        "out.html",
        lambda path: long(path.with_name("hostile.json")),
        SHOWN,
        "40,001 layers is too long",
        2,
        3,
    ),
    *_cases(COMPARED, "hostile.json", {n: REPORTS[n] for n in ("NaN", "deep lists")}, "compared"),
    *(
        Case(
            f"{name} that is not there",
            "hostile",
            lambda _: None,
            f"{words} {OUTPUT}",
            "o such ",
            2,
        )
        for name, words in NAMED.items()
    ),
    *(
        Case(
            f"{name} that is written too",
            "hostile.json",
            b"{rules: [{metric: a.b, max: 1}]}" if "policy" in name else b"{}",
            f"{words} -o hostile.json",
            "is read by this command; name another file to write",
            2,
        )
        for name, words in READ_AND_WRITTEN.items()
    ),
]
