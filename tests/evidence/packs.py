"""Packs of evidence for the tests: a signed statement and the files that it names."""

import hashlib
import subprocess
from pathlib import Path

from command_line import run
from report_builder import make_report, row

from gradaudit.report import CheckpointRecord, Report

POLICY = "rules: [{metric: leak.bits, max: %s}]\n"
NAMES = (
    *("judged.json", "policy.yaml", "audit.yaml", "commitment.json", "annex.md"),
    *("round-5.safetensors", "statement.json"),
)


def key_pair(folder: Path, name: str = "signer") -> tuple[Path, Path]:
    """A private and a public key, as the page says to make them."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    openssl("genpkey", "-algorithm", "ed25519", "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public)
    return private, public


def openssl(*words: object, folder: Path | None = None) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)


def report_of(weights: bytes, value: float, started: str = "2100-01-01T00:00:00+00:00") -> Report:
    """A report of a checkpoint with these bytes."""
    made = make_report(row("leak.bits", "fc1", value, interval=(value - 0.1, value + 0.1)))
    record = CheckpointRecord(
        file="run/round-5.safetensors", sha256=hashlib.sha256(weights).hexdigest()
    )
    return made.model_copy(
        update={
            "target": made.target.model_copy(update={"checkpoints": [record]}),
            "data": {**made.data, "fingerprint": "cd" * 32},
            "provenance": {**made.provenance, "started": started},
        }
    )


def make_pack(folder: Path, key: Path | None, *, value: float = 3.0, limit: float = 2.0) -> Path:
    """A folder with all that can be in a pack, made by the commands."""
    folder.mkdir()
    weights = b"weights %g" % value
    (folder / "round-5.safetensors").write_bytes(weights)
    (folder / "policy.yaml").write_text(POLICY % limit)
    (folder / "audit.yaml").write_text(f"data: digits\nseed: {value:.0f}\n")
    report_of(weights, value).save(folder.parent / "report.json")
    policy = ["--policy", folder / "policy.yaml"]
    committed = ["--commitment", folder / "commitment.json"]
    signing = [] if key is None else ["--sign", key]
    config, annex = ["--config", folder / "audit.yaml"], ["--annex", folder / "annex.md"]
    done = [
        run("commit", folder / "policy.yaml", folder / "audit.yaml", "-o", committed[1]),
        run("gate", folder.parent / "report.json", *policy, "-o", folder / "judged.json"),
        run(
            *("attest", folder / "judged.json", "-o", folder / "statement.json"),
            *(*policy, *config, *committed, *annex, *signing),
        ),
    ]
    assert [each.status for each in done] == [0, int(value > limit), 0], done
    return folder
