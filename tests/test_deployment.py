"""A federation described in a file: what it says, to which audit, and up which ladder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run
from report_builder import make_report
from subjects import subject_of
from torch import nn

from gradaudit import audit
from gradaudit.audits import audits
from gradaudit.audits.sharing_options import ClientOptions
from gradaudit.config import RunSettings, deployed, section, settle
from gradaudit.data.records import Records
from gradaudit.deployment import Deployment, read_deployment
from gradaudit.errors import UsageError
from gradaudit.judging import Policy, gate
from gradaudit.judging.policy import Rule
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.report import Measurement
from gradaudit.run.runner import Outcome, left_out, passed_over
from gradaudit.sweeping.grid import ladder

MODEL = ("-m", "zoo:mlp?inputs=10&classes=2&hidden=4", "-d", "diabetes", "-q")
FEDERATION = """\
clients: 40
participation: 2
records: 4
batch-size: 2
epochs: 2
optimizer: adam
rate: 0.01
defense: prune:0.5
aggregation: secure
"""
ATTACKS = {
    name: audit for name, audit in audits().items() if issubclass(audit.Options, ClientOptions)
}


def federation(**said: Any) -> Deployment:
    return Deployment.model_validate(said)


@pytest.mark.parametrize(
    ("said", "together"),
    [
        ({}, 1),
        ({"clients": 40, "participation": 4}, 1),
        ({"clients": 40, "participation": 4, "aggregation": "secure"}, 4),
        ({"clients": 40, "aggregation": "secure"}, 40),
        ({"participation": 4, "aggregation": "secure", "sum_of": 2}, 2),
        ({"participation": 4, "adversary": "client"}, 3),
        ({"participation": 4, "aggregation": "secure", "sum_of": 2, "adversary": "client"}, 3),
        ({"participation": 1, "adversary": "client"}, 1),
    ],
    ids=str,
)
def test_who_sees_what(said: dict[str, Any], together: int) -> None:
    """The server single updates or secure sums; a client a round's mean without its own."""
    assert federation(**said).of_updates()["others"] == together - 1


@pytest.mark.parametrize(
    ("said", "behind", "minibatch"),
    [
        ({"batch_size": 8}, 8, None),
        ({"algorithm": "fedsgd", "batch_size": 8}, 8, None),
        ({"records": 24, "batch_size": 8}, 24, 8),
        ({"records": 24, "epochs": 2}, 24, None),
        ({"local_steps": 3, "batch_size": 8}, 24, 8),
        ({"local_steps": 3, "batch_size": 8, "records": 10}, 10, 8),
        ({"local_steps": 3, "batch_size": 8, "accumulate": 2}, 48, 8),
    ],
    ids=str,
)
def test_what_is_behind_an_update(said: dict[str, Any], behind: int, minibatch: int | None) -> None:
    found = federation(**said).of_updates()
    assert (found["batch_size"], found.get("local_batch")) == (behind, minibatch)
    assert found["algorithm"] == (
        "fedavg" if said.keys() - {"batch_size", "algorithm"} else "fedsgd"
    )


KEYS = {
    "records": ({"records": 6}, {"batch_size": 6, "algorithm": "fedavg"}),
    "batch-size": ({"batch_size": 5}, {"batch_size": 5}),
    "batch-size of steps": ({"records": 6, "batch_size": 2}, {"local_batch": 2}),
    "epochs": ({"records": 6, "epochs": 3}, {"epochs": 3, "algorithm": "fedavg"}),
    "local-steps": ({"records": 6, "local_steps": 2}, {"local_steps": 2}),
    "optimizer": ({"records": 6, "optimizer": "adam"}, {"optimizer": "adam"}),
    "momentum": ({"records": 6, "momentum": 0.9}, {"momentum": 0.9}),
    "rate": ({"rate": 0.02}, {"rate": 0.02}),
    "weight-decay": ({"records": 6, "weight_decay": 0.2}, {"weight_decay": 0.2}),
    "warmup": ({"records": 6, "warmup": 3}, {"warmup": 3, "algorithm": "fedavg"}),
    "accumulate": ({"records": 6, "batch_size": 2, "accumulate": 3}, {"accumulate": 3}),
    "participation": ({"participation": 7, "aggregation": "secure"}, {"others": 6}),
    "adversary": ({"clients": 7, "adversary": "client"}, {"others": 5}),
}
ANOTHER = {
    "batch_size": 9, "local_batch": 4, "epochs": 7, "local_steps": 9, "optimizer": "sgd",
    "momentum": 0.1, "rate": 0.5, "others": 1, "weight_decay": 0.3, "warmup": 2, "accumulate": 2,
}  # fmt: skip
OF_SUBJECT = {
    "mode": ({"mode": "train"}, {"mode": "train"}),
    "defense": ({"defense": ["sign"]}, {"defense": ("sign",)}),
    "hide": ({"hide": "fc*"}, {"hide": ("fc*",)}),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_honours_every_key_and_flags_and_the_config_win(name: str, key: str) -> None:
    options = ATTACKS[name].Options
    said, expected = KEYS[key]
    (first, value), *_ = expected.items()
    file = deployed({}, federation(**said))
    found = settle(options, {}, section(file, name))
    assert {option: getattr(found, option) for option in expected} == expected
    other = {first: ANOTHER[first]}
    of_config = {name.replace("-", "_").replace(" ", "_"): other}
    for flags, given in ((other, {}), ({}, of_config)):
        merged = section(deployed(given, federation(**said)), name)
        assert getattr(settle(options, flags, merged), first) == other[first] != value


@pytest.mark.parametrize("key", OF_SUBJECT)
def test_the_subject_of_every_audit_is_as_the_federation_has_it(key: str) -> None:
    said, expected = OF_SUBJECT[key]
    file = deployed({}, federation(**said))
    settings = settle(RunSettings, {}, file)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert settle(RunSettings, {"mode": "eval"}, file).mode == "eval"


def test_all_attacks_are_told_and_no_other_audit() -> None:
    names = {name for name in audits() if name.startswith("attack ")}
    of_the_model = {"attack malicious-server"}
    assert {*ATTACKS} == {*names, "vinfo", "floor"} - of_the_model
    told = {name for name, audit in audits().items() if audit.Options().seen()}
    assert told == {*names, "vinfo"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("batch-size: 8", "deployed"),
        ("mode: eval", "diagnostic"),
        ("batch-size: 8\nparticipation: 2\naggregation: secure", "diagnostic"),
        ("batch-size: 8\nepochs: 2", "diagnostic"),
        ("batch-size: 8\ndefense: sign", "diagnostic"),
        ("batch-size: 1", "diagnostic"),
    ],
)
def test_the_check_of_a_server_is_of_plain_batch_gradients(
    tmp_path: Path, text: str, setting: str
) -> None:
    """``sums`` and defenses are not in its numbers, so with them they are the best case."""
    records = "\nrecords: 8" if "epochs" in text else ""
    (path := tmp_path / "federation.yaml").write_text(text + records)
    how = ("-f", "json", "--samples", 40, "--deployment", path)
    extra = ("--mode", "train") if "eval" in text else ()
    done = run("attack", "malicious-server", *MODEL, *how, *extra)
    rows = json.loads(done.out)["measurements"]
    assert {row["details"]["setting"] for row in rows} == {setting}
    batches = {row["details"]["batch"] for row in rows if row["metric"] == "record_share"}
    assert batches == {8 if "batch-size: 8" in text else 16}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "bach-size: 3",
            "line 1: bach-size: unknown key .did you mean 'batch-size'",
        ),
        ("clients: 3\nparticipation: 9", "participation: 9 is more than all 3 clients"),
        ("epochs: 2", "records: set how many records a client trains on"),
        ("aggregation: secure", "set how many clients' updates are summed"),
        ("adversary: client", "set how many clients' updates are summed"),
        ("clients: 3\nsum-of: 2", "sum-of: only secure sums have it"),
        ("participation: 3\naggregation: secure\nsum-of: 4", "sum-of: 4 is more than all 3"),
        ("algorithm: fedsgd\nmomentum: 0.9", "momentum: only local training has it"),
        ("batch-size: 0", "batch-size: .*greater than or equal to 1"),
        ("- 3", "valid dictionary"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (path := tmp_path / "federation.yaml").write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        read_deployment(path)
    assert str(error.value).startswith(f"{path}, line ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "# to be written\n", "{}", "clients:\n"])
def test_an_empty_file_is_asked_for_keys(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "federation.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"sets no key of a federation; keys are: clients, part"):
        read_deployment(path)


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ({"batch_size": 8, "mode": "eval"}, "deployed"),
        ({"batch_size": 8}, "diagnostic"),
        ({"mode": "eval"}, "diagnostic"),
        (None, "diagnostic"),
    ],
    ids=["all said", "another mode", "no records said", "no file"],
)
@pytest.mark.parametrize("outcome", [left_out, passed_over])
def test_rows_of_what_was_not_run_tell_the_setting_too(
    outcome: Callable[..., Outcome], said: dict[str, Any] | None, setting: str
) -> None:
    described = None if said is None else federation(**said)
    target = Target(nn.Sequential(nn.Linear(3, 2)), CrossEntropy())
    records = Records(torch.randn(8, 3), torch.arange(8) % 2)
    subject = subject_of(target, records, deployment=described)
    audit = ATTACKS["attack labels"]
    asked = audit.Options(**(audit.Options.deployed(described) if described else {}))
    rows = outcome(audit(asked), subject, "no time").part.rows
    assert rows
    assert {row.details["setting"] for row in rows} == {setting}


SEARCH = (
    *("--method", "inverting-gradients", "--iterations", 2),
    *("--restarts", 1, "--batches", 2, "--known-labels"),
)


def measured(*arguments: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    done = run("attack", "reconstruct", *MODEL, *SEARCH, *arguments, "-f", "json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    return report["measurements"], report["provenance"]


@pytest.mark.slow
def test_the_numbers_are_those_of_the_same_settings_as_flags(tmp_path: Path) -> None:
    """And only rows of the whole federation are called deployed."""
    (path := tmp_path / "federation.yaml").write_text(FEDERATION)
    flags = (
        *("--batch-size", 4, "--local-batch", 2, "--epochs", 2, "--optimizer", "adam"),
        *("--rate", 0.01, "--others", 1, "--defense", "prune:0.5", "--mode", "train"),
    )
    said, provenance = measured("--deployment", path)
    by_hand, _ = measured(*flags)
    both, _ = measured(*flags, "--deployment", path)
    changed, _ = measured("--deployment", path, "--epochs", 1)
    assert provenance["deployment"]["participation"] == 2

    def numbers(rows: list[dict[str, Any]]) -> list[Any]:
        return [(row["value"], row["details"].get("knowledge")) for row in rows]

    assert numbers(said) == numbers(by_hand) == numbers(both) != numbers(changed)
    settings = [
        {row["details"]["setting"] for row in rows} for rows in (said, both, by_hand, changed)
    ]
    assert settings == [{"deployed"}, {"deployed"}, {"diagnostic"}, {"diagnostic"}]


def test_python_hears_of_it_too(tmp_path: Path) -> None:
    """Given as a file or as it is; what is said in Python wins."""
    (path := tmp_path / "federation.yaml").write_text("participation: 2\naggregation: secure")
    asked = "zoo:mlp?inputs=10&classes=2&hidden=4", "diabetes"
    how = {"method": ["inverting-gradients"], "batches": 2, "batch_size": 2}
    attack = {"attack labels": how}
    for deployment in (path, read_deployment(path)):
        report = audit(*asked, audits=attack, deployment=deployment)
        (row, *_) = report.measurements
        options = report.provenance["audits"]["attack labels"]
        assert (options["others"], report.target.mode) == (1, "train")
        assert row.details["setting"] == "diagnostic"
    plain = audit(*asked, audits=attack, deployment=path, mode="eval")
    assert plain.target.mode == "eval"


@pytest.mark.slow
def test_the_ladder_changes_one_thing_a_rung_and_ends_in_the_federation(tmp_path: Path) -> None:
    (path := tmp_path / "federation.yaml").write_text(FEDERATION)
    asked = "--ladder", "--deployment", path, "-o", tmp_path / "ladder.json"
    done = run("sweep", "attack", "reconstruct", *MODEL, *SEARCH, *asked)
    assert done.status == 0, done.err
    assert "best case (diagnostic) and as your federation shares (deployed)" in " ".join(
        done.out.split()
    )
    rows = json.loads((tmp_path / "ladder.json").read_text())["measurements"]
    settings = {
        r["variant"]["rung"]: r["details"]["setting"] for r in rows if "rung" in r["variant"]
    }
    assert list(settings) == [
        "diagnostic",
        "+ batch-size 4",
        "+ algorithm fedavg, epochs 2, local-batch 2, rate 0.01",
        "+ optimizer adam",
        "+ mode train",
        "+ defense prune:0.5",
        "+ others 1",
    ]
    assert list(settings.values()) == ["diagnostic"] * 6 + ["deployed"]
    top = [row for row in rows if row["variant"] == {"rung": "+ others 1"}]
    said, _ = measured("--deployment", path)
    assert [row["value"] for row in top] == [row["value"] for row in said]


def test_a_rung_on_which_nothing_changes_is_left_out() -> None:
    of = lambda names: "momentum" in names  # noqa: E731
    assert [rung.title for rung in ladder({"momentum": 0.9, "batch_size": 3}, of)] == [
        "diagnostic",
        "+ momentum 0.9",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ladder",), "--ladder: describe your federation with --deployment FILE"),
        (
            ("--ladder", "--over", "epochs=1,2", "--deployment", "F"),
            "give either --ladder or --over",
        ),
    ],
)
def test_a_ladder_needs_a_federation_and_nothing_else(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    (path := tmp_path / "federation.yaml").write_text(FEDERATION)
    named = [path if each == "F" else each for each in arguments]
    done = run("sweep", "attack", "membership", *MODEL, *named)
    assert done.status == 2
    assert words in done.err


@pytest.mark.parametrize(
    ("settings", "outcomes"),
    [
        (("deployed",), {"passed"}),
        (("diagnostic",), {"unmeasured"}),
        (("diagnostic", "deployed"), {"passed"}),
    ],
    ids=str,
)
def test_a_rule_judges_the_setting_that_it_names(
    settings: tuple[str, ...], outcomes: set[str]
) -> None:
    """What is diagnostic is beyond the limit here, what is deployed within it."""
    errors = {"diagnostic": 0.0, "deployed": 0.5}
    rows = [
        Measurement(
            audit="attack",
            metric="mse",
            variant={"rung": setting},
            value=errors[setting],
            details={"setting": setting},
        )
        for setting in settings
    ]
    rule = Rule(metric="attack.mse", variant={"rung": "*"}, min=0.3, setting="deployed")
    judged = gate(make_report(*rows), Policy(rules=(rule,)))
    assert {finding.outcome for finding in judged.findings} == outcomes
