"""What a statement says, what it refuses, and commitments with their timestamps."""

import json
import shutil
from datetime import date
from pathlib import Path

import pytest
import torch
from command_line import run
from evidence.packs import POLICY, make_pack, openssl, report_of
from report_builder import make_report, row, skipped_row
from safetensors.torch import save_file

from gradaudit.errors import UsageError
from gradaudit.evidence import annex, statement_of
from gradaudit.evidence.statement import checkpoint_digest
from gradaudit.judging import gate, read_policy
from gradaudit.models.checkpoint.state_dict import load_checkpoint
from gradaudit.report import Report

pytestmark = pytest.mark.usefixtures("two_audits")


@pytest.mark.parametrize(
    ("value", "result", "tests"),
    [
        (3.0, "FAILED", "failedTests"),
        (1.0, "PASSED", "passedTests"),
        (2.05, "WARNED", "warnedTests"),
    ],
)
def test_the_result_is_the_verdict(tmp_path: Path, value: float, result: str, tests: str) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY % 2)
    judged = gate(report_of(b"", value), read_policy(tmp_path / "policy.yaml"))
    judged.save(tmp_path / "judged.json")
    statement = statement_of({"report": tmp_path / "judged.json"})
    predicate = statement["predicate"]
    assert isinstance(predicate, dict)
    assert predicate["result"] == result
    assert predicate[tests] == ["rule 1: leak.bits fc1"]


def test_an_unsigned_pack_says_so(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    done = run("verify", pack, width=1000)
    assert (done.status, done.out.split(":")[:2]) == (
        0,
        ["note     statement.json", " is not signed"],
    )
    assert run("verify", pack, "--key", tmp_path / "any.pub").status == 1
    (pack / "statement.json").write_text(
        (pack / "statement.json").read_text().replace("PASSED", "FAILED")
    )
    done = run("verify", pack, width=1000)
    assert (done.status, "is not what the report says" in done.out) == (1, True)
    (pack / "deep.json").write_text("[" * 100_000)
    assert run("verify", pack, width=1000).out.count("deep.json: is not named") == 1
    shutil.copy(pack / "statement.json", pack / "again.json")
    assert "holds 2 statements" in run("verify", pack).err


def test_what_cannot_be_attested_is_refused(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    (tmp_path / "policy.yaml").write_text(POLICY % 7)
    (tmp_path / "audit.yaml").write_text("data: diabetes\n")
    make_report().save(tmp_path / "report.json")
    files = {
        "report": pack / "judged.json",
        "policy": pack / "policy.yaml",
        "commitment": pack / "commitment.json",
    }
    edited = Report.from_file(pack / "judged.json")
    findings = [each.model_copy(update={"outcome": "failed"}) for each in edited.findings]
    edited.model_copy(update={"findings": findings}).save(tmp_path / "edited.json")
    (pack / "naive.json").write_text((pack / "commitment.json").read_text().replace("Z", ""))
    bare = {"report": pack / "judged.json", "commitment": pack / "commitment.json"}
    with pytest.raises(UsageError, match="with --policy"):
        statement_of(bare)  # type: ignore[arg-type]
    for changed, said in (
        ({"report": tmp_path / "edited.json"}, "its findings are not those of"),
        ({"config": tmp_path / "round-5.safetensors"}, "have one name"),
        ({"commitment": pack / "naive.json"}, "no commitment"),
        ({"report": tmp_path / "report.json"}, "is not judged"),
        ({"policy": tmp_path / "policy.yaml"}, "another policy judged"),
        ({"config": tmp_path / "audit.yaml"}, "as it was committed"),
        ({"commitment": pack / "audit.yaml"}, "no commitment"),
        ({"annex": tmp_path / "judged.json"}, "have one name"),
    ):
        with pytest.raises(UsageError, match=said):
            statement_of({**files, **changed})  # type: ignore[arg-type]


def test_a_statement_of_another_form_is_altered(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    text = (pack / "statement.json").read_text()
    subject = json.loads(text)["subject"][0]
    for changed in (
        {"name": "x" * 300},
        {"name": 5},
        {"digest": {"sha256": 5}},
        {"digest": {"sha256": "ab"}},
    ):
        made = {**json.loads(text), "subject": [{**subject, **changed}]}
        (pack / "statement.json").write_text(json.dumps(made))
        done = run("verify", pack, width=1000)
        assert (done.status, "is not as `gradaudit attest` writes it" in done.out) == (1, True)
    twice = text.replace('"result": "PASSED"', '"result": "FAILED", "result": "PASSED"')
    (pack / "statement.json").write_text(twice)
    done = run("verify", pack, width=1000)
    assert (done.status, "key 'result' twice" in done.err) == (2, True)
    assert "is no folder" in run("verify", tmp_path / "none").err


def test_findings_that_another_hand_wrote_are_altered(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=3)
    judged = Report.from_file(pack / "judged.json")
    passing = [each.model_copy(update={"outcome": "passed"}) for each in judged.findings]
    judged.model_copy(update={"findings": passing}).save(pack / "judged.json")
    made = statement_of({"report": pack / "judged.json"})
    (pack / "statement.json").write_text(json.dumps(made))
    done = run("verify", pack, width=1000)
    assert (done.status, "no policy is named to judge its numbers by" in done.out) == (0, True)
    refused = run("attest", pack / "judged.json", "--policy", pack / "policy.yaml")
    assert (refused.status, "its findings are not those of" in refused.err) == (2, True)


def test_an_expired_exception_and_a_baseline_still_give_the_result(tmp_path: Path) -> None:
    text = POLICY % 2 + "ignore: [{metric: leak.bits, reason: known, until: 2001-02-03}]\n"
    (tmp_path / "policy.yaml").write_text(text)
    policy, report = read_policy(tmp_path / "policy.yaml"), report_of(b"", 3)
    files = {"report": tmp_path / "judged.json", "policy": tmp_path / "policy.yaml"}
    for judged in (
        gate(report, policy, today=date(2001, 2, 3)),
        gate(report, policy, today=date(2001, 2, 4)),
        gate(report, policy, strict=True),
        gate(report, policy, baseline=report),
    ):
        judged.save(tmp_path / "judged.json")
        assert statement_of(files)["predicate"]  # type: ignore[arg-type]


def test_a_baseline_in_the_pack_is_judged_again(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=3)
    policy = ["--policy", pack / "policy.yaml"]
    for name, value, status in (("old.json", 3.0, 0), ("other.json", 1.0, 2)):
        report_of(b"", value).save(pack / name)
        if not status:
            gated = ["gate", tmp_path / "report.json", *policy, "--baseline", pack / name]
            run(*gated, "-o", pack / "judged.json")
        attested = ["attest", pack / "judged.json", *policy, "--baseline", pack / name]
        done = run(*attested, "-o", pack / "statement.json", "-q")
        assert (done.status, "its findings are not those of" in done.err) == (status, status == 2)
    assert run("verify", pack).status == 0
    (pack / "old.json").write_text((pack / "other.json").read_text())
    done = run("verify", pack, width=1000)
    assert (done.status, "ALTERED  old.json: was altered" in done.out) == (1, True)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    named = pack / b"judged-\xff.json".decode(errors="surrogateescape")
    (pack / "judged.json").rename(named)
    done = run("attest", named, "-o", tmp_path / "statement.json")
    assert (done.status, "the name is not plain UTF-8 text; rename" in done.err) == (2, True)
    assert not (tmp_path / "statement.json").exists()


def test_of_several_reports_each_says_whether_the_policy_was_fixed_first(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    times = ("2100-01-01T00:00:00+00:00", "2001-01-01T00:00:00+00:00")
    for number, started in enumerate(times):
        report_of(b"", 1, started).save(tmp_path / f"{number}.json")
    options = ["--policy", pack / "policy.yaml", "--commitment", pack / "commitment.json"]
    done = run("gate", tmp_path / "0.json", tmp_path / "1.json", *options, width=1000)
    lines = [line for line in done.out.splitlines() if "policy" in line and ".json" in line]
    assert ["before the numbers" in line for line in lines] == [True, False]
    assert ["only after the numbers" in line for line in lines] == [False, True]


def test_a_report_says_whether_its_policy_was_fixed_first(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    options = ["--policy", pack / "policy.yaml", "--commitment", pack / "commitment.json"]
    for started, word in (
        ("2100-01-01T00:00:00+00:00", "before"),
        ("2001-01-01T00:00:00+00:00", "only after"),
    ):
        report_of(b"", 1, started).save(tmp_path / "report.json")
        done = run(
            "gate", tmp_path / "report.json", *options, "-o", tmp_path / "page.html", width=500
        )
        assert f", {word} the numbers, begun {started}" in done.out
        assert f", {word} the numbers" in (tmp_path / "page.html").read_text()
    for started in ("yesterday", "2100-01-01T00:00:00"):
        report_of(b"", 1, started).save(tmp_path / "report.json")
        done = run("gate", tmp_path / "report.json", *options, width=500)
        assert (done.status, "does not say when it began" in done.out) == (0, True)
    (tmp_path / "policy.yaml").write_text(POLICY % 7)
    done = run("gate", tmp_path / "report.json", "--policy", tmp_path / "policy.yaml", *options[2:])
    assert (done.status, "is about another policy" in done.err) == (2, True)


def test_a_commitment_keeps_its_date(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY % 2)
    words = ["commit", tmp_path / "policy.yaml", "-o", tmp_path / "commitment.json"]
    assert run(*words).status == 0
    first = (tmp_path / "commitment.json").read_text()
    again = run(*words)
    assert (again.status, "its date would be lost" in again.err) == (2, True)
    assert (tmp_path / "commitment.json").read_text() == first


@pytest.mark.slow
def test_an_authoritys_timestamp_is_kept_and_checked(tmp_path: Path) -> None:
    pytest.importorskip("rfc3161_client", reason="needs pip install 'gradaudit[evidence]'")
    pack = make_pack(tmp_path / "pack", None, value=1)
    answer = timestamp(tmp_path, pack / "commitment.json")
    files = [pack / "policy.yaml", pack / "audit.yaml", "-o", pack / "commitment.json"]
    assert run("commit", *files, "--timestamp", answer).status == 0
    attested = run(
        *("attest", pack / "judged.json", "--policy", files[0], "--config", files[1]),
        *("--commitment", files[3], "-o", pack / "statement.json"),
    )
    assert attested.status == 0, attested
    done = run("verify", pack, width=1000)
    assert (done.status, "by a timestamp authority, before the numbers" in done.out) == (0, True)
    assert "commitment.json.tsr: matches" in done.out
    kept = pack / "commitment.json.tsr"
    kept.write_bytes(timestamp(tmp_path, pack / "audit.yaml").read_bytes())
    done = run("verify", pack, width=1000)
    assert (done.status, "is of other content than" in done.out) == (1, True)
    other = run("commit", *files, "--timestamp", timestamp(tmp_path, pack / "commitment.json"))
    assert (other.status, "is another timestamp" in other.err) == (2, True)
    refused = run("commit", *files, "--timestamp", pack / "audit.yaml")
    assert (refused.status, "no timestamp of RFC 3161" in refused.err) == (2, True)


def timestamp(folder: Path, file: Path) -> Path:
    """What an authority of our own answers about a file, by openssl."""
    config = folder / "authority.cnf"
    config.write_text(
        "[tsa]\ndefault_tsa = one\n[one]\nserial = serial\ndigests = sha256\n"
        "default_policy = 1.2.3.4\nsigner_digest = sha256\n"
        "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n"
        "[dn]\nCN = authority\n[ext]\nextendedKeyUsage = critical,timeStamping\n"
    )
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", config]
    openssl(*request, "-keyout", "tsa.key", "-out", "tsa.crt", folder=folder)
    (folder / "serial").write_text("01\n")
    openssl("ts", "-query", "-data", file, "-sha256", "-cert", "-out", "asked", folder=folder)
    reply = ["ts", "-reply", "-queryfile", "asked", "-signer", "tsa.crt", "-inkey", "tsa.key"]
    openssl(*reply, "-config", config, "-section", "one", "-out", "answer.tsr", folder=folder)
    return folder / "answer.tsr"


@pytest.mark.parametrize("kind", ["folder", "index", "one file"])
def test_digests_of_checkpoints_are_those_of_reports(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {f"{i}.weight": torch.full((2, 2), float(i)) for i in range(3)}
    if kind == "one file":
        save_file(tensors, folder / "model.safetensors")
    else:
        for name, tensor in tensors.items():
            save_file({name: tensor}, folder / f"shard-{9 - int(name[0])}.safetensors")
        places = {name: f"shard-{9 - int(name[0])}.safetensors" for name in tensors}
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
    path = folder / "model.safetensors.index.json" if kind == "index" else folder
    digest = load_checkpoint(path).record.sha256
    assert checkpoint_digest(path) == digest
    changed = sorted(folder.glob("*.safetensors"))[0]
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    assert checkpoint_digest(path) != digest
    changed.unlink()
    if kind != "one file":
        with pytest.raises(UsageError, match="cannot be read"):
            checkpoint_digest(path)


def test_the_annex_has_a_row_for_each_class_of_attack() -> None:
    report = make_report(
        row(
            "attack.tracing_distance",
            "fc1",
            0.5,
            interval=(0.4, 0.6),
            variant={"attack": "tracing"},
        ),
        skipped_row("attack.tokens_recovered", None, "no | texts", variant={"attack": "text"}),
        row("dp-audit.epsilon_lower", None, 1.5, details={"unit": "record", "relation": "replace"}),
    )
    lines = [line for line in annex(gate(report)).splitlines() if line.startswith("| ")]
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in lines[2:]}
    assert [len(line.split(" | ")) for line in lines] == [11] * 9
    assert list(cells) == [
        *("attribute inference", "membership inference", "reconstruction", "inversion", "text"),
        *("malicious server", "epsilon"),
    ]
    assert cells["membership inference"][1] == "executed (attack tracing)"
    assert cells["reconstruction"][1] == "not run: not asked for"
    assert cells["text"][1] == "not applicable: no &#124; texts"
    assert cells["epsilon"][3] == "record, replace"
    assert cells["text"][8] == "exfiltration; regurgitation of training data"
    assert "finished model" in annex(report)


def test_the_statement_is_no_file_that_is_read(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", None, value=1)
    kept = (pack / "judged.json").read_text()
    done = run("attest", pack / "judged.json", "-o", pack / "judged.json")
    assert (done.status, (pack / "judged.json").read_text()) == (2, kept)
    assert json.loads(kept)["findings"]
    one = tmp_path / "one.json"
    done = run("attest", pack / "judged.json", "-o", one, "--annex", one)
    assert (done.status, one.exists()) == (2, False)


def test_a_key_that_cannot_sign_leaves_no_annex(tmp_path: Path) -> None:
    pytest.importorskip("securesystemslib")
    pack = make_pack(tmp_path / "pack", None, value=1)
    wrong, noted, made = (tmp_path / name for name in ("wrong.pem", "noted.md", "made.json"))
    wrong.write_text("no key")
    files = ("--annex", noted, "--sign", wrong, "-o", made)
    assert run("attest", pack / "judged.json", *files).status == 2
    assert not noted.exists()
    assert not made.exists()
