"""Plays the games of every attribute of a subject, and makes their rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from gradaudit.audits.dp_audit import DpAudit, DpAuditOptions
from gradaudit.audits.dp_audit.epsilon_rows import UPDATE, composition_rows, game_rows, theory_rows
from gradaudit.audits.dp_audit.game.canary import POOL
from gradaudit.audits.dp_audit.game.domain import PRESENCE
from gradaudit.audits.dp_audit.game.play import Rules
from gradaudit.audits.dp_audit.game.run import Game, play_between_clients, play_on
from gradaudit.audits.dp_audit.mechanisms import Mechanism, load_mechanism
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.array_changes import key_rows
from gradaudit.audits.dp_audit.one_run import one_run_rows, scores_of_run
from gradaudit.audits.rows import Rows
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import layers_of
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

log = logging.getLogger(__name__)

_UNDEFENDED = "gradaudit: dp-audit plays its --mechanism alone, without --defense %s"
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


def gradients(audit: DpAudit, subject: Subject) -> float:
    """Count the pool's gradients, and four passes for each step of each restart."""
    options = audit.options
    if options.mode == "one-run":
        steps = options.steps if options.mechanism and options.steps else 0
        return 1.0 + steps * options.sampling_rate * len(subject.records)
    if options.mechanism is None:
        return 0.0
    if options.mechanism.partition(":")[0] in _OF_CLIENTS:
        return 1.0
    return 2.0 * (subject.samples or POOL) + 4.0 * options.restarts * options.iterations


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
        comparisons=len(names),
        memory=subject.memory,
        statistic=options.statistic,
    )

    def play(name: str) -> Game:
        if isinstance(mechanism, Middleware):
            return play_between_clients(subject, mechanism, options, rules, progress)
        return play_on(subject, name, mechanism, options, rules, progress)

    def bound(name: str) -> float:
        lower = games[name].epsilon_lower
        return -math.inf if lower is None else lower

    games, columns = {name: play(name) for name in names}, len(subject.records.features)
    best = max(names, key=bound)
    yield from game_rows(games[best], rows)
    yield from theory_rows(games[best], columns, rows)
    yield from composition_rows(mechanism, options, rows)
    every_layer = [layer.name for layer in layers_of(subject.target.model)]
    yield from key_rows(games[best].array_changes, layers, every_layer, rows)
    for name in names if len(names) > 1 else ():
        yield from game_rows(games[name], rows.of({"attribute": name}))


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
    known = mechanism.law(records=1) is not None
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
