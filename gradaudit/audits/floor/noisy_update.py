"""The noisy updates that a floor bounds: their layers, defenses and records.

A mean over records moves with one of them as its gradient does. An update of several local steps,
of records that weigh differently, or clipped as a whole, moves with it through what the client
makes of it beside the others; they and the order of the steps are drawn, and known to the attacker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Self, TypeVar

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.floor import Floor, FloorOptions
from gradaudit.audits.floor.information import Information, layer_information
from gradaudit.audits.floor.playing import AttackedRecords
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import UpdateLaw, update_laws
from gradaudit.audits.floor.release import Release, releases_of
from gradaudit.audits.floor.smoothness import jumps
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.defenses import Chain
from gradaudit.defenses.base import module_of
from gradaudit.defenses.dp import DpNoise
from gradaudit.errors import NotApplicable
from gradaudit.executors.workers import Workers
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer, Target, shared_parameters
from gradaudit.progress import Advance
from gradaudit.sharing.companions import Companions
from gradaudit.subject import Subject

Told = TypeVar("Told", Information, UpdateLaw)
FITTED, BY_LABEL = "fitted", "by-label"
_COMPANIONS = 256
"""Most records of the data from which a client's other records are drawn."""
NO_NOISE = (
    "no noise: nothing bounds an attacker; add some (--defense dp:clip=…,sigma=…, or --sigma)"
)


@dataclass(frozen=True)
class NoisyUpdate:
    """Updates that one record is in, how they leave, and why some of their layers have no floor.

    Attributes:
        updates: how many updates are made at each checkpoint's model, oldest first.
        layers: all that is shared, biases too.
        releases: how it leaves.
        reasons: by layer, why it has no floor.
        prior: of the records.
        labels: of the records to draw.
        companions: who else is in an update; None where it is a mean over records.
        laws: of every layer's part of the updates, where that is known.
    """

    updates: tuple[tuple[Target, int], ...]
    layers: tuple[Layer, ...]
    releases: tuple[Release, ...]
    reasons: Mapping[str, str]
    prior: GaussianPrior
    labels: Tensor
    companions: Companions | None = None
    laws: Mapping[str, UpdateLaw] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        audit: Floor,
        subject: Subject,
        updates: Sequence[tuple[Target, int]],
        prior: GaussianPrior,
        labels: Tensor,
    ) -> Self:
        """Collect what clients share and how; raises the errors of ``how_it_leaves``."""
        target, shape = updates[-1][0], (1, *subject.records.inputs.shape[1:])
        layers = shared_layers(target, subject.layers, subject.hidden)
        trained = shared_layers(target, subject.layers, ())
        releases = how_it_leaves(audit.options, subject, target)
        companions = _companions(audit.options, subject)
        rough: dict[str, str] = {}
        for each, _ in updates:
            view = FunctionalModel.of(each, dtype=torch.float64, seed=subject.seed)
            first = view.cast(prior.mean.reshape(shape)), view.cast(labels[:1])
            rough |= jumps(view, trained, *first)
        if companions is not None and (why := _carried(companions, rough)):
            rough = {layer.name: rough.get(layer.name, why) for layer in layers}
        reasons = _spread(rough, layers, releases)
        return cls(tuple(updates), layers, releases, reasons, prior, labels, companions)

    def release(self, layer: Layer) -> Release | None:
        """How a layer leaves; None without noise."""
        return next((one for one in self.releases if one.holds(layer)), None)

    def why_not(self, layers: Sequence[Layer]) -> str:
        """Why these layers have no floor together; empty where they have one."""
        for layer in layers:
            if why := NO_NOISE if self.release(layer) is None else self.reasons.get(layer.name):
                return why if len(layers) == 1 else f"{layer.name}: {why}"
        return ""

    def informations(
        self, subject: Subject, advance: Advance, workers: Workers
    ) -> dict[str, Information]:
        """The information Ã of every layer that has a floor."""
        smooth = [layer for layer in self.layers if not self.why_not([layer])]
        if not smooth:
            return {}
        found = [
            layer_information(
                target,
                smooth,
                self.prior,
                self.labels,
                shape=subject.records.inputs.shape[1:],
                seed=subject.seed,
                genie_of=self.updates[-1][0],
                clips=self.releases,
                companions=self.companions,
                memory=subject.memory,
                advance=advance,
                workers=workers,
            )
            for target, _ in self.updates
        ]
        fisher = {layer.name: one.fisher for layer in smooth if (one := self.release(layer))}
        return {name: one * fisher[name] for name, one in self._over_updates(found).items()}

    def laws_of(self, subject: Subject) -> dict[str, UpdateLaw]:
        """Compute each layer's law of updates; none if records have no gradients of their own."""
        noisy = [layer for layer in self.layers if self.release(layer) is not None]
        shape, seed = subject.records.inputs.shape[1:], subject.seed
        law_of = partial(update_laws, shape=shape, seed=seed, memory=subject.memory)
        how = noisy, self.prior, self.labels, self.releases
        try:
            found = [law_of(target, *how, companions=self.companions) for target, _ in self.updates]
        except NotApplicable:
            return {}
        return self._over_updates(found)

    def _over_updates(self, found: Sequence[Mapping[str, Told]]) -> dict[str, Told]:
        """Add up the information of every update of a layer, over all checkpoints."""
        pairs = list(zip(found, (count for _, count in self.updates), strict=True))
        names = [name for name in found[0] if all(name in parts for parts in found)]
        return {n: reduce(add, (parts[n] * count for parts, count in pairs)) for n in names}

    def law(self, layers: Sequence[Layer]) -> UpdateLaw | None:
        """The law of what these layers share together; None where it is not known."""
        if any(layer.name not in self.laws for layer in layers):
            return None
        return reduce(add, (self.laws[layer.name] for layer in layers))

    def attacked(self, subject: Subject, records: int) -> AttackedRecords | None:
        """Records of the prior that are attacked; None where there are to be none."""
        if not records:
            return None
        views = [
            (FunctionalModel.of(target, dtype=torch.float64, seed=subject.seed), count)
            for target, count in self.updates
        ]
        drawn = self.prior.draw(records, torch_rng(subject.seed, "floor", "attacked"))
        labels = self.labels[torch.arange(records) % len(self.labels)]
        moved = self.prior.of_labels(drawn, labels)
        shaped = moved.reshape(-1, *subject.records.inputs.shape[1:])
        given = [views[-1][0].cast(each) for each in (shaped, labels)]
        how = self.releases, subject.seed, self.companions
        return AttackedRecords(views, self.prior, given[0], given[1], *how)

    def facts(self, options: FloorOptions) -> dict[str, JsonValue]:
        """Facts of every row: the attacker's knowledge, and the quantity that the floor bounds."""
        prior, fitted = self.prior, options.prior in (FITTED, BY_LABEL)
        return {
            "attacker": "knows weights, labels, other records of the batch, noise law and prior",
            "prior": options.prior,
            "prior_variance": prior.variance,
            **({"prior_shrinkage": prior.shrinkage} if fitted else {}),
            "directions": prior.leading,
            "directions_in_groups": prior.size - prior.leading,
            "batch_size": options.batch_size,
            "local_steps": options.steps(options.batch_size),
            "clients": 1 + options.others,
            "updates": sum(count for _, count in self.updates),
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
        UsageError: a defense names parameters that the model does not share, or clips single
            records in local training.
        NotApplicable: a defense clips single records in an update that is no mean over them, or
            the noise bounds nothing.
    """
    names, chain = shared_parameters(target.model, subject.hidden), Chain(subject.defenses)
    chain.check(names)
    records = 1 if entangled(options, subject) else options.batch_size
    return releases_of(chain, names, records, options.sigma, clients=1 + options.others)


def entangled(options: FloorOptions, subject: Subject) -> bool:
    """Whether a client's update is something else than a mean of what each record adds to it.

    Raises:
        UsageError: options contradict one another, or the defenses.
        NotApplicable: it is, and a defense clips single records.
    """
    training = options.sharing(subject.defenses, subject.hidden).training
    records, noises = options.batch_size, [d for d in subject.defenses if isinstance(d, DpNoise)]
    stepped = training is not None and not training.gives_gradient(records)
    weighted = subject.target.loss.weights(subject.records.labels) is not None
    whole = any(not noise.of_records for noise in noises)
    if not stepped and (records == 1 or not (weighted or whole)):
        return False
    if clipping := next((noise for noise in noises if noise.of_records), None):
        raise NotApplicable(
            f"--defense {clipping}: clips single records of an update that is no plain mean over "
            "them; use per=release, or --batch-size 1"
        )
    return True


def gradients_behind(options: FloorOptions, subject: Subject) -> float:
    """Estimate the gradients that one update takes for each of its records."""
    if not entangled(options, subject):
        return 1.0
    return options.passes(options.batch_size) / (1 + options.others)


def _companions(options: FloorOptions, subject: Subject) -> Companions | None:
    if not entangled(options, subject):
        return None
    view, records = FunctionalModel.of(subject.target, dtype=torch.float64), subject.records
    chosen = rng(subject.seed, "floor", "companions").permutation(len(records))[:_COMPANIONS]
    known = records.take(chosen)
    training = options.sharing(subject.defenses, subject.hidden).training
    return Companions(
        view.cast(known.inputs), view.cast(known.labels), options.batch_size, training
    )


def _carried(companions: Companions, rough: Mapping[str, str]) -> str:
    """Say why no layer's update has a derivative after local steps; empty where all have one."""
    training = companions.training
    if training is not None and training.optimizer != "sgd":
        return (
            "Adam moves an element by little more than the sign of its gradient, which jumps: no "
            "floor; train with --optimizer sgd"
        )
    if companions.several and rough:
        name, why = next(iter(rough.items()))
        return f"later local steps carry on what jumps in {name}: {why}"
    return ""


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
