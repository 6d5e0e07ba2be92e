"""The three attacks of Fan et al. 2020 on one setting of a defense, from one reconstruction.

L. Fan et al., "Rethinking privacy preserving deep learning" (2020), algorithms 5 and 6: the labels
come with the reconstruction, and records are traced by it.

CAP, its interval, and the axis of the curves.

L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart privacy
attacks" (2020), section 2.1 and figure 5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction import Method
from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.attacks.reconstruction.closeness import (
    categorical_distance,
    order_of,
    paired_distance,
    relative_error,
    trace,
)
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.core.randomness import sequence, torch_rng
from gradaudit.core.statistics.laws import student_quantile
from gradaudit.data.records import Records
from gradaudit.defenses.attachment import private_parts
from gradaudit.executors.workers import one_thread
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import seen_by_outsiders

FloatArray = NDArray[np.float64]

FEWEST = 5


def clipped(relative_errors: FloatArray) -> FloatArray:
    """Compute min(‖x̂ − x‖/‖x‖, 1): a blank record, which needs no attack, has an error of 1.

    An error that is not finite is no answer, and counts as a blank one.
    """
    finite = np.where(np.isfinite(relative_errors), relative_errors, 1.0)
    return np.asarray(np.minimum(finite, 1.0))


def cap(accuracies: ArrayLike, distances: ArrayLike) -> float:
    """Compute the calibrated averaged performance of a defense (CAP).

    CAP = (1/n) Σ_m Acc_m · dist_m over its n settings (Fan et al. 2020, eq. 1), averaged over
    repetitions.

    >>> round(cap([0.9, 0.6], [[0.1, 0.3], [0.8, 1.0]]), 3)
    0.36

    Args:
        accuracies: (repetitions, settings) or (settings,), of models trained with each setting.
        distances: (…, settings, batches), of the attacked batches.
    """
    return float((np.asarray(accuracies) * np.asarray(distances).mean(axis=-1)).mean())


def cap_interval(
    accuracies: FloatArray, reaches: FloatArray, distances: FloatArray, most: float
) -> tuple[float, float] | None:
    """Compute an interval of CAP; None where the data are too few.

    From five repetitions on Student's over their CAPs, which covers training, too. Else Student's
    over the batches, each of which has a CAP of its own because all settings attack the same ones,
    widened by the accuracies' intervals. These are of the same test records, so that their errors
    are taken to go together.

    Args:
        accuracies: (repetitions, settings).
        reaches: (repetitions, settings) half the width of each accuracy's interval.
        distances: (repetitions, settings, batches).
        most: the largest value that CAP can have.
    """
    repetitions = len(accuracies)
    products = accuracies[:, :, None] * distances
    if repetitions >= FEWEST:
        half = student_half(products.mean(axis=(1, 2)))
    else:
        of_batches = products.mean(axis=1).reshape(-1)
        if len(of_batches) < FEWEST:
            return None
        of_training = (distances.mean(axis=2) * reaches).mean(axis=1)
        widening = float(np.linalg.norm(of_training)) / repetitions
        half = math.hypot(student_half(of_batches), widening)
    middle = cap(accuracies, distances)
    return max(middle - half, 0.0), min(middle + half, most)


def student_half(values: FloatArray) -> float:
    """Compute half the width of Student's interval of a mean."""
    quantile = student_quantile(len(values) - 1)
    return quantile * float(values.std(ddof=1)) / math.sqrt(len(values))


def mean_interval(values: FloatArray) -> tuple[float, float] | None:
    """Compute Student's interval of a mean of values in [0, 1]; None for fewer than five."""
    if len(values) < FEWEST:
        return None
    middle, half = float(values.mean()), student_half(values)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def position(ratios: FloatArray) -> float | None:
    """Compute a setting's position on the axis: the mean of log10(‖B‖/‖E‖ + 1) over batches.

    None where some update was not perturbed at all, so that the ratio is infinite.
    """
    with np.errstate(divide="ignore"):
        value = float(np.log10(ratios + 1).mean())
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Attack:
    """The attack on each batch, and the knowledge of its attacker.

    Attributes:
        method: of reconstruction; its labels are what membership is scored by.
        participants: among whom the batches are dealt out in turn, to be traced.
        layers: whose updates the attacker uses.
        insider: whether the attacker knows what a client keeps private in its model.
    """

    method: Method
    participants: int
    layers: tuple[Layer, ...]
    insider: bool = False


@dataclass(frozen=True)
class AttackScores:
    """Scores of an attack on each batch, (batches,) each.

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
    """Whether clients keep a part of the model private that only insiders know."""
    return bool(private_parts(target.model))


def attacked(
    target: Target,
    sharing: SharingProtocol,
    batches: Sequence[Records],
    attack_: Attack,
    seed: int,
    progress: Progress,
) -> AttackScores:
    """Attack the updates of these batches, and score the answers.

    Batches have equally many records; noise and starting points, drawn by the seed, are the same
    for every setting of a defense.

    Raises:
        NotApplicable: the method does not apply to the model or the update.
        UsageError: options contradict each other.
    """
    threat = ThreatModel(target, sharing, attack_.layers)
    answers, ratios = [], []
    for index, batch in enumerate(batches):
        observed = threat.observed(batch, _draws(target, seed, index))
        shared, draws = observed.view.update, sequence(seed, "tradeoff", "attack", index)
        if attack_.insider:
            knowledge = {**observed.view.knowledge, "private_part": "known"}
            model = FunctionalModel.of(target)
            view = replace(observed.view, model=model, knowledge=knowledge)
            observed = replace(observed, view=view)
        answers.append(_Answer.to(observed, attack_, draws, progress))
        noise = _draws(target, seed, index)
        ratios.append(perturbation_ratio(target, sharing, batch, shared, noise))
    errors = np.stack([answer.errors for answer in answers])
    membership, paired = _misnamed(answers)
    return AttackScores(
        relative_error=errors.mean(axis=1),
        reconstruct=clipped(errors).mean(axis=1),
        membership=membership,
        paired=paired,
        named=tuple(answer.labels for answer in answers),
        tracing=_mistraced(answers, attack_.participants),
        ratios=np.asarray(ratios),
        diverged=sum(answer.inputs is None for answer in answers),
        knowledge=dict(answers[0].observed.view.knowledge),
    )


def perturbation_ratio(
    target: Target,
    sharing: SharingProtocol,
    batch: Records,
    shared: dict[str, Tensor],
    generator: torch.Generator,
) -> float:
    """Compute a batch's ‖B‖/‖E‖: B is the gradient of the task's loss, E the defenses' change.

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
    clipping = [defense for defense in sharing.chain.acting if defense.additive]
    noiseless = (type(d)(d.options.model_copy(update={"sigma": 0.0})) for d in clipping)
    plain = replace(sharing, defenses=tuple(noiseless))
    clean = share(
        seen_by_outsiders(target), batch.inputs, batch.labels, plain, generator, dtype=torch.float64
    )
    names = [name for name in shared if "bias" in name.rpartition(".")[2]] or list(shared)
    gradient = torch.cat([clean[name].flatten() for name in names])
    noise = torch.cat([shared[name].to(gradient).flatten() for name in names]) - gradient
    if not bool(noise.any()):
        return float("inf")
    return float(gradient.norm() / noise.norm())


def _draws(target: Target, seed: int, index: int) -> torch.Generator:
    return torch_rng(seed, "tradeoff", "update", index, device=target.device)


@dataclass(frozen=True)
class _Answer:
    """The attacker's answer to one update: inputs (k, …), None for no answer; labels (k,)."""

    observed: AttackedBatch
    inputs: Tensor | None
    labels: NDArray[np.int64] | None

    @classmethod
    def to(
        cls,
        observed: AttackedBatch,
        attack_: Attack,
        draws: np.random.SeedSequence,
        progress: Progress,
    ) -> Self:
        """Attack the observed update."""
        with one_thread():
            execution = Execution(draws, progress=progress)
            found = attack_.method.run(observed.view, execution)
        candidates = attack_.method.checked(found, observed.view)
        inputs, labels = None, None
        if candidates.answer is not None:
            inputs = candidates.inputs[candidates.answer].detach().cpu()
            if candidates.labels is not None and not candidates.labels.is_floating_point():
                labels = candidates.labels[candidates.answer].cpu().numpy()
        return cls(observed, inputs, labels)

    @property
    def records(self) -> Tensor:
        """The true inputs, (k, …)."""
        return self.observed.records.detach().cpu()

    @cached_property
    def order(self) -> Tensor | None:
        """For each record, the reconstruction matched with it, (k,); None for no answer."""
        inputs = self.inputs
        return None if inputs is None else order_of(self.records.double(), inputs.double())

    @property
    def errors(self) -> FloatArray:
        """The relative error (k,) of each record and its matched reconstruction."""
        if self.inputs is None:
            return np.ones(len(self.records))
        rebuilt = self.inputs.double()[self.order]
        errors: FloatArray = relative_error(self.records.double(), rebuilt).numpy()
        return errors


def _misnamed(answers: Sequence[_Answer]) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """Compute two distances of labels (batches,): as lists, and record by record."""
    silent = any(answer.inputs is not None and answer.labels is None for answer in answers)
    if silent or not answers[0].observed.view.classes:
        return None, None
    lists, pairs = [], []
    for answer in answers:
        truth = answer.observed.labels.cpu().numpy()
        places = None if answer.order is None else answer.order.numpy()
        lists.append(categorical_distance(truth, answer.labels))
        pairs.append(paired_distance(truth, answer.labels, places))
    return np.asarray(lists), np.asarray(pairs)


def _mistraced(answers: Sequence[_Answer], participants: int) -> FloatArray:
    truth = torch.cat([answer.records for answer in answers])
    size = len(truth) // len(answers)
    nothing = torch.full_like(truth[:size], torch.nan)
    rebuilt = torch.cat([nothing if a.inputs is None else a.inputs.to(truth) for a in answers])
    owners = np.repeat(np.arange(len(answers)) % participants, size)
    missed = trace(truth, rebuilt, owners).participants != owners
    return np.asarray(missed.reshape(len(answers), size).mean(axis=1))
