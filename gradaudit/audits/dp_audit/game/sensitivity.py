"""How far a record's released gradient moves when its private value is replaced."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.game.domain import PrivateColumn
from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise
from gradaudit.audits.dp_audit.mechanisms import Mechanism, Noiseless
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.core.randomness import Seed, rng, sequence
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Target, shared_parameters

_CLOSE = 1e-6
_COPIES = 8
"""Gradients that are held for one variant of a record, at most, counting those of the backward
pass through them."""


@dataclass(frozen=True)
class RecordGradients:
    """Computes the gradient that a record contributes to a DP-SGD step.

    It goes over every trainable parameter but those of hidden layers, biases too: that is what
    DP-SGD clips as one vector. ``shape`` is that of one record's inputs; all records go through
    vmap at once where ``batched``, else one after the other.
    """

    view: FunctionalModel
    names: tuple[str, ...]
    shape: torch.Size
    batched: bool

    @classmethod
    def of(cls, target: Target, inputs: Tensor, labels: Tensor, hidden: Sequence[str] = ()) -> Self:
        """Make the function for a target, over all layers that are shared, in float64.

        They go through vmap where it gives the same gradients of the first two records as a loop,
        and the same slopes of them: some of its rules for differentiating twice are wrong (of
        layer norms in torch 2.13).

        Raises:
            NotApplicable: the model couples the records of a batch.
            AuditError: the model cannot be run on the records.
        """
        view = FunctionalModel.of(target, dtype=torch.float64)
        records, targets = view.cast(inputs[:2]), view.cast(labels[:2])
        view.check(records, targets)
        if reason := view.coupling(records, targets):
            raise NotApplicable(
                f"records have no gradients of their own to clip: {reason}"
                f"{'; use --model-mode eval' if view.mode == 'train' else ''}"
            )
        if view.stochastic(records):
            raise NotApplicable(
                "the model draws random numbers (dropout in training mode), which hide a record's "
                "gradient; use --model-mode eval"
            )
        names = shared_parameters(target.model, hidden)
        looped = cls(view, names, inputs.shape[1:], batched=False)
        batched = replace(looped, batched=True)
        return batched if _agree(batched, looped, records.flatten(1), targets) else looped

    @property
    def elements(self) -> int:
        """Length of a gradient."""
        return sum(self.view.parameters[name].numel() for name in self.names)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Gradients (records, elements) of flattened inputs (records, positions) and labels."""
        records = self.view.cast(inputs).view(-1, *self.shape)
        targets = self.view.cast(labels)
        chosen = {name: self.view.parameters[name] for name in self.names}
        gradient = torch.func.grad(self.view.record_loss)
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            if self.batched:
                batch = torch.func.vmap(gradient, in_dims=(None, 0, 0))(chosen, records, targets)
                return torch.cat([batch[name].flatten(1) for name in self.names], dim=1)
            rows = [gradient(chosen, x, y) for x, y in zip(records, targets, strict=True)]
        return torch.stack(
            [torch.cat([row[name].flatten() for name in self.names]) for row in rows]
        )


def _agree(
    batched: RecordGradients, looped: RecordGradients, inputs: Tensor, labels: Tensor
) -> bool:
    by_loop = _gradients_and_slope(looped, inputs, labels)
    try:
        by_batch = _gradients_and_slope(batched, inputs, labels)
    except Exception:  # whatever a model does that vmap cannot follow
        return False
    return all(
        torch.allclose(x, y, rtol=_CLOSE, atol=_CLOSE * float(y.abs().max()), equal_nan=True)
        for x, y in zip(by_batch, by_loop, strict=True)
    )


def _gradients_and_slope(
    gradients: RecordGradients, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = inputs.clone().requires_grad_()
    by_record = gradients(leaf, labels)
    (slope,) = torch.autograd.grad(by_record.square().sum(), leaf)
    return by_record.detach(), slope


Distance = Callable[[Tensor, Tensor], Tensor]
"""Distances (records,) between two gradients (records, elements) each."""
Objective = Callable[[Tensor], Tensor]
"""What crafting maximises: inputs (records, positions) to (records,), differentiable."""


@dataclass(frozen=True)
class RecordSensitivity:
    """How far a record's release moves between two values, as a function of its inputs.

    ``judge``, in words ``measured_by``, is the release without noise, or with common noise: gaps
    are measured by it. Crafting maximises the distances, each for its share of the starts; they are
    differentiable. Companions are gradients (others, elements) of the rest of the batch, and a
    chunk may take ``memory`` bytes. Where the record is removed, ``absent`` is the release
    (elements,) of the companions alone, which stands for its second value.
    """

    gradients: RecordGradients
    column: PrivateColumn
    judge: Noiseless
    distances: tuple[Distance, ...]
    companions: Tensor
    memory: int
    measured_by: str = "the noiseless release"
    absent: Tensor | None = None

    @classmethod
    def of(
        cls,
        gradients: RecordGradients,
        records: Records,
        column: PrivateColumn,
        mechanism: Mechanism,
        options: DpAuditOptions,
        memory: int,
        seed: Seed,
    ) -> Self:
        """The sensitivity of a mechanism's releases.

        The options say how many companions there are, and the clip that is declared; the seed
        draws the companions without replacement, and the common noise.

        Raises:
            UsageError: there are not so many companions.
        """
        count = options.companions
        if count >= len(records):
            raise UsageError(
                f"--companions {count}: there are {len(records)} records in all; give at most "
                f"{len(records) - 1}"
            )
        first = gradients(records.inputs[:1].flatten(1), records.labels[:1])
        others = first[:0].detach()
        if count:
            chosen = rng(seed, "companions").permutation(len(records))[:count]
            with torch.no_grad():
                others = gradients(records.inputs[chosen].flatten(1), records.labels[chosen])
        batch = torch.cat([first, others])
        judge, distances, words = _judge(mechanism, options.clip, batch, others, seed)
        found = cls(gradients, column, judge, distances, others, memory, words)
        if options.relation == "replace":
            return found
        # the cosine with nothing has no slope
        return replace(found, absent=judge(others[:1], others[1:])[0], distances=distances[:-1])

    def records_at_once(self, variants: int) -> int:
        """Records whose gradients fit the memory, with so many variants of each."""
        return max(1, self.memory // (_COPIES * 8 * variants * self.gradients.elements))

    def gaps(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Compute releases' distances between every two values, (records, values, values)."""
        values, found = len(self.column), []
        chunk = self.records_at_once(values)
        for some, own in zip(torch.split(inputs, chunk), torch.split(labels, chunk), strict=True):
            variants = self.column.variants(some).flatten(0, 1)
            with torch.no_grad():
                flat = self.gradients(variants, own.repeat_interleave(values, dim=0))
                releases = self.judge(flat, self.companions).view(len(some), values, -1)
            if self.absent is not None:
                releases[:, 1] = self.absent
            if not releases.isfinite().all():
                raise AuditError("a record's gradient is not finite; the model has diverged")
            mode = "donot_use_mm_for_euclid_dist"
            found.append(torch.cdist(releases, releases, compute_mode=mode).cpu())
        return torch.cat(found)

    def objective(self, distance: Distance, pairs: Tensor, labels: Tensor) -> Objective:
        """Objective of crafting, as a function of inputs (records, positions) to (records,).

        ``pairs`` are indices of the values, (records, 2), of records with these labels, (records,).
        """
        view = self.gradients.view
        column = replace(self.column, positions=self.column.positions.to(view.device))
        values = view.cast(self.column.values[pairs.T])
        targets = view.cast(torch.cat([labels, labels]))

        def function(inputs: Tensor) -> Tensor:
            if self.absent is not None:
                present = self.gradients(inputs, targets[: len(inputs)])
                return distance(present, torch.zeros_like(present))
            both = torch.cat([column.put(inputs, value) for value in values])
            first, second = self.gradients(both, targets).chunk(2)
            return distance(first, second)

        return function


def between_two_values(gaps: Tensor) -> Tensor:
    """Set the gap of a value to itself to −1 in (records, values, values), never the largest."""
    return gaps.masked_fill(torch.eye(gaps.shape[1], dtype=torch.bool, device=gaps.device), -1)


def squared_gap(noiseless: Noiseless, companions: Tensor) -> Distance:
    """Squared distance of two noiseless releases (Li24's MSE, up to a factor)."""

    def distance(first: Tensor, second: Tensor) -> Tensor:
        return (noiseless(first, companions) - noiseless(second, companions)).square().sum(dim=1)

    return distance


def cosine_distance(first: Tensor, second: Tensor) -> Tensor:
    """One minus the cosine of two gradients (Li24), which is what a tiny clip leaves of them."""
    return 1 - torch.cosine_similarity(first, second, dim=1)


def _judge(
    mechanism: Mechanism, clip: float | None, batch: Tensor, companions: Tensor, seed: Seed
) -> tuple[Noiseless, tuple[Distance, ...], str]:
    """Choose the measure of gaps, the objective of crafting, and the measure's name.

    Crafting maximises the gap itself, where that can be differentiated. Else guesses stand for it:
    a mechanism from a file may clip as declared, not at all, or to a bound nobody knows, for which
    the cosine stands.
    """
    law = mechanism.law(len(batch))
    if law is not None:
        distances = squared_gap(law.noiseless, companions), cosine_distance
        return law.noiseless, distances, "the noiseless release"
    common, declared = CommonNoise(mechanism, sequence(seed, "common noise")), _clipped_mean(clip)
    if not common.repeats(batch):
        words = "the declared clip" if clip else "gradients that nothing clips"
        return declared, (squared_gap(declared, companions), cosine_distance), words
    guesses = common if common.differentiable(batch) else declared, _clipped_mean(None)
    gaps = (squared_gap(guess, companions) for guess in guesses)
    return common, (*gaps, cosine_distance), "releases with common noise"


def _clipped_mean(clip: float | None) -> Noiseless:
    return ClippedNoise(clip=clip or math.inf, sigma=0).noiseless
