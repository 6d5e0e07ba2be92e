"""Finds the updates of several rounds that come from the same batch, where nobody says which do.

A server that does not know which client sent an update can still tell by the update: the same batch
at the same checkpoint makes the same gradient, and at a near one a gradient of much the same
direction. What all updates of a round have in common, the round's mean, is taken off first, for it
would make all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.closeness import labels_in_common


def matched_rounds(rounds: Sequence[Sequence[AttackerView]]) -> list[AttackerView]:
    """Join each update of the newest round to the earlier ones that seem to come from its batch.

    Each round is matched with the next by the assignment of the highest sum of ``likeness``. Of 10
    rounds of digits (FedSGD, ``digits_cnn`` from its start, 20 clients with a batch of their own)
    all pairs are right where five steps of others, at rate .1, lie between rounds, with batches of
    1, 8 and 32; with 200 steps between, near the end of training, .99 are, and all of batches of 2.

    Args:
        rounds: oldest first; in each as many updates of as many records, in any order.
    """
    chains: list[tuple[AttackerView, ...]] = [(view,) for view in rounds[0]]
    for before, after in pairwise(rounds):
        places = {id(view): place for place, view in enumerate(before)}
        partners = linear_sum_assignment(-likeness(before, after))[1]
        chains = [(*chain, after[partners[places[id(chain[-1])]]]) for chain in chains]
    newest = {id(view): place for place, view in enumerate(rounds[-1])}
    chains.sort(key=lambda chain: newest[id(chain[-1])])
    return [replace(chain[-1], earlier=chain[:-1]) for chain in chains]


def likeness(before: Sequence[AttackerView], after: Sequence[AttackerView]) -> NDArray[np.float64]:
    """Compute the cosine of updates without their rounds' means, plus the share of common labels.

    Labels count where the attacker knows them. Estimates of them do not: beside the cosine they
    make matches worse (.93 of pairs right in place of .99 after 200 steps between rounds).

    Returns:
        (updates before, updates after) the sum of both.
    """
    one, other = (_directions(views) for views in (before, after))
    alike: NDArray[np.float64] = (one @ other.T).cpu().numpy()
    labels = [_known_labels(views) for views in (before, after)]
    if labels[0] is None or labels[1] is None:
        return alike
    common = [labels_in_common(own, labels[1]) for own in labels[0]]
    return alike + np.stack(common) / before[0].batch


def _directions(views: Sequence[AttackerView]) -> Tensor:
    """Updates (updates, elements) without their mean, each of length 1."""
    rows = [torch.cat([part.flatten() for part in view.update.values()]) for view in views]
    flat = torch.stack(rows).double()
    away = flat - flat.mean(dim=0) if len(flat) > 1 else flat
    lengths = away.norm(dim=1, keepdim=True).clamp(min=torch.finfo(away.dtype).tiny)
    directions: Tensor = away / lengths
    return directions


def _known_labels(views: Sequence[AttackerView]) -> NDArray[np.int64] | None:
    """Classes (updates, k) that the attacker knows; None where it does not, or targets are real."""
    known = [view.labels for view in views if view.labels is not None and view.classes]
    if len(known) < len(views) or known[0].dim() != 1:
        return None
    return np.asarray(torch.stack(known).cpu().numpy())
