"""Floors of every attacker: from a target, its noise and a prior to rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.floor import GAP, Floor, FloorOptions
from gradaudit.audits.floor.functionals import Functional, log_chance, nats, share, success
from gradaudit.audits.floor.information import Information, sum_of_layers
from gradaudit.audits.floor.matrix_weights import LOCAL
from gradaudit.audits.floor.noisy_update import (
    BY_LABEL,
    FITTED,
    NO_NOISE,
    NoisyUpdate,
    gradients_behind,
    how_it_leaves,
)
from gradaudit.audits.floor.playing import DIRECTIONS, STARTS, STEPS, AttackedRecords
from gradaudit.audits.floor.prior import GaussianPrior, prior_of_file
from gradaudit.audits.floor.rate_distortion import UpdateLaw, nats_shown
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import van_trees_bound
from gradaudit.audits.rows import Rows, by_round
from gradaudit.core.randomness import rng
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.subject import Subject

_DRAWS, _MOST_DRAWS, _FEWEST = 64, 1024, 4
_CHEAP = 1e8
"""Tangents times parameters that more draws may take; some seconds."""
_MOST_ATTACKED, _CHEAP_ATTACKS = 16, 1e9
"""Attacked records by default, and the tangents times parameters that they may take (20 CPU s)."""
_CONFIDENT = (1 + CONFIDENCE) / 2
"""Probability that the true number is on the safe side of the one that is reported."""
_PASSES_A_DIRECTION = 2.0
FUNCTIONALS: Mapping[str, Functional] = {"mse_share": share, "nats": nats}


def cost(audit: Floor, subject: Subject) -> float:
    """Tangents in every direction for every drawn record.

    Raises:
        NotApplicable: there is no noise.
    """
    if not how_it_leaves(audit.options, subject, subject.target):
        raise NotApplicable(NO_NOISE)
    directions = min(audit.options.directions, subject.records.inputs[0].numel())
    draws = subject.samples or _affordable(audit.options, subject)
    local = 3 * min(directions, LOCAL) * draws // 2
    moved = directions * draws + local + attacked(audit.options, subject) * _tangents(subject)
    each = _PASSES_A_DIRECTION * gradients_behind(audit.options, subject)
    return subject.work(gradients=each * moved * len(subject.targets))


def run(audit: Floor, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer and of the model; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: there is no noise, no prior for such inputs, or too few draws.
        UsageError: the prior's file holds none.
        AuditError: the model cannot be run on the records, or differentiated by them.
    """
    options = audit.options
    if not all(how_it_leaves(options, subject, target) for target in subject.targets):
        raise NotApplicable(NO_NOISE)
    prior, labels = _drawn(options, subject, _affordable(options, subject))
    for updates, variant in _updates(options, subject):
        case = NoisyUpdate.of(audit, subject, updates, prior, labels)
        rows = Rows(type(audit), variant, case.facts(options))
        records = case.attacked(subject, attacked(options, subject))
        with progress.task("floor", len(labels) * len(updates)) as advance:
            infos = case.informations(subject, advance, subject.workers)
        case = replace(case, laws=case.laws_of(subject))
        made = _LayerRows(rows, case, infos, records, options)
        by_name = {layer.name: layer for layer in case.layers}
        for shown in subject.layers:
            yield from made.of(shown.name, [by_name[shown.name]])
        yield from made.of(None, case.layers)


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
    each = directions * max(1, parameters) * gradients_behind(options, subject)
    return min(_MOST_DRAWS, max(_DRAWS, int(_CHEAP / each)))


def attacked(options: FloorOptions, subject: Subject) -> int:
    """How many records are attacked: as many as asked for, else those that are cheap enough."""
    if options.attacked is not None:
        return options.attacked
    parameters = sum(parameter.numel() for parameter in subject.target.model.parameters())
    each = _tangents(subject) * gradients_behind(options, subject) * max(1, parameters)
    affordable = int(_CHEAP_ATTACKS / each)
    return min(_MOST_ATTACKED, affordable) if affordable >= _FEWEST else 0


def _tangents(subject: Subject) -> int:
    """Tangents of a record's gradient that its attacks take, by every layer and the model."""
    directions = min(subject.records.inputs[0].numel(), DIRECTIONS)
    return directions * STARTS * STEPS * (len(subject.layers) + 1)


def _drawn(options: FloorOptions, subject: Subject, draws: int) -> tuple[GaussianPrior, Tensor]:
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


@dataclass(frozen=True)
class _LayerRows:
    """Makes the rows of one layer, or of the model.

    Attributes:
        infos: by layer, of those that have a floor.
        attacked: records whose updates are attacked; None where there are none.
    """

    rows: Rows
    case: NoisyUpdate
    infos: Mapping[str, Information]
    attacked: AttackedRecords | None
    options: FloorOptions

    def of(self, name: str | None, layers: Sequence[Layer]) -> Iterator[Measurement]:
        """Yield rows of a set of layers: floors, bound on success, and gap to the best attack."""
        rows, case, why = self.rows, self.case, self.case.why_not(layers)
        law, information = case.law(layers), None
        if why:
            rows = rows.of({}, {"by_law_alone": why})
        else:
            information = sum_of_layers(self.infos[each.name] for each in layers)
        told = [part for part in (information, law) if part is not None]
        if not told:
            floors = list(self.rows.skipped(why, FUNCTIONALS, [name]))
        elif all(part.finite for part in told):
            floors = [self._floor(rows, metric, information, law, name) for metric in FUNCTIONALS]
        else:
            floors = list(rows.failed("its gradients are not finite", FUNCTIONALS, [name]))
        yield from floors
        yield self._often(name, layers)
        yield self._gap(name, layers, {row.metric: row for row in floors})

    def _floor(
        self,
        rows: Rows,
        metric: str,
        information: Information | None,
        law: UpdateLaw | None,
        name: str | None,
    ) -> Measurement:
        prior = self.case.prior
        found = van_trees_bound(FUNCTIONALS[metric], information, prior, law)
        details: dict[str, JsonValue] = {"estimate": found.value}
        if metric == "mse_share":
            details["mse"] = found.safe * prior.variance / prior.size
        count = len(self.case.labels)
        return rows.measured(
            metric, found.safe, layer=name, confidence=_CONFIDENT, n=count, details=details
        )

    def _often(self, name: str | None, layers: Sequence[Layer]) -> Measurement:
        """Bound how often any attacker comes near a record."""
        sizes: dict[Release, int] = {}
        for layer in layers:
            release = self.case.release(layer)
            if release is None:
                return next(self.rows.skipped(self.case.why_not(layers), ["rero"], [name]))
            sizes[release] = sizes.get(release, 0) + layer.parameters
        blind, rounds = log_chance(self.case.prior, self.options.within), self.options.rounds
        try:
            chance = success(list(sizes) * rounds, list(sizes.values()) * rounds, blind)
        except NotApplicable as why:
            return next(self.rows.skipped(str(why), ["rero"], [name]))
        details = {"within": self.options.within, "log10_blind_chance": blind / math.log(10)}
        return self.rows.measured("rero", chance, layer=name, details=details)

    def _gap(
        self, name: str | None, layers: Sequence[Layer], floors: Mapping[str, Measurement]
    ) -> Measurement:
        """Make the row of the gap between the best attack and the floor, with both ends."""
        floor, why = floors["mse_share"], ""
        if floor.value is None:
            why = f"no floor: {floor.reason}"
        elif self.attacked is None:
            why = "no attack was played: it would take long; --attacked 16 does"
        else:
            try:
                attack = self.attacked.played(layers)
            except NotApplicable as error:
                why = f"no attack: {error}"
        if why or floor.value is None or self.attacked is None:
            return next(self.rows.skipped(why, [GAP.id], [name]))
        low, high = attack.interval
        return self.rows.measured(
            GAP.id,
            attack.share - floor.value,
            layer=name,
            interval=(low - floor.value, high - floor.value),
            n=len(self.attacked.records),
            details={
                "floor": floor.value,
                "floor_estimate": floor.details.get("estimate"),
                "attack": attack.share,
                "attack_low": low,
                "attack_high": high,
                "attack_by": attack.by,
                "floor_over_attack": None if attack.share <= 0 else floor.value / attack.share,
                "nats_shown": nats_shown(high, self.case.prior.spectrum),
                "nats_most": floors["nats"].value,
            },
        )
