"""Empirical epsilon of a gradient-release mechanism, as a bound that holds."""

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from gradaudit.audits._dp_metrics import METRICS
from gradaudit.audits._dp_options import DpAuditOptions
from gradaudit.audits._dp_rows import game_rows
from gradaudit.audits._dp_theory import composition_rows, theory_rows
from gradaudit.audits.base import Audit
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.dp.campaign import Game
    from gradaudit.dp.mechanisms import Mechanism
    from gradaudit.dp.sweeps import Point, Setting
    from gradaudit.models.target import Subject

log = logging.getLogger(__name__)

_NOT_DRAWN = "gradaudit: %s %s is not written, there is nothing to draw: %s"
_UNDEFENDED = (
    "gradaudit: dp-audit plays its --mechanism alone, without --defense %s; to audit a defense "
    "write it as the mechanism"
)
_POOL = 256
_PASSES_A_STEP = 4.0


class DpAudit(Audit[DpAuditOptions]):
    """Lower bounds on ε from the per-attribute privacy audit game.

    A record holds one value of a private attribute or another, as a fair coin says for each of
    thousands of releases. Thresholds are fixed before the trials. One test t ≥ τ errs at rates p
    and q, and ε ≥ ln((1 − δ − q)/p), ln((1 − δ − p)/q) at the upper Clopper-Pearson limits of
    both; or guesses in both tails, with abstention between, are right at a rate of at most e^ε/(1
    + e^ε). Which of the two bounds it is, is chosen before the trials too. Releases that depend on
    each other give none. The gradient is that of every trainable parameter of all layers but the
    hidden ones, biases too, as DP-SGD clips it. Replacing a value moves a clipped gradient by up
    to 2Δ, so the theory is the analytic Gaussian mechanism at 2Δ/σ. All bounds of a report, over
    attributes, statistics and swept settings, hold at once (Bonferroni).

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), definition 7.2; T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1)
    training run" (2023); B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for
    differential privacy" (2018).
    """

    name = "dp-audit"
    summary = "Empirical epsilon of a gradient-release mechanism, with canary and confidence bound."
    metrics = METRICS
    headline = ("epsilon_lower",)
    Options = DpAuditOptions
    renames: ClassVar = {"mode": "model_mode"}
    quick: ClassVar = {"trials": 1000, "restarts": 8, "iterations": 60}
    thorough: ClassVar = {"trials": 20000, "restarts": 64, "iterations": 600}

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Play the game of every attribute; the headline is the largest bound.

        Raises:
            NotApplicable: no mechanism is configured, no attribute is named, or it is no column
                of the inputs.
            UsageError: an option is wrong for this mechanism or these records.
        """
        options = self.options
        if options.mechanism is None:
            raise NotApplicable(
                "no mechanism is configured; name one with --mechanism dp:clip=C,sigma=S or "
                "--mechanism FILE.py:NAME"
            )
        if not subject.attributes:
            raise NotApplicable(
                "no private attribute is named; name a column of the inputs with --attribute"
            )
        from gradaudit.dp.mechanisms import load_mechanism
        from gradaudit.dp.sweeps import settings as sweep_settings

        declared = None if options.noise == "unknown" else options.noise
        mechanism = load_mechanism(options.mechanism, declared)
        self._expect_pictures()
        self._expect_declarations_of_use(mechanism)
        left_out = [str(one) for one in subject.defenses if not one.changes_model]
        if left_out:
            log.warning(_UNDEFENDED, " ".join(left_out))
        settings = sweep_settings(mechanism, options.sweep_clip, options.sweep_sigma)
        names = subject.attributes
        comparisons = len(names) + len(settings)
        games = {
            name: self._play(subject, name, mechanism, comparisons, progress) for name in names
        }
        best = max(names, key=lambda name: _bound_of(games[name], options))
        yield from self._rows(subject, games[best], mechanism, {})
        yield from composition_rows(mechanism, options)
        for name in names if len(names) > 1 else ():
            yield from game_rows(games[name], mechanism, options, {"attribute": name})
        self._draw_histogram(games[best])
        yield from self._sweep(subject, best, settings, comparisons, progress)

    def passes(self, subject: "Subject") -> float:
        """Gradients of the pool, and four passes for every step of every restart."""
        if self.options.mechanism is None or not subject.attributes:
            return 0.0
        pool = float(subject.samples or _POOL)
        return 2 * pool + _PASSES_A_STEP * self.options.restarts * self.options.iterations

    def _play(
        self,
        subject: "Subject",
        attribute: str,
        mechanism: "Mechanism",
        comparisons: int,
        progress: Progress,
    ) -> "Game":
        from gradaudit.dp.campaign import play_on
        from gradaudit.dp.contest import Effort
        from gradaudit.dp.game import Rules
        from gradaudit.dp.survey import Setup

        options = self.options
        effort = Effort(options.restarts, options.iterations, subject.samples or _POOL)
        setup = Setup(
            record=options.record,
            domain=options.domain,
            mixture=options.replacement == "uniform",
            companions=options.companions,
            clip=options.clip,
            effort=effort,
        )
        rules = Rules(
            options.trials,
            options.delta,
            mode=options.mode,
            confidence=options.confidence,
            comparisons=comparisons,
            memory=subject.memory,
            statistic=options.statistic,
        )
        return play_on(subject, attribute, mechanism, setup, rules, progress)

    def _rows(
        self, subject: "Subject", game: "Game", mechanism: "Mechanism", base: Variant
    ) -> Iterator[Measurement]:
        """A game's rows and the theory beside it."""
        yield from game_rows(game, mechanism, self.options, base)
        yield from theory_rows(
            mechanism,
            self.options,
            records=game.board.records,
            elements=game.board.elements,
            columns=len(subject.records.features),
            base=base,
        )

    def _sweep(
        self,
        subject: "Subject",
        attribute: str,
        settings: "list[Setting]",
        comparisons: int,
        progress: Progress,
    ) -> Iterator[Measurement]:
        """The same game at other clips and sigmas, each a mechanism and a claim of its own."""
        from gradaudit.dp.pictures import draw_curves
        from gradaudit.dp.sweeps import point_of

        options = self.options
        curves: dict[str, list[Point]] = {}
        for name, at, other in settings:
            game = self._play(subject, attribute, other, comparisons, progress)
            yield from self._rows(subject, game, other, {name: at})
            point = point_of(game, other, at, options.statistic, options.delta)
            curves.setdefault(name, []).extend([point] if point else [])
        if options.curves is not None:
            drawn = {name: points for name, points in curves.items() if points}
            if drawn:
                draw_curves(options.curves, drawn)
            else:
                log.warning(_NOT_DRAWN, "--curves", options.curves, "no setting needed trials")

    def _expect_pictures(self) -> None:
        from gradaudit.pictures import expect_picture

        options = self.options
        for path in (options.picture, options.curves):
            if path is not None:
                expect_picture(path)
        if options.curves is not None and not (options.sweep_clip or options.sweep_sigma):
            raise UsageError("--curves draws what --sweep-clip and --sweep-sigma play; give one")

    def _expect_declarations_of_use(self, mechanism: "Mechanism") -> None:
        from gradaudit.dp.mechanisms import AdditiveMechanism

        if not isinstance(mechanism, AdditiveMechanism) and not mechanism.deterministic:
            return
        for option, given in (
            ("--clip", self.options.clip is not None),
            ("--noise", self.options.noise != "unknown"),
        ):
            if given:
                raise UsageError(
                    f"{option} declares what a mechanism from a file does; --mechanism "
                    f"{mechanism.description} says it itself: leave {option} out"
                )

    def _draw_histogram(self, game: "Game") -> None:
        """Draw the trials; a verdict that needed none stands, and that there is no picture."""
        from gradaudit.dp.game import Outcome
        from gradaudit.dp.pictures import draw_histogram

        path = self.options.picture
        if path is None:
            return
        if isinstance(game.result, Outcome):
            draw_histogram(path, game.result.scores)
        else:
            reason = f"decided without trials: {game.result.reason}"
            log.warning(_NOT_DRAWN, "--picture", path, reason)


def _bound_of(game: "Game", options: DpAuditOptions) -> float:
    bound = game.epsilon_lower(options.statistic)
    return -math.inf if bound is None else bound
