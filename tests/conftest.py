"""One thread a test process: contended threads are many times slower, and sums differ by them."""

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

from hypothesis import settings

if TYPE_CHECKING:
    from language_models import Shelf

gc.disable()
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

TESTS = Path(__file__).parent
PROCESSES = (
    "test_hostile.py",
    "executors/test_workers.py",
    "executors/test_executors.py",
    "integrations/test_flower_simulation.py",
    "test_first_scan.py",
    "test_devices.py",
    "test_adoption.py",
    "test_resuming.py",
    "test_processors.py",
    "formats/test_chromium.py",
    "cli/test_processes.py",
    "test_site.py",
)
"""Files whose tests start processes: commands, workers, clusters, simulators, browsers."""

SLOW = (
    "audits/attack_inference/test_attack_inference.py",
    "audits/attack_labels/test_attack_labels_tracing.py",
    "audits/attack_record/test_attack_record_presence.py",
    "audits/attack_reconstruct/test_attack_reconstruct.py",
    "audits/attack_text/test_attack_text.py",
    "audits/copa_metric/test_copa_metric.py",
    "audits/dp_audit/game/test_game.py",
    "audits/dp_audit/law/test_coverage.py",
    "audits/dp_audit/middleware/test_middleware.py",
    "audits/dp_audit/test_dp_audit.py",
    "audits/dp_audit/test_middleware.py",
    "audits/job/test_epsilon.py",
    "audits/sensitivity/test_jacobian_sensitivity.py",
    "audits/sensitivity/test_sensitivity.py",
    "audits/subspace/test_subspace.py",
    "audits/test_contract.py",
    "audits/test_language_models.py",
    "audits/test_shapes.py",
    "audits/tradeoff/test_attacking.py",
    "audits/tradeoff/test_tradeoff.py",
    "audits/vinfo/test_v_information.py",
    "audits/vinfo/test_vinfo.py",
    "audits/vinfo/test_vinfo_original.py",
    "federation/test_resume.py",
    "protection/test_planner.py",
    "ranks/test_convolution.py",
    "strangers/test_models_that_write.py",
)
"""Files of which most tests run whole audits or need long statistics."""

LONGEST = (
    "test_hostile.py",
    "executors/test_workers.py",
    "audits/job/test_job.py",
    "test_first_scan.py",
    "test_devices.py",
    "test_resuming.py",
    "executors/test_executors.py",
    "audits/dp_audit/test_dp_audit.py",
    "test_adoption.py",
    "test_processors.py",
    "integrations/test_nvflare.py",
    "federation/test_record_canaries.py",
    "audits/sensitivity/test_jacobian.py",
    "audits/dp_audit/test_middleware.py",
    "audits/test_language_models.py",
    "test_docs.py",
    "audits/test_contract.py",
    "integrations/test_flower_simulation.py",
    "audits/attack_reconstruct/test_attack_reconstruct.py",
    "test_architecture.py",
    "audits/dp_audit/game/test_game.py",
    "audits/tradeoff/test_tradeoff.py",
    "gradients/test_per_sample.py",
    "formats/test_chromium.py",
    "audits/attack_text/test_attack_text.py",
    "audits/attack_table/test_row_space.py",
    "cli/test_processes.py",
    "audits/vinfo/test_vinfo.py",
    "ranks/test_convolution.py",
)
"""Files that are begun first: begun last, one would keep a worker busy while others wait."""


def pytest_configure(config: pytest.Config) -> None:
    """Let workers take files in the order below, where there are any."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole files, and begin with the longest; single tests are marked in place."""
    slow, processes, longest = (
        {TESTS / name: place for place, name in enumerate(names)}
        for names in (SLOW, PROCESSES, LONGEST)
    )
    missing = [str(path) for path in (*slow, *processes, *longest) if not path.exists()]
    assert not missing, f"SLOW, PROCESSES or LONGEST names files that are gone: {missing}"
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)
        if item.path in processes:
            item.add_marker(pytest.mark.processes)
    items.sort(key=lambda item: longest.get(item.path, len(longest)))


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but never look at what was there before the first test."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave alone what the user keeps at home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Keep ``-v`` of one test's command from the next, which would not share audits out."""
    log = logging.getLogger("gradaudit")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> "Shelf":
    """Small models of transformers."""
    from language_models import Shelf

    return Shelf(tmp_path_factory.mktemp("language"))
