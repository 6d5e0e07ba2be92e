"""One thread a test process: contended threads are many times slower, and sums differ by them."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import torch
from hypothesis import settings
from language_models import Shelf

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

TESTS = Path(__file__).parent
SLOW = (
    "test_hostile.py",
    "test_protection.py",
    "test_workers.py",
    "attacks/reconstruction/test_blocks.py",
    "attacks/reconstruction/test_replay.py",
    "audits/test_attack_inference.py",
    "audits/test_attack_membership_tracing.py",
    "audits/test_attack_reconstruct.py",
    "audits/test_attack_text.py",
    "audits/test_contract.py",
    "audits/test_copa_metric.py",
    "audits/test_dp_audit.py",
    "audits/test_language_models.py",
    "audits/test_middleware.py",
    "audits/test_sensitivity.py",
    "audits/test_shapes.py",
    "audits/test_subspace.py",
    "audits/test_tradeoff.py",
    "audits/test_vinfo.py",
    "audits/test_vinfo_original.py",
    "cli/test_processes.py",
    "dp/middleware/test_middleware.py",
    "dp/test_coverage.py",
    "dp/test_degenerate.py",
    "dp/test_game.py",
    "federation/test_resume.py",
    "gradients/test_sensitivity.py",
    "inference/test_usable.py",
    "protection/test_levels.py",
    "ranks/test_convolution.py",
    "tradeoff/test_attacking.py",
)
"""Files of which most tests run whole audits, start processes or need long statistics."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole files as slow; single tests are marked where they stand."""
    slow = {TESTS / name for name in SLOW}
    missing = [str(path) for path in slow if not path.exists()]
    assert not missing, f"SLOW names files that are gone: {missing}"
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Spare what was there before the first test every search of the heap."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave alone what the user keeps at home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """Small models of transformers."""
    return Shelf(tmp_path_factory.mktemp("language"))
