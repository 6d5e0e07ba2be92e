"""Makes an in-toto statement of a judged report: the result, the tests, and files by digest.

Statement v1 (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) with the
predicate test-result v0.1 (…/spec/predicates/test-result.md). Subjects are the checkpoints.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from gradaudit.core.files import digest_of, digest_of_shards, read_file
from gradaudit.core.text import printable, variant_text
from gradaudit.errors import UsageError
from gradaudit.evidence.commitment import read_commitment
from gradaudit.judging import Policy, Word, gate, is_known, read_policy, verdict
from gradaudit.report import Finding, Report

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
Kind = Literal["report", "policy", "baseline", "config", "commitment", "timestamp", "annex"]
WEIGHTS = tuple(f"*.{kind}{end}" for kind in ("safetensors", "bin") for end in (".index.json", ""))
"""Files of a folder that is a checkpoint, the first that is there counts."""
MAX_INDEX = 16 << 20
KIND = "application/vnd.gradaudit."
"""Media types of the files that a statement names, each followed by the file's kind."""
_RESULTS: dict[Word, str] = {"passed": "PASSED", "failed": "FAILED"}
_TESTS = {
    "passed": "passedTests",
    "error": "failedTests",
    "warning": "warnedTests",
    "unclear": "warnedTests",
    "known": "warnedTests",
    "ignored": "warnedTests",
}
"""List of the statement in which a finding stands, by its outcome; none if not applicable."""

Json = dict[str, JsonValue]


def statement_of(files: Mapping[Kind, Path]) -> Json:
    """Returns the statement of a judged report and of the files that belong to it.

    Args:
        files: the report, and as many of the others as there are, all with different names.

    Raises:
        UsageError: a file cannot be read, the report is not judged or names no checkpoint, another
            policy judged it, its findings are not what the policy gives, or the commitment is
            about other files or comes without the policy.
    """
    judged = Report.from_file(files["report"])
    if not judged.findings:
        message = "is not judged; write a judged copy with `gradaudit gate REPORT -o judged.json`"
        raise UsageError(f"{files['report']}: {message}")
    if not judged.target.checkpoints:
        raise UsageError(f"{files['report']}: names no checkpoint, and a statement is about one")
    names = [path.name for path in files.values()]
    names += [Path(checkpoint.file).name for checkpoint in judged.target.checkpoints]
    for name in names:
        if name != printable(name, limit=None):
            raise UsageError(f"{name}: the name is not plain UTF-8 text; rename the file")
    if len(set(names)) < len(names):
        message = "rename one of them, and audit renamed checkpoints again"
        raise UsageError(f"two files of a statement have one name; {message}")
    _expect_agreement(judged, files)
    subjects: list[JsonValue] = [
        _resource(Path(checkpoint.file).name, sha256=checkpoint.sha256)
        for checkpoint in judged.target.checkpoints
    ]
    named: list[JsonValue] = [
        {**_resource(path.name, sha256=digest_of(path)), "mediaType": f"{KIND}{kind}"}
        for kind, path in files.items()
    ]
    tests: dict[str, list[JsonValue]] = {name: [] for name in _TESTS.values()}
    for finding in judged.findings:
        if list_ := _TESTS.get(finding.says):
            tests[list_].append(_test(finding))
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": _RESULTS.get(verdict(judged), "WARNED"),
            "configuration": [*named, *_facts(judged)],
            **tests,
        },
    }


def checkpoint_digest(path: Path) -> str:
    """Returns the SHA-256 of a checkpoint as reports have it.

    Of shards it is that of ``digest_of_shards``; a folder stands for the index or the one file of
    weights in it.

    Raises:
        UsageError: a file is missing or the index cannot be read.
    """
    if path.is_dir():
        found = (file for each in WEIGHTS for file in sorted(path.glob(each)))
        path = next(found, path)
    if not path.name.endswith(".index.json"):
        return digest_of(path)
    try:
        places = json.loads(read_file(path, MAX_INDEX))["weight_map"].values()
        shards = [Path(name).name for name in places]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no index of shards; copy the checkpoint anew") from error
    return digest_of_shards(path, shards)


def _expect_agreement(judged: Report, files: Mapping[Kind, Path]) -> None:
    """Raise an error where the policy did not judge the report, or other files are committed."""
    by = judged.provenance.get("policy")
    if "policy" in files:
        read = read_policy(files["policy"])
        sha256 = by.get("sha256") if isinstance(by, dict) else None
        policy = next((each for each in (read, read.strict()) if each.sha256 == sha256), None)
        if policy is None:
            raise UsageError(f"{files['policy']}: another policy judged {files['report']}")
        baseline = Report.from_file(files["baseline"]) if "baseline" in files else None
        if not _follows(judged, policy, baseline):
            message = f"its findings are not those of {files['policy']}; judge it anew with that"
            raise UsageError(f"{files['report']}: {message}")
    if "commitment" in files:
        committed = read_commitment(files["commitment"]).files
        if "policy" not in files:
            message = "is about a policy, which is not named; name it too, with --policy"
            raise UsageError(f"{files['commitment']}: {message}")
        for kind in ("policy", "config"):
            path = files.get(kind)
            if path is not None and committed.get(path.name) != digest_of(path):
                message = f"does not name {path.name} as it is; name the file as it was committed"
                raise UsageError(f"{files['commitment']}: {message}")


def _follows(judged: Report, policy: Policy, baseline: Report | None) -> bool:
    """Whether the policy gives these findings; without the baseline, apart from those it excuses.

    An exception that has expired by now may have been in force when the report was judged.
    """
    unending = tuple(each.model_copy(update={"until": None}) for each in policy.ignore)
    lasting = policy.model_copy(update={"ignore": unending})
    now, earlier = (gate(judged, each, baseline=baseline).findings for each in (policy, lasting))
    return len(now) == len(judged.findings) and all(
        _claim(finding) in map(_claim, given)
        or (
            baseline is None
            and is_known(finding)
            and (finding.key, finding.rule) == (given[0].key, given[0].rule)
        )
        for finding, *given in zip(judged.findings, now, earlier, strict=True)
    )


def _claim(finding: Finding) -> Finding:
    """Returns a finding without words, which may differ between versions of gradaudit."""
    return finding.model_copy(update={"message": "", "times": None, "ends": None})


def _facts(judged: Report) -> Iterator[Json]:
    """Yields digests of what is no file: the policy's rules and the data."""
    by = judged.provenance.get("policy")
    if isinstance(by, dict):
        yield _resource(f"rules of {by.get('name')}", gradauditRules=str(by.get("sha256")))
    if isinstance(fingerprint := judged.data.get("fingerprint"), str):
        yield _resource("data", gradauditFingerprint=fingerprint)


def _resource(name: str, **digest: JsonValue) -> Json:
    return {"name": name, "digest": digest}


def _test(finding: Finding) -> str:
    """Names a test by rule, metric, layer and variant: ``rule 3: leak.bits conv1 (round=2)``."""
    variant = f"({variant_text(finding.variant)})" if finding.variant else ""
    words = (f"rule {finding.rule}:", finding.metric, finding.layer, variant)
    return " ".join(filter(None, words))
