"""The three attacks of Fan et al. 2020 on one setting of a defense, all from one reconstruction.

L. Fan et al., "Rethinking privacy preserving deep learning" (2020), algorithms 5 and 6: the labels
come with the reconstruction, and records are traced by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.membership import categorical_distance, paired_distance
from gradaudit.attacks.reconstruction.attempts import attack
from gradaudit.attacks.reconstruction.matching import order_of
from gradaudit.attacks.reconstruction.methods import Method
from gradaudit.attacks.reconstruction.observing import Observed, Observer
from gradaudit.attacks.reconstruction.scores import relative_error
from gradaudit.attacks.tracing import trace
from gradaudit.data.records import Records
from gradaudit.defenses import Defense
from gradaudit.defenses.modules.attachment import private_parts
from gradaudit.defenses.modules.target import seen_by_outsiders
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.randomness import sequence, torch_rng
from gradaudit.sharing.protocol import Sharing
from gradaudit.sharing.share import share
from gradaudit.tradeoff.scores import FloatArray, clipped


@dataclass(frozen=True)
class Attack:
    """How batches are attacked.

    Attributes:
        method: of reconstruction; its labels are what membership is scored by.
        restarts: of every attack.
        participants: among whom the batches are dealt out in turn, to be traced.
        layers: whose updates the attacker uses.
        insider: whether the attacker knows what a client keeps private in its model.
    """

    method: Method
    restarts: int
    participants: int
    layers: tuple[Layer, ...]
    insider: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of it, (batches,) each.

    Attributes:
        relative_error: ‖x̂ − x‖/‖x‖, mean over a batch's records; 1 where all restarts diverged.
        reconstruct: the same, each record's at most 1.
        membership: share of the labels that the attacker does not name; None where it names none.
        paired: share of the records that their own reconstruction's label misses; likewise.
        named: each batch's labels (k,) in the attacker's own order; None where it names none.
        tracing: share of the records that are traced to another participant.
        ratios: ‖B‖/‖E‖; infinite where nothing was perturbed.
        diverged: batches to which the attacker has no answer.
        knowledge: what the attacker was given.
    """

    relative_error: FloatArray
    reconstruct: FloatArray
    membership: FloatArray | None
    paired: FloatArray | None
    named: tuple[NDArray[np.int64] | None, ...]
    tracing: FloatArray
    ratios: FloatArray
    diverged: int
    knowledge: dict[str, JsonValue]


def has_secret(target: Target) -> bool:
    """Whether clients keep a part of the model private, which an insider would know."""
    return bool(private_parts(target.model))


def attacked(
    target: Target,
    sharing: Sharing,
    batches: Sequence[Records],
    attack_: Attack,
    seed: int,
    progress: Progress,
) -> Outcome:
    """Attack the updates of these batches.

    Args:
        target: the model with the defenses that change it.
        sharing: how updates are made.
        batches: of equally many records each.
        attack_: how.
        seed: of noise and starting points, which are the same for every setting of a defense.
        progress: told of the attacks.

    Raises:
        NotApplicable: the method does not apply to the model or the update.
        UsageError: options contradict each other.
    """
    observer = Observer(target, sharing, attack_.layers)
    seen = [
        _insider(each, target) if attack_.insider else each
        for each in (
            observer.of(batch, _draws(target, seed, index)) for index, batch in enumerate(batches)
        )
    ]
    answers, labels = zip(
        *(_answer(attack_, each, seed, index, progress) for index, each in enumerate(seen)),
        strict=True,
    )
    orders = [_order(each, answer) for each, answer in zip(seen, answers, strict=True)]
    errors = np.stack([_errors(*each) for each in zip(seen, answers, orders, strict=True)])
    membership, paired = _misnamed(seen, answers, labels, orders)
    ratios = [
        perturbation_ratio(target, sharing, batch, each.view.update, _draws(target, seed, index))
        for index, (batch, each) in enumerate(zip(batches, seen, strict=True))
    ]
    return Outcome(
        relative_error=errors.mean(axis=1),
        reconstruct=clipped(errors).mean(axis=1),
        membership=membership,
        paired=paired,
        named=labels,
        tracing=_mistraced(seen, answers, attack_.participants),
        ratios=np.asarray(ratios),
        diverged=sum(answer is None for answer in answers),
        knowledge=dict(seen[0].view.knowledge),
    )


def perturbation_ratio(
    target: Target,
    sharing: Sharing,
    batch: Records,
    shared: dict[str, Tensor],
    generator: torch.Generator,
) -> float:
    """‖B‖/‖E‖ of a batch: B is the gradient of the task's loss, E what the defenses added to it.

    Norms are over all visible biases together, theorem 2.2's B and E_B (over all parameters where
    there is no bias). E is noise, what was left out, and the gradient of a secret term. Clipping,
    a factor that hides nothing, is in B.

    Args:
        target: the model with the defenses that change it.
        sharing: with all defenses.
        batch: the records.
        shared: the update as it was shared.
        generator: as when the update was made, so that dropout is the same.
    """
    clipping = tuple(_without_noise(each) for each in sharing.chain.acting if each.additive)
    plain = replace(sharing, defenses=clipping)
    clean = share(
        seen_by_outsiders(target), batch.inputs, batch.labels, plain, generator, dtype=torch.float64
    )
    names = [name for name in shared if "bias" in name.rpartition(".")[2]] or list(shared)
    own = torch.cat([clean[name].flatten() for name in names])
    noise = torch.cat([shared[name].to(own).flatten() for name in names]) - own
    if not bool(noise.any()):
        return float("inf")
    return float(own.norm() / noise.norm())


def _without_noise(defense: Defense[Any]) -> Defense[Any]:
    """The same clipping, and no noise."""
    return type(defense)(defense.options.model_copy(update={"sigma": 0.0}))


def _insider(observed: Observed, target: Target) -> Observed:
    """The same update to an attacker who knows the private part of the model and its secrets."""
    view = observed.view
    knowledge: dict[str, JsonValue] = {**view.knowledge, "private_part": "known"}
    model = FunctionalModel.of(target)
    return replace(observed, view=replace(view, model=model, knowledge=knowledge))


def _draws(target: Target, seed: int, index: int) -> torch.Generator:
    return torch_rng(seed, "tradeoff", "update", index, device=target.device)


def _answer(
    attack_: Attack, observed: Observed, seed: int, index: int, progress: Progress
) -> tuple[Tensor | None, NDArray[np.int64] | None]:
    """The records (k, …) that the attacker hands in and their labels; None for no answer."""
    draws = sequence(seed, "tradeoff", "attack", index)
    found = attack(attack_.method, observed.view, attack_.restarts, draws, progress)
    if found.answer is None:
        return None, None
    inputs = found.inputs[found.answer].detach().cpu()
    if found.labels is None or found.labels.is_floating_point():
        return inputs, None
    return inputs, found.labels[found.answer].cpu().numpy()


def _order(observed: Observed, answer: Tensor | None) -> Tensor | None:
    """(k,) for each record, the reconstruction that stands for it; None for no answer."""
    truth = observed.records.detach().cpu().double()
    return None if answer is None else order_of(truth, answer.double())


def _errors(observed: Observed, answer: Tensor | None, order: Tensor | None) -> FloatArray:
    """(k,) relative errors, each record against the one that stands for it."""
    truth = observed.records.detach().cpu().double()
    if answer is None or order is None:
        return np.ones(len(truth))
    errors: FloatArray = relative_error(truth, answer.double()[order]).numpy()
    return errors


def _misnamed(
    seen: Sequence[Observed],
    answers: Sequence[Tensor | None],
    labels: Sequence[NDArray[np.int64] | None],
    orders: Sequence[Tensor | None],
) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """(batches,) distances of labels as lists, and record by record."""
    silent = any(
        answer is not None and found is None for answer, found in zip(answers, labels, strict=True)
    )
    if silent or not seen[0].view.classes:
        return None, None
    truths = [each.labels.cpu().numpy() for each in seen]
    places = [None if order is None else order.numpy() for order in orders]
    lists = [categorical_distance(*each) for each in zip(truths, labels, strict=True)]
    pairs = [paired_distance(*each) for each in zip(truths, labels, places, strict=True)]
    return np.asarray(lists), np.asarray(pairs)


def _mistraced(
    seen: Sequence[Observed], answers: Sequence[Tensor | None], participants: int
) -> FloatArray:
    truth = torch.cat([each.records.detach().cpu() for each in seen])
    size = len(truth) // len(seen)
    nothing = torch.full_like(truth[:size], torch.nan)
    rebuilt = torch.cat([nothing if answer is None else answer.to(truth) for answer in answers])
    owners = np.repeat(np.arange(len(seen)) % participants, size)
    missed = trace(truth, rebuilt, owners).participants != owners
    return np.asarray(missed.reshape(len(seen), size).mean(axis=1))
