"""Floors of every attacker: from a target, its noise and a prior to rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.base import AuditCost
from gradaudit.audits.floor import Floor, FloorOptions
from gradaudit.audits.floor.functionals import Functional, log_chance, nats, share, success
from gradaudit.audits.floor.information import Information, sum_of_layers
from gradaudit.audits.floor.matrix_weights import LOCAL
from gradaudit.audits.floor.noisy_update import (
    BY_LABEL,
    FITTED,
    NO_NOISE,
    NoisyUpdate,
    how_it_leaves,
)
from gradaudit.audits.floor.playing import GapRows, attacked, tangents
from gradaudit.audits.floor.prior import GaussianPrior, prior_of_file
from gradaudit.audits.floor.rate_distortion import UpdateLaw
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.audits.rows import Rows, by_round
from gradaudit.core.randomness import rng
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.statistics import CONFIDENCE
from gradaudit.subject import Subject

_DRAWS, _MOST_DRAWS, _FEWEST = 64, 1024, 4
_CHEAP = 1e8
"""Tangents times parameters that more draws may take; some seconds."""
_CONFIDENT = (1 + CONFIDENCE) / 2
"""Probability that the true number is on the safe side of the one that is reported."""
_PASSES_A_DIRECTION = 2.0
FUNCTIONALS: Mapping[str, Functional] = {"mse_share": share, "nats": nats}


def cost(audit: Floor, subject: Subject) -> AuditCost:
    """Tangents in every direction for every drawn record.

    Raises:
        NotApplicable: there is no noise.
    """
    _expect_noise(how_it_leaves(audit.options, subject, subject.target))
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
        _expect_noise(how_it_leaves(options, subject, target))
    prior, labels = _drawn(options, subject, _affordable(options, subject))
    for updates, variant in _updates(options, subject):
        case = NoisyUpdate.of(audit, subject, updates, prior, labels)
        rows = Rows(type(audit), variant, case.facts(options))
        gaps = GapRows(rows, case.attacked(subject, attacked(options, subject)))
        with progress.task("floor", len(labels) * len(updates)) as advance:
            infos = case.informations(subject, advance, subject.workers.on(str(variant)))
        case = replace(case, laws=case.laws_of(subject))
        yield from _rows(gaps, case, infos, options, subject)


def _updates(
    options: FloorOptions, subject: Subject
) -> Iterator[tuple[list[tuple[Target, int]], Variant]]:
    """List the updates that a floor is about, with how many are made at each checkpoint.

    With one round every checkpoint's update has a floor of its own. More rounds have one together,
    and are dealt to the newest checkpoints evenly; the newest take what is left over.
    """
    if options.rounds == 1:
        for target, variant in by_round(subject):
            yield [(target, 1)], variant
        return
    targets = subject.targets[-options.rounds :]
    each, more = divmod(options.rounds, len(targets))
    counts = [each + (len(targets) - place <= more) for place in range(len(targets))]
    yield list(zip(targets, counts, strict=True)), {}


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


def case_of(audit: Floor, subject: Subject) -> NoisyUpdate:
    """How the target's update leaves, and what its records are drawn from.

    Raises:
        NotApplicable: there is no prior for such inputs, or too few draws.
        UsageError: the prior's file holds none.
    """
    return NoisyUpdate.of(
        audit, subject, [(subject.target, 1)], *_drawn(audit.options, subject, _DRAWS)
    )


def _expect_noise(releases: Sequence[Release]) -> None:
    if not releases:
        raise NotApplicable(NO_NOISE)


def _prior(options: FloorOptions, inputs: Tensor, labels: Tensor) -> GaussianPrior:
    size = inputs[0].numel()
    if options.prior == BY_LABEL:
        if labels.dim() != 1 or labels.is_floating_point():
            raise NotApplicable(
                "--prior by-label: the records have no classes; give fitted, or a file"
            )
        prior = GaussianPrior.by_label(inputs.flatten(1), labels, options.directions)
    elif options.prior == FITTED:
        prior = GaussianPrior.fitted(inputs.flatten(1), options.directions)
    else:
        return prior_of_file(Path(options.prior), size, options.directions)
    if not prior.variance > 0:
        raise NotApplicable("all records are alike, so a fitted prior leaves nothing to learn")
    return prior


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
    blind, rounds = log_chance(case.prior, options.within), options.rounds
    try:
        chance = success(list(sizes) * rounds, list(sizes.values()) * rounds, blind)
    except NotApplicable as why:
        (row,) = rows.skipped(str(why), ["rero"], [name])
        return row
    details: dict[str, JsonValue] = {
        "within": options.within,
        "log10_blind_chance": blind / math.log(10),
    }
    return rows.measured("rero", chance, layer=name, details=details)
