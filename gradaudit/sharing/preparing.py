"""Fitting the classifiers of defenses that need one, to shadow batches of one round."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gradaudit.data.records import Records
from gradaudit.defenses.perturb import Perturb
from gradaudit.models.target import Target
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import parameters_as_layers


def prepared(
    sharing: SharingProtocol,
    target: Target,
    records: Records,
    batches: NDArray[np.int64],
    values: NDArray[np.int64],
    classes: int,
    *,
    seed: int = 0,
    towards: int | None = None,
    memory: int = 1 << 30,
) -> SharingProtocol:
    """The way of sharing with every ``perturb`` in it fitted to updates of shadow batches.

    Args:
        sharing: how clients share; returned as it is where nothing needs fitting.
        target: the model of the round.
        records: the data.
        batches: (batches, k) shadow records.
        values: (batches,) private value of each batch, from 0.
        classes: how many values there are.
        seed: of noise before the perturbation, and of the classifier.
        towards: the value that updates are to be taken for (user inference).
        memory: bytes that one chunk of work may take.
    """
    chain = list(sharing.defenses)
    for index, defense in enumerate(chain):
        if isinstance(defense, Perturb):
            names = [n for n in sharing.parameters(target.model) if defense.defends(n)]
            before = replace(
                sharing, defenses=tuple(chain[:index]), others=0, fraction=None, elements=None
            )
            observer = Interceptor(
                target,
                records,
                parameters_as_layers(target, names),
                sharing=before,
                reduce="none",
                memory=memory,
                seed=seed,
            )
            found = observer.whole(batches, fit=np.unique(batches), seed=seed)
            labels = torch.from_numpy(np.asarray(values, dtype=np.int64))
            chain[index] = defense.prepare(found, labels, classes, seed, towards=towards)
    return replace(sharing, defenses=tuple(chain))
