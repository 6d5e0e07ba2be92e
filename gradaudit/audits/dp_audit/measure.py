"""Plays the games of every attribute of a subject, and makes their rows and pictures.

Pictures are those of Li et al. 2024, figures 7 and 8; SVG and PNG, the same bytes for the same
numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradaudit.audits.dp_audit import DpAudit, DpAuditOptions
from gradaudit.audits.dp_audit.epsilon_rows import UPDATE, composition_rows, game_rows, theory_rows
from gradaudit.audits.dp_audit.game.canary import POOL
from gradaudit.audits.dp_audit.game.domain import PRESENCE
from gradaudit.audits.dp_audit.game.missing_noise import DegenerateVerdict
from gradaudit.audits.dp_audit.game.play import Rules
from gradaudit.audits.dp_audit.game.run import Game, play_between_clients, play_on, settings
from gradaudit.audits.dp_audit.mechanisms import Mechanism, load_mechanism
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.array_changes import key_rows
from gradaudit.audits.dp_audit.one_run import one_run_rows, scores_of_run
from gradaudit.audits.rows import Rows
from gradaudit.core.drawing import expect_picture, picture
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

_NOT_DRAWN = "gradaudit: %s %s is not written, there is nothing to draw: %s"
_UNDEFENDED = (
    "gradaudit: dp-audit plays its --mechanism alone, without --defense %s; to audit a defense "
    "write it as the mechanism"
)
_PASSES_A_STEP = 4.0
_BINS = 60
_WIDE = 8
"""Settings that span such a factor are drawn on a logarithmic axis."""
_OF_CLIENTS = ("flower", "nvflare")
_NOT_OF = {
    "client": {
        "companions": "a client sends its update alone",
        "replacement": "a client's update is played against one other",
        "record": "updates are simulated",
        "domain": "updates are simulated",
    },
    "record": {"unsent": "gradients of records are one vector (--hide leaves out layers)"},
}
"""Options that say nothing of neighbours of a mechanism's unit, with the reasons."""


def cost(audit: DpAudit, subject: Subject) -> float:
    """Estimate the cost: the pool's gradients, and four passes for each step of each restart."""
    options = audit.options
    if options.mode == "one-run":
        steps = options.steps if options.mechanism and options.steps else 0
        passes = steps * options.sampling_rate * len(subject.records)
        return subject.work(gradients=passes, seconds=1.0 + 0.02 * steps)
    if options.mechanism is None:
        return 0.0
    if options.mechanism.partition(":")[0] in _OF_CLIENTS:
        return subject.work(seconds=1.0)
    crafting = _PASSES_A_STEP * options.restarts * options.iterations
    return subject.work(gradients=2.0 * (subject.samples or POOL) + crafting)


def run(audit: DpAudit, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Play the game of every attribute; the headline is the largest bound.

    Raises:
        NotApplicable: no mechanism is configured, no attribute is named, or it is no column
            of the inputs.
        UsageError: an option is wrong for this mechanism or these records.
    """
    options, layers = audit.options, [layer.name for layer in subject.layers]
    if options.mode == "one-run":
        scores = scores_of_run(subject, options, progress)
        rows = Rows(type(audit), facts={"unit": scores.unit, "relation": "remove"})
        yield from one_run_rows(options, scores, rows)
        yield from key_rows((), layers, (), rows)
        return
    mechanism = _mechanism(subject, options)
    rows = Rows(type(audit), facts={"unit": mechanism.unit, "relation": options.relation})
    swept = list(settings(mechanism, options.sweep_clip, options.sweep_sigma))
    # the secrets of the games: the attributes, a record's presence, or clients' updates
    if mechanism.unit == "client":
        names: tuple[str, ...] = (UPDATE,)
    else:
        names = (PRESENCE,) if options.relation == "remove" else subject.attributes
    if not names:
        raise NotApplicable(
            "no private attribute is named; name a column of the inputs with --attribute"
        )
    rules = Rules(
        options.trials,
        options.delta,
        mode="exact" if options.mode == "exact" else "implementation",
        confidence=options.confidence,
        comparisons=len(names) + len(swept),
        memory=subject.memory,
        statistic=options.statistic,
    )

    def play(name: str, mechanism: Mechanism) -> Game:
        if isinstance(mechanism, Middleware):
            return play_between_clients(subject, mechanism, options, rules, progress)
        return play_on(subject, name, mechanism, options, rules, progress)

    def bound(name: str) -> float:
        lower = games[name].epsilon_lower
        return -math.inf if lower is None else lower

    games, columns = {name: play(name, mechanism) for name in names}, len(subject.records.features)
    best = max(names, key=bound)
    yield from game_rows(games[best], rows)
    yield from theory_rows(games[best], columns, rows)
    yield from composition_rows(mechanism, options, rows)
    every_layer = [layer.name for layer in layers_of(subject.target.model)]
    yield from key_rows(games[best].array_changes, layers, every_layer, rows)
    for name in names if len(names) > 1 else ():
        yield from game_rows(games[name], rows.of({"attribute": name}))
    _draw_histogram(games[best], options)
    yield from _swept_rows(partial(play, best), swept, columns, rows, options)


def _swept_rows(
    play: Callable[[Mechanism], Game],
    swept: Sequence[tuple[str, float, Mechanism]],
    columns: int,
    rows: Rows,
    options: DpAuditOptions,
) -> Iterator[Measurement]:
    """Yield the rows of the game at each setting of a sweep, and draw its curves."""
    curves: dict[str, dict[float, Game]] = {}
    for setting, at, mechanism in swept:
        game, at_setting = play(mechanism), rows.of({setting: at})
        yield from game_rows(game, at_setting)
        yield from theory_rows(game, columns, at_setting)
        if game.score is not None:
            curves.setdefault(setting, {})[at] = game
    _draw_curves(curves, options)


def _mechanism(subject: Subject, options: DpAuditOptions) -> Mechanism:
    """Load the mechanism to audit; raise a UsageError for options that it cannot serve."""
    if options.canaries is not None:
        raise UsageError("--canaries: is of --mode one-run; add that, or leave it out")
    if options.mechanism is None:
        raise NotApplicable(
            "no mechanism is configured; name one with --mechanism dp:clip=C,sigma=S or "
            "--mechanism FILE.py:NAME"
        )
    declared = None if options.noise == "unknown" else options.noise
    mechanism = load_mechanism(options.mechanism, declared)
    for name, reason in _NOT_OF[mechanism.unit].items():
        if getattr(options, name) != DpAuditOptions.model_fields[name].default:
            raise UsageError(f"--{name}: leave it out for {mechanism.description}: {reason}")
    if mechanism.unit == "record" and options.relation == "remove":
        _expect_removable(mechanism, options)
    for path in (options.picture, options.curves):
        if path is not None:
            expect_picture(path)
    if options.curves is not None and not (options.sweep_clip or options.sweep_sigma):
        raise UsageError("--curves draws what --sweep-clip and --sweep-sigma play; give one")
    known = mechanism.deterministic or mechanism.law(records=1) is not None
    for option, given in (("--clip", options.clip), ("--noise", declared)):
        if known and given is not None:
            raise UsageError(
                f"{option} declares what a mechanism from a file does; --mechanism "
                f"{mechanism.description} says it itself: leave {option} out"
            )
    left_out = [str(one) for one in subject.defenses if not one.changes_model]
    if left_out:
        log.warning(_UNDEFENDED, " ".join(left_out))
    return mechanism


def _expect_removable(mechanism: Mechanism, options: DpAuditOptions) -> None:
    """Refuse to play a record's absence where its law is known, or where nothing would be left."""
    if not mechanism.foreign:
        raise UsageError(
            f"--relation remove: leave it out for {mechanism.description}, whose promise for a "
            "removed record is reported anyway; it is played for opacus:… and FILE.py:NAME"
        )
    if options.mode == "exact":
        raise UsageError("--mode exact: batches of two sizes have no common law; leave it out")
    if not options.companions:
        raise UsageError("--relation remove: a batch of no record is left; give --companions too")
    if options.replacement != "worst":
        raise UsageError("--replacement: leave it out, as a removed record has no other value")


def _draw_histogram(game: Game, options: DpAuditOptions) -> None:
    """Draw the trials' histogram; note that there is none where no trials were needed."""
    if options.picture is None:
        return
    if isinstance(game.result, DegenerateVerdict):
        reason = f"decided without trials: {game.result.reason}"
        log.warning(_NOT_DRAWN, "--picture", options.picture, reason)
        return
    scores = game.result.scores
    with picture(options.picture, len(scores)) as panels:
        for axes, (name, score) in zip(panels, scores.items(), strict=True):
            samples = {"H0: own value": score.null, "H1: another": score.alternative}
            edges = np.histogram_bin_edges(np.concatenate([*samples.values()]), _BINS)
            for label, sample in samples.items():
                counts = np.histogram(sample, edges)[0]
                axes.stairs(counts, edges, fill=True, alpha=0.6, label=label)
            for at, label in zip(score.bound.thresholds, ("threshold", "_hidden"), strict=True):
                axes.axvline(at, color="black", linewidth=1, label=label)
            bound = score.bound.value
            proved = f"ε ≥ {bound:.3g}" if bound else "nothing proved (ε ≥ 0)"
            axes.set(xlabel=name, ylabel="releases", title=proved)


def _draw_curves(curves: dict[str, dict[float, Game]], options: DpAuditOptions) -> None:
    """Epsilon against clip and against sigma, a panel each, on a logarithmic scale."""
    if options.curves is None:
        return
    if not curves:
        log.warning(_NOT_DRAWN, "--curves", options.curves, "no setting needed trials")
        return
    with picture(options.curves, len(curves)) as panels:
        for axes, (name, games) in zip(panels, curves.items(), strict=True):
            at = sorted(games)
            _curves(axes, at, [games[setting] for setting in at])
            axes.set(xlabel=name, ylabel="ε (logarithmic above 1)")
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(bottom=0)
            if at[-1] >= _WIDE * at[0]:
                axes.set_xscale("log")
                axes.set_xticks(at, [f"{setting:g}" for setting in at])
                axes.set_xticks([], minor=True)


def _curves(axes: Axes, at: list[float], games: list[Game]) -> None:
    promises = [game.promise() for game in games]
    scores = [game.score for game in games if game.score is not None]
    for label, style, values in (
        ("theory, replace", "k.--", [None if each is None else each.epsilon for each in promises]),
        ("exact for the pair", "k.:", [game.pair for game in games]),
        ("lower bound", "o-", [score.bound.value for score in scores]),
    ):
        axes.plot(at, np.array(values, float), style, label=label, markersize=4)
    middle = np.array([score.point.value for score in scores])
    ends = np.array([score.point.interval for score in scores]).T
    errors = np.maximum(np.abs(ends - middle), 0)
    axes.errorbar(at, middle, errors, fmt="s", markersize=3, capsize=2, label="point estimate")
