from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gradaudit.attacks.reconstruction import campaign
from gradaudit.attacks.reconstruction.attempts import attempt, rebuilt, recovered_labels
from gradaudit.attacks.reconstruction.campaign import Attack, Campaign, attack_batch
from gradaudit.attacks.reconstruction.gradient_matching import DeepLeakage
from gradaudit.attacks.reconstruction.matching.restarts import MatchingOptions
from gradaudit.attacks.reconstruction.observing import AttackedBatch, AttackedBatches
from gradaudit.executors.workers import cloudpickle
from tests.attacks.reconstruction.scenes import mlp, observed, records


@pytest.mark.parametrize("attack", [attempt, recovered_labels, rebuilt])
def test_one_batch_travels_to_a_worker_without_the_others(
    attack: Attack[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def sent(tasks: Any, *_: Any, **__: Any) -> list[Any]:
        sizes.append(len(cloudpickle.dumps(tasks[0])))
        return []

    monkeypatch.setattr(campaign, "shared_out", sent)
    seen = tuple(observed(mlp(), records(6, labels=[n % 2])) for n in range(4))
    one = Campaign(seen, scored=True, facts={}, workers=4)
    for count in (2, 4):
        task = partial(attack_batch, attack, DeepLeakage(MatchingOptions()))
        replace(one, observed=seen[:count]).outcomes(task, "")
    assert sizes[0] == sizes[1] < 2 * len(cloudpickle.dumps(seen[0]))


def test_updates_that_memory_has_no_room_for_are_made_again() -> None:
    made: list[int] = []

    def observe(number: int) -> AttackedBatch:
        made.append(number)
        return observed(mlp(), records(6, labels=[number % 2]))

    size = observed(mlp(), records(6, labels=[0])).nbytes
    updates = AttackedBatches(observe, 3, 2 * size)
    for _ in range(2):
        assert [int(each.labels) for each in updates] == [0, 1, 0]
    assert made == [0, 1, 2, 2]
    with pytest.raises(IndexError):
        updates[3]
