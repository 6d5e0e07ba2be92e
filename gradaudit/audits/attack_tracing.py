"""Whether an attacker can tell whose record it is from what the participants shared."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, JsonValue

from gradaudit.audits._attack_intervals import CONFIDENCE, doubts
from gradaudit.audits._reconstruct_options import AUTOMATIC, AttackOptions
from gradaudit.audits.base import Audit, Metric
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from gradaudit.attacks.reconstruction.campaign import Campaign
    from gradaudit.attacks.reconstruction.methods import Method
    from gradaudit.models.target import Subject


_KEY = 12
"""Sets this audit's draws apart from others of the same seed."""


class TracingOptions(AttackOptions):
    """Options of the tracing audit."""

    method: str | None = Field(
        None,
        description="how records are rebuilt: dlg, idlg, inverting-gradients, …; without it: "
        "closed-form where that applies and nothing defends the updates, else dlg",
    )
    participants: int = Field(10, ge=2, description="clients that share an update each")
    updates: int = Field(1, ge=1, description="updates of each participant")
    repeats: int = Field(1, ge=1, description="repetitions with other records")
    restarts: int = Field(1, ge=1, le=10_000, description="starting points of each attack")
    known_labels: bool = Field(False, description="tell the attacker the labels")


class AttackTracing(Audit[TracingOptions]):
    """Trace records to the participants that shared their updates.

    Every participant's records are rebuilt from its updates; each record of the query set (the same
    records) then goes to the participant behind the nearest reconstruction. The distance is the
    share of records that go to another participant: the mean categorical distance between recovered
    and actual participants, 0 where all are traced; guessing gives (N − 1)/N. Algorithm 6 as it is
    printed asks for the very item instead: the variant ``identity: item``.

    The interval is over the updates of all repetitions, whose records are rebuilt together. It has
    no default limit: of a handful of records the interval reaches far below guessing.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart
    privacy attacks" (2020), section 4.1 and algorithm 6.
    """

    name = "attack tracing"
    summary = "Trace records to the participants that shared updates of them (Fan et al. 2020)."
    metrics = (
        Metric(
            id="tracing_distance",
            title="Share of records that an attacker traces to a wrong participant",
            riskier="lower",
            per_layer=False,
        ),
    )
    headline = ()
    Options = TracingOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {"participants": 4, "iterations": 5}
    plain: ClassVar[Mapping[str, JsonValue]] = {"participants": 8, "iterations": 5}
    thorough: ClassVar[Mapping[str, JsonValue]] = {"repeats": 5}

    def passes(self, subject: "Subject") -> float:
        """What the attacks on all participants' updates cost at most."""
        steps = self._likely(subject).steps(self.options.restarts)
        return steps * self._attacks * self.options.batch_size

    def calls(self, subject: "Subject") -> float:
        """The steps of all attacks."""
        return self._likely(subject).calls() * self._attacks

    @property
    def _attacks(self) -> int:
        options = self.options
        return options.participants * options.updates * options.repeats

    def _likely(self, subject: "Subject") -> "Method":
        """The method that will do: the first one, where one record stands behind an update."""
        methods = list(self._methods(subject).values())
        return methods[0 if self.options.batch_size == 1 else -1]

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Rebuild all participants' records, and trace them.

        Raises:
            NotApplicable: the method does not apply.
            UsageError: there are too few records, or an option is wrong for them.
        """
        import numpy as np

        outcomes = [
            self._repetition(subject, number, progress) for number in range(self.options.repeats)
        ]
        facts = outcomes[0][1]
        hits = np.stack([hits for hits, _ in outcomes])
        yield self._row(hits[:, 0], facts).model_copy(update={"variant": {}})
        yield self._row(hits[:, 1], facts).model_copy(update={"variant": {"identity": "item"}})

    def _methods(self, subject: "Subject") -> "dict[str, Method]":
        """The named method, or those to try until one applies."""
        from gradaudit.attacks.reconstruction.methods import load_methods

        named = self.options.method
        tried = ["dlg"] if subject.defenses else [*AUTOMATIC]
        return load_methods([named] if named else tried, self.options.flags(named=bool(named)))

    def _answers(
        self, campaign: "Campaign", subject: "Subject", progress: Progress
    ) -> "tuple[str, list[Tensor]]":
        """The first method that applies, and its answers."""
        reasons: list[str] = []
        for text, method in self._methods(subject).items():
            try:
                return text, campaign.answers(method, progress)
            except NotApplicable as why:
                reasons.append(str(why))
        raise NotApplicable("; ".join(reasons))

    def _repetition(
        self, subject: "Subject", number: int, progress: Progress
    ) -> "tuple[NDArray[np.bool_], dict[str, JsonValue]]":
        """Whether each record was traced to its participant, and to itself: (2, records)."""
        import numpy as np
        import torch

        from gradaudit.attacks.tracing import own_items, trace

        campaign = self._campaign(subject, number)
        method, answers = self._answers(campaign, subject, progress)
        truth = torch.cat([each.records.cpu() for each in campaign.observed])
        rebuilt = own_items(truth, torch.cat(answers), len(answers))
        each = self.options.updates * campaign.batch
        owners = np.arange(len(truth)) // each
        traced = trace(truth, rebuilt, owners)
        hits = np.stack([traced.participants == owners, traced.items == np.arange(len(truth))])
        diverged = int((~rebuilt.flatten(1).isfinite().all(dim=1)).sum())
        return hits, {**campaign.facts, "method": method, "diverged": diverged}

    def _campaign(self, subject: "Subject", number: int) -> "Campaign":
        import numpy as np

        from gradaudit.attacks.reconstruction.campaign import Campaign, Choice
        from gradaudit.attacks.reconstruction.observing import Observer

        options = self.options
        needed = options.participants * options.updates * options.batch_size
        if needed > len(subject.records):
            raise UsageError(
                f"--participants {options.participants}: their updates take {needed} records, the "
                f"data has {len(subject.records)}"
            )
        observer = Observer(
            subject.target, options.sharing(subject), subject.layers, options.known_labels
        )
        choice = Choice(options.batch_size, options.participants * options.updates)
        sequence = np.random.SeedSequence(subject.seed, spawn_key=(_KEY, number))
        seed = int(sequence.generate_state(1, np.uint64)[0]) >> 1
        own = replace(subject, seed=seed, samples=None)
        return Campaign.prepare(own, choice, observer, options.restarts)

    def _row(self, hits: "NDArray[np.bool_]", facts: dict[str, JsonValue]) -> Measurement:
        """Of hits (repetitions, records)."""
        import numpy as np

        from gradaudit.statistics.rates import clustered

        participants = self.options.participants
        missed = (~hits).reshape(len(hits) * participants * self.options.updates, -1)
        sizes = np.full(len(missed), float(missed.shape[1]))
        value, interval = clustered(missed.mean(axis=1), sizes, CONFIDENCE)
        return Measurement(
            audit=self.reports_as(),
            metric="tracing_distance",
            value=value,
            interval=interval,
            confidence=CONFIDENCE,
            n=hits.size,
            details={
                **facts,
                "participants": participants,
                "repetitions": [float(share) for share in (~hits).mean(axis=1)],
                "by_guessing": 1 - 1 / participants,
                **doubts(len(missed), "--participants, --updates or --repeats"),
            },
        )
