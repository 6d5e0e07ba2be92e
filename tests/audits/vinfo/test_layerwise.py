"""What is observed for the estimates: whose records are in which updates, and whose rows whose."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_inference.people import people, subject

from gradaudit.audits.vinfo import measure
from gradaudit.audits.vinfo.measure import Layerwise
from gradaudit.audits.vinfo.repetitions import Question, Repetition, repetitions
from gradaudit.audits.vinfo.v_information import Estimator
from gradaudit.models.target import Layer
from gradaudit.progress import Advance, Silent
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.reduction import parse_reduction

RECORDS = people(120)
AUDITED = subject(RECORDS, "sex")
NOBODY = Estimator(())


def planned(repeats: int) -> list[Repetition]:
    asked = Question(
        attribute="sex",
        values=("a", "b"),
        codes=np.arange(120) % 2,
        users=None,
        pool=np.arange(119, -1, -1),
        size=4,
        batches=6,
        shadow=None,
        repeats=repeats,
        seed=np.random.SeedSequence(5),
    )
    return list(repetitions(asked))


class Recording(Interceptor):
    """What it was asked for."""

    seen: list[dict[str, object]]

    def features(
        self, batches: np.ndarray, **named: object
    ) -> Iterator[tuple[Layer, torch.Tensor]]:
        self.seen.append({"batches": batches, **named})
        return super().features(batches, **named)  # type: ignore[arg-type]


def work(
    others: int = 0, reduce: str | None = None, note: str = ""
) -> tuple[Layerwise, list[dict[str, object]]]:
    """And what interceptors will have been asked for."""
    seen: list[dict[str, object]] = []

    def observe(layers: list[Layer]) -> Recording:
        recording = Recording(
            AUDITED.target, RECORDS, layers, sharing=SharingProtocol(others=others), reduce=reduce
        )
        recording.seen, recording._context.note = seen, note
        return recording

    reduction = parse_reduction(reduce) if reduce else None
    root = np.random.SeedSequence(1)
    return Layerwise(observe, AUDITED.layers, reduction, others, root, 1), seen


class Told(Silent):
    """What was opened, and how far it came."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int]] = []

    def task(self, description: str, total: int) -> AbstractContextManager[Advance]:
        self.tasks.append((description, total))
        return super().task(description, total)


def test_other_clients_draw_from_the_set_of_the_batch_and_not_from_the_batch() -> None:
    asked, (layers, seen) = planned(2), work(others=3)
    layers.usable(asked, NOBODY, Silent(), "")
    ((batches, others),) = ((one["batches"], one["others"]) for one in seen)
    assert others.shape == (len(batches), 3, 4)
    parts = [part for each in asked for part in each.parts]
    sizes = [len(drawn.labels) for each in asked for drawn in each.batches]
    places = np.repeat(np.arange(len(parts)), sizes)
    for batch, drawn, place in zip(batches, others, places, strict=True):
        assert set(drawn.ravel()) <= set(parts[place]) - set(batch)
    again = replace(layers, layers=AUDITED.layers[:1])
    again.usable(asked, NOBODY, Silent(), "")
    np.testing.assert_array_equal(seen[1]["others"], others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduce", "passes"), [(None, [8, 1]), ("pca:2", [1] * 9)], ids=["as-they-are", "principal"]
)
def test_every_repetition_is_estimated_from_rows_of_its_own(
    reduce: str | None, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight are observed in one pass; components are fitted on the adversary of each."""

    def rows_and_all(*what: object) -> tuple[object, ...]:
        return what

    monkeypatch.setattr(measure, "estimate", rows_and_all)
    asked, told = planned(9), Told()
    layers, seen = work(reduce=reduce)
    found = layers.usable(asked, NOBODY, told, "estimates")
    assert told.tasks == [("estimates", 9 * len(AUDITED.layers))]
    assert layers.notes == set()
    a_repetition = sum(len(drawn.labels) for drawn in asked[0].batches)
    assert [len(one["batches"]) for one in seen] == [count * a_repetition for count in passes]
    interceptor = layers.observe(layers.layers)
    for place, each in enumerate(asked):
        batches = np.concatenate([drawn.indices for drawn in each.batches])
        fit = each.adversary if reduce else None
        for layer, rows in interceptor.features(batches, fit=fit):
            own, repetition, adversary, *_ = found[layer.name][place]
            assert repetition is each
            assert adversary is NOBODY
            np.testing.assert_allclose(own, rows.numpy(), atol=1e-6)


def test_nothing_is_observed_for_no_repetition_and_what_is_to_be_said_is_kept() -> None:
    told, (layers, seen) = Told(), work(note="one after the other")
    assert layers.usable([], NOBODY, told, "") == {layer.name: [] for layer in AUDITED.layers}
    assert (told.tasks, seen, layers.notes) == ([], [], set())
    layers.usable(planned(1), NOBODY, told, "")
    assert layers.notes == {"one after the other"}
