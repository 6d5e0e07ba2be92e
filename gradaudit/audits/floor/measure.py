"""Floors of every attacker: from a target, its noise and a prior to rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.floor import Floor, FloorOptions
from gradaudit.audits.floor.noisy_update import NO_NOISE, NoisyUpdate, how_it_leaves
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import Functional, log_chance, success, van_trees_bound
from gradaudit.audits.rows import Rows, by_round
from gradaudit.core.randomness import rng
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

_DRAWS, _MOST_DRAWS, _FEWEST = 64, 1024, 4
_CHEAP = 1e8
"""Tangents times parameters that more draws may take; some seconds."""
_CONFIDENT = (1 + CONFIDENCE) / 2
"""Probability that the true number is on the safe side of the one that is reported."""
FUNCTIONALS: tuple[Functional, ...] = ("mse_share", "nats")


def gradients(audit: Floor, subject: Subject) -> float:
    """Count the passes of tangents in every direction for every drawn record.

    Raises:
        NotApplicable: there is no noise.
    """
    if not how_it_leaves(audit.options, subject, subject.target):
        raise NotApplicable(NO_NOISE)
    directions = min(audit.options.directions, subject.records.inputs[0].numel())
    draws = subject.samples or _affordable(audit.options, subject)
    return 2.0 * directions * draws * len(subject.targets)


def run(audit: Floor, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer and of the model; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: there is no noise, no prior for such inputs, or too few draws.
        AuditError: the model cannot be run on the records, or differentiated by them.
    """
    options = audit.options
    if not all(how_it_leaves(options, subject, target) for target in subject.targets):
        raise NotApplicable(NO_NOISE)
    prior, labels = _drawn(options, subject, _affordable(options, subject))
    for target, variant in by_round(subject):
        case = NoisyUpdate.of(audit, subject, target, prior, labels)
        rows = Rows(type(audit), variant, case.facts(options))
        with progress.task("floor", len(labels)) as advance:
            infos = case.informations(subject, advance, subject.workers)
        made = _LayerRows(rows, case, infos, options)
        by_name = {layer.name: layer for layer in case.layers}
        for shown in subject.layers:
            yield from made.of(shown.name, [by_name[shown.name]])
        yield from made.of(None, case.layers)


def _affordable(options: FloorOptions, subject: Subject) -> int:
    """How many records to draw where nobody says: more of small models, whose floors vary most."""
    directions = min(options.directions, subject.records.inputs[0].numel())
    parameters = sum(parameter.numel() for parameter in subject.target.model.parameters())
    return min(_MOST_DRAWS, max(_DRAWS, int(_CHEAP / (directions * max(1, parameters)))))


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
    prior = GaussianPrior.fitted(records.inputs.flatten(1), options.directions)
    if not prior.variance > 0:
        raise NotApplicable("all records are alike, so a fitted prior leaves nothing to learn")
    chosen = rng(subject.seed, "floor", "labels").integers(len(records), size=draws)
    return prior, records.labels[torch.from_numpy(chosen)]


@dataclass(frozen=True)
class _LayerRows:
    """Makes the rows of one layer, or of the model.

    Attributes:
        infos: by layer, of those that have a floor.
    """

    rows: Rows
    case: NoisyUpdate
    infos: Mapping[str, Tensor]
    options: FloorOptions

    def of(self, name: str | None, layers: Sequence[Layer]) -> Iterator[Measurement]:
        """Yield rows of a set of layers: floors, and the bound on success."""
        if why := self.case.why_not(layers):
            yield from self.rows.skipped(why, FUNCTIONALS, [name])
        else:
            units = torch.stack([self.infos[each.name] for each in layers]).sum(dim=0)
            if units.isfinite().all():
                for metric in FUNCTIONALS:
                    yield self._floor(metric, units, name)
            else:
                yield from self.rows.failed("its gradients are not finite", FUNCTIONALS, [name])
        yield self._often(name, layers)

    def _floor(self, metric: Functional, units: Tensor, name: str | None) -> Measurement:
        prior = self.case.prior
        found = van_trees_bound(metric, units, prior)
        details: dict[str, JsonValue] = {"estimate": found.value}
        if metric == "mse_share":
            details["mse"] = found.safe * prior.variance / prior.size
        count = len(self.case.labels)
        return self.rows.measured(
            metric, found.safe, layer=name, confidence=_CONFIDENT, n=count, details=details
        )

    def _often(self, name: str | None, layers: Sequence[Layer]) -> Measurement:
        """Bound how often any attacker comes near a record."""
        releases: set[Release] = set()
        for layer in layers:
            release = self.case.release(layer)
            if release is None:
                return next(self.rows.skipped(self.case.why_not(layers), ["rero"], [name]))
            releases.add(release)
        blind = log_chance(self.case.prior, self.options.within)
        try:
            chance = success([*releases], blind)
        except NotApplicable as why:
            return next(self.rows.skipped(str(why), ["rero"], [name]))
        details = {"within": self.options.within, "log10_blind_chance": blind / math.log(10)}
        return self.rows.measured("rero", chance, layer=name, details=details)
