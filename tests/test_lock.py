"""The lock file is that of the pinned versions."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_pinned_version_but_torchs_has_hashes() -> None:
    pinned = (ROOT / "constraints.txt").read_text().split()
    locked = re.findall(r"^(\S+==\S+) \\\n +--hash=sha256:[0-9a-f]{64}", lock(), re.MULTILINE)
    assert {named(each) for each in locked} == {
        named(each) for each in pinned if not each.startswith("torch")
    }


def test_the_lock_names_no_host() -> None:
    assert "://" not in lock()
    assert "--index" not in lock()


def lock() -> str:
    return (ROOT / "constraints.lock").read_text()


def named(requirement: str) -> str:
    """With the name as indexes spell it."""
    return requirement.lower().replace("_", "-")
