"""A scan narrowed to one audit never ends in a bare PASSED about an attribute or attacks."""

import json
from pathlib import Path

import pytest
from command_line import run

from gradaudit.audits import audits

SUBJECT = ("-m", "zoo:mlp?inputs=10&classes=2", "-d", "diabetes", "-a", "sex")
NOISE = ("--defense", "dp:clip=1,sigma=30")
"""So much that no attack finds anything."""
ALONE = [name for name, audit in audits().items() if not audit.brings_model]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_no_audit_passes_a_scan_alone(tmp_path: Path, name: str) -> None:
    report = tmp_path / "r.json"
    done = run("scan", "--quick", "--audits", name, *SUBJECT, *NOISE, "-q", "-o", report)
    assert "PASSED" not in done.out
    if done.status == 3:  # it does not apply
        return
    judged = run("gate", report)
    assert "PASSED" not in judged.out
    assert done.status == judged.status
    reasons = ("no evidence about", "the policy has no rule for what this report holds")
    lacking = any(reason in done.err for reason in reasons)
    assert (done.status == 1) == (lacking or "FAILED" in done.out)


@pytest.mark.slow
def test_property_inference_with_the_column_held_says_so_and_passes_nothing(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    narrowed = ("scan", "--quick", "--audits", "attack property", *SUBJECT, *NOISE)
    done = run(*narrowed, "-q", "-o", report)
    words = " ".join(done.out.split())
    assert words.startswith("UNDECIDED")
    assert "its column held at its mean in every record, since the model takes it" in words
    assert "not run: attack attribute, attack distribution, attack user, vinfo" in words
    (gain,) = (
        row
        for row in json.loads(report.read_text())["measurements"]
        if (row["metric"], row["layer"], row["variant"]) == ("auroc_gain", None, {})
    )
    assert gain["interval"][1] < 0.25  # it would have passed
