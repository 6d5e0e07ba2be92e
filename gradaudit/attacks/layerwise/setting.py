"""Requirements of layer-by-layer attacks, and the score of a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradaudit.attacks.layerwise.chain_recording import chain_of
from gradaudit.attacks.layerwise.layer_chain import LastLayer, LayerChain, with_bias, without_bias
from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.matching.unknowns import UnknownLabels, infer_label
from gradaudit.errors import AuditError, NotApplicable

_CLOSE = 1e-3
_MOST_CLASSES = 1000
"""Classes that are tried as the record's label, one after the other."""


@dataclass(frozen=True)
class LayerwiseSetting:
    """A view of one record's gradient, in float64, of a model that is a chain."""

    view: AttackerView
    chain: LayerChain

    @classmethod
    def of(cls, view: AttackerView, attack: str) -> LayerwiseSetting:
        """The setting of an attack.

        Raises:
            NotApplicable: the model is no chain, the update is of several records or steps, or
                a gradient that is needed was hidden.
            AuditError: the update is not finite.
        """
        if view.earlier:
            raise NotApplicable(f"{attack} solves one round's update; leave out --joint-rounds")
        view = of_one_record(view, attack).in_precision(torch.float64, torch.device("cpu"))
        chain = chain_of(view.model, view.shape, attack)
        hidden = [stage.layer for stage in chain.stages if stage.weight_name not in view.update]
        if hidden:
            raise NotApplicable(
                f"{attack} goes through every layer, but the update of {hidden[-1]} was not shared"
            )
        return cls(view, chain)

    def targets(self) -> list[Tensor]:
        """All targets (1, …) that the record may have had.

        Of more than 1,000 classes it is the one that the last layer's gradient shows by its signs.

        Raises:
            NotApplicable: targets are unknown real numbers, or there are so many classes
                and the signs do not show which.
        """
        view = self.view
        if view.labels is not None:
            return [view.model.cast(view.labels)]
        if not view.classes:
            raise UnknownLabels("the target is a real number that the attacker would have to know")
        if view.classes > _MOST_CLASSES:
            return [infer_label(view)]
        return [torch.tensor([label]) for label in range(max(2, view.classes))]

    def output_gradient(self, target: Tensor, logits: Tensor) -> Tensor:
        """Compute ∂J/∂z at the last layer for outputs z (points, outputs) and one target (1, …)."""
        activation, loss = self.chain.stages[-1].activation, self.view.model.loss

        def total(z: Tensor) -> Tensor:
            outputs = activation.value(z)
            return loss.per_record(outputs, target.expand(len(z), *target.shape[1:])).sum()

        gradient: Tensor = torch.func.grad(total)(logits)
        return gradient

    def last_layers(self) -> list[tuple[LastLayer, Tensor]]:
        """The possible inputs and output gradients of the last layer, each with its target.

        The ones that explain the layer's own gradient come first; those that clearly do not are
        left out.

        Raises:
            NotApplicable: the layer's gradient is zero, or no output gives it.
        """
        stage, update = self.chain.stages[-1], self.view.update
        weight, bias = update[stage.weight_name], update.get(stage.bias_name or "")
        cases: list[tuple[LastLayer, Tensor]] = []
        for target in self.targets():
            if bias is not None:
                cases.append((with_bias(weight, bias), target))
            elif stage.bias is None and not self.view.length_known:
                raise NotApplicable(
                    f"{stage.layer} has no bias, so that its output follows from the gradient's "
                    "length, which is not known; give --rate"
                )
            elif stage.bias is None:
                ends = without_bias(weight, stage.weight, partial(self.output_gradient, target))
                cases.extend((end, target) for end in ends)
            else:
                raise NotApplicable(
                    f"the update of {stage.layer}'s bias was not shared, so that the scale of its "
                    "output's gradient is not known"
                )
        ranked: list[tuple[float, tuple[LastLayer, Tensor]]] = []
        for end, target in cases:
            z = stage.linear(end.x) + stage.offset
            expected = self.output_gradient(target, z[None])[0]
            ranked.append((float((expected - end.delta).norm() / end.delta.norm()), (end, target)))
        if not ranked:
            raise NotApplicable("no output of the last layer gives the gradient that was shared")
        ranked.sort(key=lambda case: case[0])
        return [case for miss, case in ranked if miss <= max(_CLOSE, ranked[0][0])]

    def mismatch(self, record: Tensor, target: Tensor) -> float:
        """Compute ‖ĝ − g‖² / ‖g‖² between a record's gradient and the shared one."""
        update = self.view.update
        simulated = self.view.simulated(record[None], target)
        missed = sum(float((simulated[n] - update[n]).square().sum()) for n in update)
        return missed / (sum(float(part.square().sum()) for part in update.values()) or 1.0)


def of_one_record(view: AttackerView, attack: str) -> AttackerView:
    """Convert the view to float64 (on a device that has it), if it is of one record's gradient.

    Raises:
        NotApplicable: it is not.
        AuditError: the update is not finite.
    """
    if view.batch != 1:
        raise NotApplicable(
            f"{attack} reconstructs a single record; this update is of {view.batch}: "
            "try --batch-size 1"
        )
    if view.training is not None and not view.training.gives_gradient(1):
        raise NotApplicable(
            f"{attack} needs a gradient; this update is of several local steps, or of Adam: try "
            "FedSGD"
        )
    if not all(bool(part.isfinite().all()) for part in view.update.values()):
        raise AuditError(f"{attack}: the update has values that are not finite")
    if view.discrete or view.looked_up:
        raise NotApplicable(f"{attack} solves for real numbers; these records are of tokens")
    device = view.model.device
    return view.in_precision(torch.float64, torch.device("cpu") if device.type == "mps" else device)
