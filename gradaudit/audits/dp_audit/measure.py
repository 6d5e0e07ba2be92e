"""From a subject to rows: the games of every attribute, the theory, sweeps and pictures."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradaudit.audits.base import Cost
from gradaudit.audits.dp_audit.rows import game_rows
from gradaudit.audits.dp_audit.theory import composition_rows, theory_rows
from gradaudit.audits.rows import Rows
from gradaudit.dp.degenerate import Verdict
from gradaudit.dp.game import Rules
from gradaudit.dp.mechanisms import Mechanism, load_mechanism
from gradaudit.dp.pictures import draw_curves, draw_histogram
from gradaudit.dp.run import Game, play_on, settings
from gradaudit.dp.sensitivity import Design
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import Subject
from gradaudit.pictures import expect_picture
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.audits.dp_audit import DpAudit, DpAuditOptions

log = logging.getLogger(__name__)

_NOT_DRAWN = "gradaudit: %s %s is not written, there is nothing to draw: %s"
_UNDEFENDED = (
    "gradaudit: dp-audit plays its --mechanism alone, without --defense %s; to audit a defense "
    "write it as the mechanism"
)
_POOL = 256
_PASSES_A_STEP = 4.0


def cost(audit: DpAudit, subject: Subject) -> Cost:
    """Gradients of the pool, and four passes for every step of every restart."""
    options = audit.options
    if options.mechanism is None or not subject.attributes:
        return Cost()
    crafting = _PASSES_A_STEP * options.restarts * options.iterations
    return Cost(passes=2.0 * (subject.samples or _POOL) + crafting)


def run(audit: DpAudit, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Play the game of every attribute; the headline is the largest bound.

    Raises:
        NotApplicable: no mechanism is configured, no attribute is named, or it is no column
            of the inputs.
        UsageError: an option is wrong for this mechanism or these records.
    """
    options, rows = audit.options, Rows(type(audit))
    mechanism = _mechanism(subject, options)
    swept = list(settings(mechanism, options.sweep_clip, options.sweep_sigma))
    names = subject.attributes
    comparisons = len(names) + len(swept)
    columns = len(subject.records.features)
    games = {
        name: _play(subject, name, mechanism, options, comparisons, progress) for name in names
    }
    best = max(names, key=lambda name: _at_least(games[name].epsilon_lower))
    yield from game_rows(games[best], options, rows)
    yield from theory_rows(games[best], options, columns, rows)
    yield from composition_rows(mechanism, options, rows)
    for name in names if len(names) > 1 else ():
        yield from game_rows(games[name], options, rows.of({"attribute": name}))
    _draw_histogram(games[best], options)
    curves: dict[str, dict[float, Game]] = {}
    for setting, at, other in swept:
        game = _play(subject, best, other, options, comparisons, progress)
        at_setting = rows.of({setting: at})
        yield from game_rows(game, options, at_setting)
        yield from theory_rows(game, options, columns, at_setting)
        if game.score is not None:
            curves.setdefault(setting, {})[at] = game
    _draw_curves(curves, options)


def _mechanism(subject: Subject, options: DpAuditOptions) -> Mechanism:
    """The mechanism to audit, after everything is refused that cannot be done with it."""
    if options.mechanism is None:
        raise NotApplicable(
            "no mechanism is configured; name one with --mechanism dp:clip=C,sigma=S or "
            "--mechanism FILE.py:NAME"
        )
    if not subject.attributes:
        raise NotApplicable(
            "no private attribute is named; name a column of the inputs with --attribute"
        )
    declared = None if options.noise == "unknown" else options.noise
    mechanism = load_mechanism(options.mechanism, declared)
    for path in (options.picture, options.curves):
        if path is not None:
            expect_picture(path)
    if options.curves is not None and not (options.sweep_clip or options.sweep_sigma):
        raise UsageError("--curves draws what --sweep-clip and --sweep-sigma play; give one")
    known = mechanism.deterministic or mechanism.law(records=1) is not None
    for option, given in (("--clip", options.clip is not None), ("--noise", declared is not None)):
        if known and given:
            raise UsageError(
                f"{option} declares what a mechanism from a file does; --mechanism "
                f"{mechanism.description} says it itself: leave {option} out"
            )
    left_out = [str(one) for one in subject.defenses if not one.changes_model]
    if left_out:
        log.warning(_UNDEFENDED, " ".join(left_out))
    return mechanism


def _play(
    subject: Subject,
    attribute: str,
    mechanism: Mechanism,
    options: DpAuditOptions,
    comparisons: int,
    progress: Progress,
) -> Game:
    design = Design(
        record=options.record,
        domain=options.domain,
        mixture=options.replacement == "uniform",
        companions=options.companions,
        clip=options.clip,
        restarts=options.restarts,
        iterations=options.iterations,
        pool=subject.samples or _POOL,
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
    return play_on(subject, attribute, mechanism, design, rules, progress)


def _at_least(bound: float | None) -> float:
    return -math.inf if bound is None else bound


def _draw_histogram(game: Game, options: DpAuditOptions) -> None:
    """Draw the trials; a verdict that needed none stands, and that there is no picture."""
    if options.picture is None:
        return
    if isinstance(game.result, Verdict):
        reason = f"decided without trials: {game.result.reason}"
        log.warning(_NOT_DRAWN, "--picture", options.picture, reason)
    else:
        draw_histogram(options.picture, game.result.scores)


def _draw_curves(curves: dict[str, dict[float, Game]], options: DpAuditOptions) -> None:
    if options.curves is not None and curves:
        draw_curves(options.curves, curves)
    elif options.curves is not None:
        log.warning(_NOT_DRAWN, "--curves", options.curves, "no setting needed trials")
