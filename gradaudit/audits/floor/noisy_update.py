"""The noisy updates that a floor bounds: their layers, defenses and records.

A mean over records moves with one of them as its gradient does. Other updates are refused: of
several local steps, of records that weigh differently, or clipped as a whole with others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.floor import Floor, FloorOptions
from gradaudit.audits.floor.information import layer_information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release, releases_of
from gradaudit.audits.floor.smoothness import jumps
from gradaudit.defenses import Chain
from gradaudit.defenses.base import module_of
from gradaudit.defenses.dp import DpNoise
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer, Target, shared_parameters
from gradaudit.progress import Advance
from gradaudit.subject import Subject

NO_NOISE = (
    "no noise: nothing bounds an attacker; add some (--defense dp:clip=…,sigma=…, or --sigma)"
)


@dataclass(frozen=True)
class NoisyUpdate:
    """An update that one record is in, how it leaves, and why some of its layers have no floor.

    Attributes:
        target: the checkpoint's model.
        layers: all that is shared, biases too.
        releases: how it leaves.
        reasons: by layer, why it has no floor.
        prior: of the records.
        labels: of the records to draw.
    """

    target: Target
    layers: tuple[Layer, ...]
    releases: tuple[Release, ...]
    reasons: Mapping[str, str]
    prior: GaussianPrior
    labels: Tensor

    @classmethod
    def of(
        cls,
        audit: Floor,
        subject: Subject,
        target: Target,
        prior: GaussianPrior,
        labels: Tensor,
    ) -> Self:
        """Collect what clients share and how; raises the errors of ``how_it_leaves``."""
        shape = (1, *subject.records.inputs.shape[1:])
        layers = shared_layers(target, subject.layers, subject.hidden)
        trained = shared_layers(target, subject.layers, ())
        releases = how_it_leaves(audit.options, subject, target)
        view = FunctionalModel.of(target, dtype=torch.float64, seed=subject.seed)
        first = view.cast(prior.mean.reshape(shape)), view.cast(labels[:1])
        reasons = _spread(jumps(view, trained, *first), layers, releases)
        return cls(target, layers, releases, reasons, prior, labels)

    def release(self, layer: Layer) -> Release | None:
        """How a layer leaves; None without noise."""
        return next((one for one in self.releases if one.holds(layer)), None)

    def why_not(self, layers: Sequence[Layer]) -> str:
        """Why these layers have no floor together; empty where they have one."""
        for layer in layers:
            if why := NO_NOISE if self.release(layer) is None else self.reasons.get(layer.name):
                return why if len(layers) == 1 else f"{layer.name}: {why}"
        return ""

    def informations(self, subject: Subject, advance: Advance, workers: int) -> dict[str, Tensor]:
        """The information Ã of every layer that has a floor, by units."""
        smooth = [layer for layer in self.layers if not self.why_not([layer])]
        if not smooth:
            return {}
        found = layer_information(
            self.target,
            smooth,
            self.prior,
            self.labels,
            shape=subject.records.inputs.shape[1:],
            seed=subject.seed,
            clips=self.releases,
            memory=subject.memory,
            advance=advance,
            workers=workers,
        )
        fisher = {layer.name: one.fisher for layer in smooth if (one := self.release(layer))}
        return {name: units * fisher[name] for name, units in found.items()}

    def facts(self, options: FloorOptions) -> dict[str, JsonValue]:
        """Facts of every row: the attacker's knowledge, and the quantity that the floor bounds."""
        prior = self.prior
        return {
            "attacker": "knows weights, labels, other records of the batch, noise law and prior",
            "prior": "fitted",
            "prior_variance": prior.variance,
            "prior_shrinkage": prior.shrinkage,
            "directions": len(prior.axes),
            "directions_in_groups": prior.grouped,
            "batch_size": options.batch_size,
            "clients": 1 + options.others,
        }


def shared_layers(
    target: Target, shown: Sequence[Layer], hidden: Sequence[str]
) -> tuple[Layer, ...]:
    """Every shared parameter, biases too, by a shown layer's name, else by its module's."""
    owners = {name: layer.name for layer in shown for name in layer.parameter_names}
    sizes = {name: parameter.numel() for name, parameter in target.model.named_parameters()}
    names: dict[str, list[str]] = {}
    for name in shared_parameters(target.model, hidden):
        names.setdefault(owners.get(name, module_of(name)), []).append(name)
    kinds = {layer.name: layer.kind for layer in shown}
    return tuple(
        Layer(name, kinds.get(name, ""), place, tuple(own), sum(sizes[one] for one in own))
        for place, (name, own) in enumerate(names.items())
    )


def how_it_leaves(options: FloorOptions, subject: Subject, target: Target) -> tuple[Release, ...]:
    """How each shared parameter of a model leaves; none where nothing adds noise.

    Raises:
        UsageError: a defense names parameters that the model does not share.
        NotApplicable: the update is no mean of what its records add, or the noise bounds nothing.
    """
    names, chain = shared_parameters(target.model, subject.hidden), Chain(subject.defenses)
    chain.check(names)
    _expect_mean(options, subject)
    return releases_of(chain, names, options.batch_size, options.sigma, clients=1 + options.others)


def _expect_mean(options: FloorOptions, subject: Subject) -> None:
    """Raise an error where a client's update is no mean of what each of its records adds.

    Raises:
        NotApplicable: it takes local steps, weighs its records, or clips them as a whole.
    """
    training = options.sharing(subject.defenses, subject.hidden).training
    if training is not None and not training.gives_gradient(options.batch_size):
        raise NotApplicable("local steps: a floor is known of the mean gradient of a batch alone")
    if options.batch_size == 1:
        return
    if subject.target.loss.weights(subject.records.labels) is not None:
        raise NotApplicable(
            "the loss weighs records, so an update is no plain mean over them; a floor is known of "
            "--batch-size 1"
        )
    for defense in subject.defenses:
        if isinstance(defense, DpNoise) and not defense.of_records:
            raise NotApplicable(
                f"--defense {defense}: clips the batch as a whole; a floor is known of per=record, "
                "or of --batch-size 1"
            )


def _spread(
    reasons: Mapping[str, str], layers: Sequence[Layer], releases: Sequence[Release]
) -> dict[str, str]:
    """Why layers have no floor, those included that are clipped together with one."""
    spread = dict(reasons)
    for release in releases:
        if release.clip is None:
            continue
        members = [layer.name for layer in layers if release.holds(layer)]
        culprit = next((name for name in members if name in reasons), None)
        if culprit is not None:
            why = f"is clipped together with {culprit}: {reasons[culprit]}"
            spread |= {name: why for name in members if name not in reasons}
    return spread
