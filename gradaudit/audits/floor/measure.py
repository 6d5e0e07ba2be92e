"""Floors of every attacker: from a target, its noise and a prior to rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Self

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.base import AuditCost
from gradaudit.audits.floor import Floor, FloorOptions
from gradaudit.audits.floor.functionals import Functional, log_chance, nats, share, success
from gradaudit.audits.floor.gap_rows import GapRows, attacked, tangents
from gradaudit.audits.floor.information import Information, layer_information, sum_of_layers
from gradaudit.audits.floor.matrix_weights import LOCAL
from gradaudit.audits.floor.playing import AttackedRecords
from gradaudit.audits.floor.prior import GaussianPrior, prior_of_file
from gradaudit.audits.floor.rate_distortion import UpdateLaw, update_laws
from gradaudit.audits.floor.release import Release, releases_of
from gradaudit.audits.floor.smoothness import jumps
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.audits.rows import Rows, by_round
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.defenses import Chain
from gradaudit.defenses.base import module_of
from gradaudit.errors import NotApplicable
from gradaudit.executors.workers import Workers
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer, Target, shared_parameters
from gradaudit.progress import Advance, Progress
from gradaudit.report import Measurement
from gradaudit.statistics import CONFIDENCE
from gradaudit.subject import Subject

_DRAWS, _MOST_DRAWS, _FEWEST = 64, 1024, 4
_CHEAP = 1e8
"""Tangents times parameters that more draws may take; some seconds."""
_FITTED, _BY_LABEL = "fitted", "by-label"
_CONFIDENT = (1 + CONFIDENCE) / 2
"""Probability that the true number is on the safe side of the one that is reported."""
_PASSES_A_DIRECTION = 2.0
FUNCTIONALS: Mapping[str, Functional] = {"mse_share": share, "nats": nats}
_NO_NOISE = (
    "no noise: nothing bounds an attacker; add some (--defense dp:clip=…,sigma=…, or --sigma)"
)


def cost(audit: Floor, subject: Subject) -> AuditCost:
    """Tangents in every direction for every drawn record.

    Raises:
        NotApplicable: there is no noise.
    """
    _expect_noise(_releases(audit.options, subject, subject.target))
    directions = min(audit.options.directions, subject.records.inputs[0].numel())
    draws = subject.samples or _affordable(audit.options, subject)
    local = 3 * min(directions, LOCAL) * draws // 2
    moved = directions * draws + local + attacked(audit.options, subject) * tangents(subject)
    return AuditCost(passes=_PASSES_A_DIRECTION * moved * len(subject.targets))


def run(audit: Floor, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer and of the model; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: there is no noise, no prior for such inputs, or too few draws.
        UsageError: the prior's file holds none.
        AuditError: the model cannot be run on the records, or differentiated by them.
    """
    options = audit.options
    for target in subject.targets:
        _expect_noise(_releases(options, subject, target))
    prior, labels = _drawn(options, subject, _affordable(options, subject))
    for target, variant in by_round(subject):
        case = NoisyUpdate.of(audit, subject, target, prior, labels)
        rows = Rows(type(audit), variant, case.facts(options))
        gaps = GapRows(rows, case.attacked(subject, attacked(options, subject)))
        with progress.task("floor", len(labels)) as advance:
            infos = case.informations(subject, advance, subject.workers.on(str(variant)))
        case = replace(case, laws=case.laws_of(subject))
        yield from _rows(gaps, case, infos, options, subject)


def _affordable(options: FloorOptions, subject: Subject) -> int:
    """How many records to draw where nobody says: more of small models, whose floors vary most."""
    directions = min(options.directions, subject.records.inputs[0].numel())
    parameters = sum(parameter.numel() for parameter in subject.target.model.parameters())
    return min(_MOST_DRAWS, max(_DRAWS, int(_CHEAP / (directions * max(1, parameters)))))


def _drawn(options: FloorOptions, subject: Subject, draws: int) -> tuple[GaussianPrior, Tensor]:
    """The prior, and the labels of the records that are drawn from it, as many as are asked for."""
    records = subject.records
    if records.looked_up:
        raise NotApplicable(
            "the inputs are tokens or codes, which do not vary continuously: no prior has a density"
        )
    draws = subject.samples or draws
    if draws < _FEWEST:
        raise NotApplicable(
            f"{draws} drawn records tell no error; draw {_FEWEST} or more (--samples)"
        )
    prior = _prior(options, records.inputs, records.labels)
    chosen = rng(subject.seed, "floor", "labels").integers(len(records), size=draws)
    return prior, records.labels[torch.from_numpy(chosen)]


@dataclass(frozen=True)
class NoisyUpdate:
    """One target's update, how it leaves, and why some of its layers have no floor.

    Attributes:
        target: the model.
        layers: all that is shared, biases too.
        releases: how it leaves.
        reasons: by layer, why it has no floor.
        prior: of the records.
        labels: of the records to draw.
        laws: of every layer's part of the update, where that is known.
    """

    target: Target
    layers: tuple[Layer, ...]
    releases: tuple[Release, ...]
    reasons: Mapping[str, str]
    prior: GaussianPrior
    labels: Tensor
    laws: Mapping[str, UpdateLaw] = field(default_factory=dict)

    @classmethod
    def of(
        cls, audit: Floor, subject: Subject, target: Target, prior: GaussianPrior, labels: Tensor
    ) -> Self:
        """Look at what is shared and how."""
        if audit.options.batch_size > 1 and target.loss.weights(labels) is not None:
            raise NotApplicable(
                "records weigh differently in a batch, so one's share in it is not known; use "
                "--batch-size 1"
            )
        layers = shared_layers(target, subject.layers, subject.hidden)
        releases = _releases(audit.options, subject, target)
        view = FunctionalModel.of(target, dtype=torch.float64, seed=subject.seed)
        first = prior.mean.reshape(1, *subject.records.inputs.shape[1:])
        rough = jumps(view, layers, view.cast(first), view.cast(labels[:1]))
        return cls(target, layers, releases, _spread(rough, layers, releases), prior, labels)

    def release(self, layer: Layer) -> Release | None:
        """How a layer leaves; None without noise."""
        names = set(layer.parameter_names)
        return next((one for one in self.releases if names <= one.members), None)

    def tied_to(self, layers: Sequence[Layer]) -> list[Layer]:
        """Layers whose information bounds that of these: these, and the layers tied to them."""
        tied = {one for layer in layers if (one := self.release(layer)) is not None and one.tied}
        return [each for each in self.layers if each in layers or self.release(each) in tied]

    def why_not(self, layers: Sequence[Layer]) -> str:
        """Why these layers have no floor together; empty where they have one."""
        for layer in layers:
            if why := _NO_NOISE if self.release(layer) is None else self.reasons.get(layer.name):
                return why if len(layers) == 1 else f"{layer.name}: {why}"
        return ""

    def informations(
        self, subject: Subject, advance: Advance, workers: Workers
    ) -> dict[str, Information]:
        """The information Ã of every layer that has a floor."""
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
        return {name: parts * fisher[name] for name, parts in found.items()}

    def laws_of(self, subject: Subject) -> dict[str, UpdateLaw]:
        """The law of every layer's part of the update; empty where none can be told."""
        noisy = [layer for layer in self.layers if self.release(layer) is not None]
        shape, seed = subject.records.inputs.shape[1:], subject.seed
        how = self.target, noisy, self.prior, self.labels, self.releases
        try:
            return update_laws(*how, shape=shape, seed=seed, memory=subject.memory)
        except NotApplicable:
            return {}

    def law(self, layers: Sequence[Layer]) -> UpdateLaw | None:
        """The law of what these layers share together; None where it is not known."""
        if any(layer.name not in self.laws for layer in layers):
            return None
        return reduce(add, (self.laws[layer.name] for layer in layers))

    def attacked(self, subject: Subject, records: int) -> AttackedRecords | None:
        """Records of the prior that are attacked; None where there are to be none."""
        if not records:
            return None
        view = FunctionalModel.of(self.target, dtype=torch.float64, seed=subject.seed)
        drawn = self.prior.draw(records, torch_rng(subject.seed, "floor", "attacked"))
        labels = self.labels[torch.arange(records) % len(self.labels)]
        moved = self.prior.of_labels(drawn, labels)
        shaped = moved.reshape(-1, *subject.records.inputs.shape[1:])
        return AttackedRecords(
            view, self.prior, view.cast(shaped), view.cast(labels), self.releases, subject.seed
        )

    def facts(self, options: FloorOptions) -> dict[str, JsonValue]:
        """Facts of every row: the attacker's knowledge, and the quantity that the floor bounds."""
        prior, fitted = self.prior, options.prior in (_FITTED, _BY_LABEL)
        return {
            "attacker": "knows weights, labels, other records of the batch, noise law and prior",
            "prior": options.prior,
            "prior_variance": prior.variance,
            **({"prior_shrinkage": prior.shrinkage} if fitted else {}),
            "directions": prior.leading,
            "directions_in_groups": prior.size - prior.leading,
            "batch_size": options.batch_size,
            "updates": 1,
        }


def case_of(audit: Floor, subject: Subject) -> NoisyUpdate:
    """How the target's update leaves, and what its records are drawn from.

    Raises:
        NotApplicable: there is no prior for such inputs, or too few draws.
        UsageError: the prior's file holds none.
    """
    return NoisyUpdate.of(audit, subject, subject.target, *_drawn(audit.options, subject, _DRAWS))


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


def _releases(options: FloorOptions, subject: Subject, target: Target) -> tuple[Release, ...]:
    names, chain = shared_parameters(target.model, subject.hidden), Chain(subject.defenses)
    chain.check(names)
    return releases_of(chain, names, options.batch_size, options.sigma)


def _expect_noise(releases: Sequence[Release]) -> None:
    if not releases:
        raise NotApplicable(_NO_NOISE)


def _prior(options: FloorOptions, inputs: Tensor, labels: Tensor) -> GaussianPrior:
    size = inputs[0].numel()
    if options.prior == _BY_LABEL:
        if labels.dim() != 1 or labels.is_floating_point():
            raise NotApplicable(
                "--prior by-label: the records have no classes; give fitted, or a file"
            )
        prior = GaussianPrior.by_label(inputs.flatten(1), labels, options.directions)
    elif options.prior == _FITTED:
        prior = GaussianPrior.fitted(inputs.flatten(1), options.directions)
    else:
        return prior_of_file(Path(options.prior), size, options.directions)
    if not prior.variance > 0:
        raise NotApplicable("all records are alike, so a fitted prior leaves nothing to learn")
    return prior


def _spread(
    reasons: Mapping[str, str], layers: Sequence[Layer], releases: Sequence[Release]
) -> dict[str, str]:
    """Why layers have no floor, those included that are clipped together with one."""
    spread = dict(reasons)
    for release in releases:
        if release.clip is None:
            continue
        members = [layer.name for layer in layers if set(layer.parameter_names) <= release.members]
        culprit = next((name for name in members if name in reasons), None)
        if culprit is not None:
            why = f"is clipped together with {culprit}: {reasons[culprit]}"
            spread |= {name: why for name in members if name not in reasons}
    return spread


def _rows(
    gaps: GapRows,
    case: NoisyUpdate,
    infos: Mapping[str, Information],
    options: FloorOptions,
    subject: Subject,
) -> Iterator[Measurement]:
    by_name = {layer.name: layer for layer in case.layers}
    for shown in subject.layers:
        yield from _of_layers(gaps, case, infos, options, shown.name, [by_name[shown.name]])
    yield from _of_layers(gaps, case, infos, options, None, case.layers)


def _of_layers(
    gaps: GapRows,
    case: NoisyUpdate,
    infos: Mapping[str, Information],
    options: FloorOptions,
    name: str | None,
    layers: Sequence[Layer],
) -> Iterator[Measurement]:
    """The rows of one layer, or of the model."""
    rows, why, law = gaps.rows, case.why_not(layers), case.law(layers)
    if why and law is None:
        floors = list(rows.skipped(why, FUNCTIONALS, [name]))
    elif why:
        floors = list(_measured(rows.of({}, {"by_law_alone": why}), case, None, law, name))
    else:
        together = sum_of_layers(infos[each.name] for each in case.tied_to(layers))
        floors = list(_measured(rows, case, together, law, name))
    yield from floors
    yield _reconstructed(rows, case, options, name, layers)
    yield gaps.row(name, layers, {row.metric: row for row in floors}, case.prior)


def _measured(
    rows: Rows,
    case: NoisyUpdate,
    information: Information | None,
    law: UpdateLaw | None,
    name: str | None,
) -> Iterator[Measurement]:
    if not _finite(information, law):
        yield from rows.failed("its gradients are not finite", FUNCTIONALS, [name])
        return
    for metric, functional in FUNCTIONALS.items():
        found = van_trees_bound(functional, information, case.prior, law)
        details: dict[str, JsonValue] = {"estimate": found.value}
        if metric == "mse_share":
            details["mse"] = found.safe * case.prior.variance / case.prior.size
        yield rows.measured(
            metric,
            found.safe,
            layer=name,
            confidence=_CONFIDENT,
            n=len(case.labels),
            details=details,
        )


def _finite(information: Information | None, law: UpdateLaw | None) -> bool:
    told = information is None or information.finite
    return told and (law is None or bool(law.gram.isfinite().all()))


def _reconstructed(
    rows: Rows, case: NoisyUpdate, options: FloorOptions, name: str | None, layers: Sequence[Layer]
) -> Measurement:
    """The bound on how often any attacker succeeds."""
    found = [case.release(layer) for layer in layers]
    releases = [release for release in found if release is not None]
    if len(releases) < len(layers):
        (row,) = rows.skipped(case.why_not(layers), ["rero"], [name])
        return row
    sizes = {
        release: sum(layer.parameters for layer in layers if case.release(layer) is release)
        for release in releases
    }
    blind = log_chance(case.prior, options.within)
    try:
        chance = success(list(sizes), list(sizes.values()), blind)
    except NotApplicable as why:
        (row,) = rows.skipped(str(why), ["rero"], [name])
        return row
    details: dict[str, JsonValue] = {
        "within": options.within,
        "log10_blind_chance": blind / math.log(10),
    }
    return rows.measured("rero", chance, layer=name, details=details)
