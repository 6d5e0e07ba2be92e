"""What is observed for the estimates: whose records are in which updates."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from attacks.inference.people import people, subject

from gradaudit.inference.layerwise import Layerwise
from gradaudit.inference.repetitions import Question, repetitions
from gradaudit.inference.usable import Estimator
from gradaudit.models.target import Layer
from gradaudit.progress import Silent
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol


def test_other_clients_draw_from_the_set_of_the_batch_and_not_from_the_batch() -> None:
    records = people(120)
    audited = subject(records, "sex")
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    class Recording(Interceptor):
        def features(
            self, batches: np.ndarray, **named: object
        ) -> Iterator[tuple[Layer, torch.Tensor]]:
            seen.append((batches, named["others"]))  # type: ignore[arg-type]
            return super().features(batches, **named)  # type: ignore[arg-type]

    asked = Question(
        attribute="sex",
        values=("a", "b"),
        codes=np.arange(120) % 2,
        users=None,
        pool=np.arange(119, -1, -1),
        size=4,
        batches=6,
        shadow=None,
        repeats=2,
        seed=np.random.SeedSequence(5),
    )
    planned = list(repetitions(asked))
    work = Layerwise(
        lambda layers: Recording(
            audited.target, records, layers, sharing=SharingProtocol(others=3)
        ),
        audited.layers,
        None,
        3,
        np.random.SeedSequence(1),
        1,
    )
    work.usable(planned, Estimator(("logistic",)), Silent(), "")
    ((batches, others),) = seen
    assert others.shape == (len(batches), 3, 4)
    parts = [part for each in planned for part in each.parts]
    sizes = [len(drawn.labels) for each in planned for drawn in each.batches]
    places = np.repeat(np.arange(len(parts)), sizes)
    for batch, drawn, place in zip(batches, others, places, strict=True):
        assert set(drawn.ravel()) <= set(parts[place]) - set(batch)
    again = replace(work, layers=audited.layers[:1])
    again.usable(planned, Estimator(("logistic",)), Silent(), "")
    np.testing.assert_array_equal(seen[1][1], others)
