"""Flower's legacy apps and its secure aggregation: what leaves, and what the sum really is."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.server.workflow import SecAggPlusWorkflow
from job_folders import legacy_app

from gradaudit.audits.job import JobOptions
from gradaudit.audits.job.loading.flower_server import secure_mean
from gradaudit.audits.job.measure import Audited, audited

pytestmark = pytest.mark.slow
CENTRAL = "DifferentialPrivacy{}SideFixedClipping({{}}, 1.0, 0.5, 4)"
CLIENT, SERVER = CENTRAL.format("Client"), CENTRAL.format("Server")
SECURE = "SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)"


def names(found: Audited) -> set[str]:
    return {fault.name for fault in found.faults if fault.level != "note"}


def test_the_mods_and_rounds_of_a_legacy_app_are_read(tmp_path: Path) -> None:
    mods = "even, LocalDpMod(1.0, 2.0, 1.0, 1e-5)"
    found = audited(legacy_app(tmp_path, mods, evaluated=1.0), JobOptions())
    train, evaluate = found.job.chains
    assert [link.name for link in train.links] == ["LocalDpMod", "even"]
    assert (train.task, evaluate.task, found.job.rounds, found.job.clients) == (
        "train",
        "evaluate",
        3,
        4,
    )
    assert names(found) == {"numbers-assumed"}  # the evaluation's loss and count


def test_the_law_of_a_legacy_mod_is_known(tmp_path: Path) -> None:
    found = audited(legacy_app(tmp_path, "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"), JobOptions())
    assert set(found.names("assumed")) == {"num_examples", "train_loss"}
    known = found.job.chains[0].known
    assert known is not None
    assert known.sigma == pytest.approx(2 * math.sqrt(2 * math.log(1.25e5)))


def test_a_legacy_strategys_noise_is_that_of_todays(tmp_path: Path) -> None:
    found = audited(legacy_app(tmp_path, "even", strategy=SERVER), JobOptions(rounds=50))
    assert names(found) == set()
    assert found.central is not None
    assert found.central.epsilon(50, 1e-5, "remove") == pytest.approx(54.4, abs=0.1)


def test_flowers_example_of_secure_aggregation_weighs_clients_by_their_counts(
    tmp_path: Path,
) -> None:
    """As it stands; where every client sends one record for its count it is private."""
    mods = "secaggplus_mod, fixedclipping_mod"
    as_is = audited(legacy_app(tmp_path / "a", mods, strategy=CLIENT, secure=SECURE), JobOptions())
    assert names(as_is) == {"mean-weighted-by-counts"}
    even = f"{mods}, even"
    mended = audited(legacy_app(tmp_path / "b", even, strategy=CLIENT, secure=SECURE), JobOptions())
    assert names(mended) == set()
    assert mended.central is not None
    assert mended.central.multiplier == pytest.approx(1.0)


def test_a_clip_on_the_server_of_a_secure_sum_clips_the_sum(tmp_path: Path) -> None:
    mods = "secaggplus_mod, even"
    found = audited(legacy_app(tmp_path, mods, strategy=SERVER, secure=SECURE), JobOptions())
    assert names(found) == {"clip-of-the-sum"}


def test_a_secure_sum_alone_has_no_epsilon(tmp_path: Path) -> None:
    found = audited(legacy_app(tmp_path, "secaggplus_mod", secure=SECURE), JobOptions())
    assert names(found) == {"secure-sum-without-noise"}
    (strength,) = found.strength.values()
    assert strength.why.endswith("secure sums alone have no epsilon without assumptions")
    assert found.clear(0) == []


@pytest.mark.parametrize(
    ("clients", "fault"), [(1, "secure-sum-of-one"), (1100, "secure-sum-wraps")]
)
def test_a_secure_sum_of_too_few_or_too_many_is_told(
    clients: int, fault: str, tmp_path: Path
) -> None:
    made = legacy_app(tmp_path, "secaggplus_mod", secure=SECURE, clients=clients)
    assert names(audited(made, JobOptions())) == {fault, "secure-sum-without-noise"}


def test_secure_sums_wrap_and_clip_as_flowers_do() -> None:
    """1,100 clients at Flower's defaults: 7.9 of each comes out as -101; 12 as 8, or 5.3."""
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)

    def of(value: float, clients: int, count: int) -> float:
        return secure_mean(workflow, [[np.array([value])]] * clients, [count] * clients)[0].item()

    assert of(7.9, 1100, 1000) == pytest.approx(-101.24, abs=0.01)
    assert of(7.9, 1000, 1000) == pytest.approx(7.9, abs=1e-5)
    assert of(12.0, 3, 1000) == pytest.approx(8.0)
    assert of(12.0, 3, 1500) == pytest.approx(16 / 3)


def test_a_secure_mean_is_the_mean_weighted_by_counts() -> None:
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)
    drawn = np.random.default_rng(0).normal(size=(5, 2, 3))
    counts = [100, 200, 300, 400, 500]
    (mean,) = secure_mean(workflow, [[each] for each in drawn], counts)
    assert mean == pytest.approx(np.average(drawn, axis=0, weights=counts), abs=1e-4)
