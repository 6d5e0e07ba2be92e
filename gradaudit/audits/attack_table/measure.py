"""Tables: rows that attacks rebuild from some updates, scored, beside the best guess without."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.attacks.reconstruction.campaign import Campaign, Choice, expect_folder
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.audits.attack_reconstruct.measure import NO_TRUTH, attacked_rounds
from gradaudit.audits.attack_table import AttackTable, TableOptions
from gradaudit.audits.attack_table.base import (
    TableAnswer,
    TableAttack,
    TableSetting,
    guessed,
    imputed,
)
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.scores import (
    TableScores,
    calibration_error,
    draw_cells,
    right_cells,
    scores_of,
    write_cells,
)
from gradaudit.audits.base import AuditCost
from gradaudit.audits.rows import Rows
from gradaudit.core.parts import discover
from gradaudit.core.randomness import number as number_of
from gradaudit.core.randomness import rng
from gradaudit.core.specs import pick
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.statistics.intervals import clopper_pearson, clustered
from gradaudit.subject import Subject

SHARES = ("cell_accuracy", "row_accuracy", "rows_certified")
METRICS = (*SHARES, "false_rows", "certainty_error")
_AUTOMATIC = ("row-space", "tableak")
_KNOWN = 5_000
"""Records that the attacker has of the same kind, at most."""
_SEARCH = 1_000.0
"""Gradient passes over one record that rebuilding a row takes about as long as."""


@dataclass(frozen=True)
class AttackedTable:
    """What a method made of one update; a reason where it does not apply."""

    answer: TableAnswer | None
    scores: TableScores | None
    other: TableScores | None
    reason: str = ""


def cost(audit: AttackTable, subject: Subject) -> AuditCost:
    """About what the attack takes.

    Raises:
        NotApplicable: the records are no table.
    """
    _expect_table(subject.records)
    options = audit.options
    rows = options.records_behind * options.count(subject)
    return AuditCost(rows * _SEARCH, calls=options.count(subject))


def table_attacks() -> dict[str, type[TableAttack]]:
    """Every attack on tables by its name."""
    return discover("gradaudit.audits.attack_table", TableAttack)


def run(audit: AttackTable, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack; older checkpoints are the variants ``round``, columns the variants ``column``.

    Raises:
        NotApplicable: the records are no table, or no method applies.
        UsageError: an option is wrong for these records.
        CheckpointError: a captured update is refused.
    """
    options = audit.options
    _expect_table(subject.records)
    if options.save_examples is not None:
        expect_folder(options.save_examples)
    methods = {name: _attack_named(name) for name in options.method or _usual(subject.records)}
    for target, variant in attacked_rounds(subject, options):
        sharing = options.sharing(subject.defenses, subject.hidden)
        threat = ThreatModel(target, sharing, subject.layers, options.known_labels)
        drawn = options.drawn(subject.samples)
        choice = Choice(options.batch_size, drawn, options.records, options.update, options.rate)
        campaign = Campaign.prepare(subject, choice, threat, progress)
        columns = TableColumns.of(subject.records, _others(subject, campaign.drawn))
        attack = _Attack(options, columns, campaign)
        yield from attack.rows(Rows(type(audit), variant), methods)


def _usual(records: Records) -> tuple[str, ...]:
    """Names of the attacks without ``--method``; tableak needs a schema of categories."""
    return _AUTOMATIC if records.features else _AUTOMATIC[:1]


def _expect_table(records: Records) -> None:
    if records.discrete and not records.features:
        raise NotApplicable("the records are no table: they are of tokens, and have no columns")


def _attack_named(name: str) -> TableAttack:
    return pick(name, table_attacks(), f"--method {name}", "attack on tables")()


def _others(subject: Subject, batches: Sequence[Records]) -> torch.Tensor:
    """Inputs of records that are in none of the batches: what the attacker has of the kind."""
    inputs = subject.records.inputs
    rows = inputs.flatten(1).contiguous().numpy()
    kind = np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))
    taken = torch.cat([batch.inputs.flatten(1) for batch in batches]).contiguous().numpy()
    free = np.flatnonzero(~np.isin(rows.view(kind).ravel(), taken.view(kind).ravel()))
    if len(free) < 2:
        return inputs
    chosen = rng(subject.seed, "table", "others").permutation(free)[:_KNOWN]
    return inputs[torch.from_numpy(np.sort(chosen))]


@dataclass(frozen=True)
class _Attack:
    """The attack on one checkpoint."""

    options: TableOptions
    columns: TableColumns
    campaign: Campaign

    def rows(self, rows: Rows, methods: dict[str, TableAttack]) -> Iterator[Measurement]:
        """Of the method that answers, and of each where several are compared."""
        named = bool(self.options.method)
        results: dict[str, list[AttackedTable]] = {}
        reasons: dict[str, str] = {}
        for name, method in methods.items():
            if results and not named:
                break
            outcomes = self._outcomes(name, method)
            if outcomes[0].answer is None:
                reasons[name] = outcomes[0].reason
            else:
                results[name] = outcomes
                self._save(name, outcomes)
        if not results:
            told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise NotApplicable(told)
        best = max(results, key=lambda name: _row_share(results[name]))
        yield from self._of_method(
            rows.of({}, {"method": best, "refused": dict(reasons)}), results[best]
        )
        if len(methods) > 1 and named:
            for name, outcomes in results.items():
                yield from self._of_method(rows.of({"method": name}), outcomes)
            for name, why in reasons.items():
                yield from rows.of({"method": name}).skipped(why, METRICS)

    def _outcomes(self, name: str, method: TableAttack) -> list[AttackedTable]:
        campaign = self.campaign
        task = partial(_attacked, method, self.options, self.columns, campaign)
        return campaign.outcomes(task, "table", name, self.options.model_dump_json())

    def _of_method(self, rows: Rows, outcomes: Sequence[AttackedTable]) -> Iterator[Measurement]:
        answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
        rows = rows.of({}, {**self.campaign.facts, **_facts(answers)})
        scores = [outcome.scores for outcome in outcomes if outcome.scores is not None]
        if not scores:  # a proof needs no truth
            proved = torch.cat([answer.certified for answer in answers]).double()
            yield rows.measured("rows_certified", float(proved.mean()), n=len(proved))
            yield from rows.skipped(NO_TRUTH, [m for m in METRICS if m != "rows_certified"])
            return
        others = [outcome.other for outcome in outcomes if outcome.other is not None]
        guesses = self._guesses()
        for metric in SHARES:
            details: dict[str, JsonValue] = {
                **self._imputation(metric),
                "floor": _mean([_share(metric, s) for s in others])[0] if others else None,
                "guess": _mean([_share(metric, s) for s in guesses])[0],
            }
            yield _measured(rows, metric, [_share(metric, s) for s in scores], details)
        yield _false_rows(rows, scores)
        certainty = np.concatenate([s.certainty.ravel() for s in scores])
        right = np.concatenate([s.right.ravel() for s in scores])
        details = {"sure": _sure(certainty, right)}
        value = calibration_error(certainty, right)
        yield rows.measured("certainty_error", value, n=len(right), details=details)
        for place, name in enumerate(self.columns.names):
            shares = [s.right[:, place] for s in scores]
            guess = float(np.mean([s.right[:, place].mean() for s in guesses]))
            yield _measured(rows.of({"column": name}), "cell_accuracy", shares, {"guess": guess})

    def _imputation(self, metric: str) -> dict[str, JsonValue]:
        """The share of the other cells that are right where some columns are known."""
        names = self.options.knows
        if not names or metric != "cell_accuracy":
            return {}
        others = [name not in names for name in self.columns.names]
        shares = []
        for batch in self.campaign.drawn:
            truth = self.columns.cells(batch.inputs)
            guess = imputed(self.columns, truth, names)
            hits = right_cells(self.columns, guess, truth, self.options.tolerance)
            shares.append(hits.diagonal(dim1=0, dim2=1)[others].double().mean())
        return {"imputed": float(torch.stack(shares).mean()), "knows": list(names)}

    def _save(self, name: str, outcomes: Sequence[AttackedTable]) -> None:
        """Pictures and tables of every update, where they are asked for."""
        folder = self.options.save_examples
        for number, outcome in enumerate(outcomes if folder else (), start=1):
            assert folder is not None
            if outcome.answer is None:
                continue
            file, reveal = f"{name}-{number:02d}", self.options.reveal
            write_cells(folder, file, self.columns, outcome.answer, reveal=reveal)
            if outcome.scores is not None:
                draw_cells(folder, file, outcome.scores)

    def _guesses(self) -> list[TableScores]:
        """Scores of the best guess without an update, by batch."""
        scores = []
        for batch in self.campaign.drawn:
            mode = torch.full((len(batch),), float(batch.labels.double().mode().values))
            answer = replace(guessed(self.columns, len(batch)), labels=mode)
            truth = self.columns.cells(batch.inputs)
            made = scores_of(self.columns, answer, truth, batch.labels, self.options.tolerance)
            scores.append(made)
        return scores


def _attacked(
    method: TableAttack,
    options: TableOptions,
    columns: TableColumns,
    campaign: Campaign,
    observed: AttackedBatch,
    number: int,
    execution: Execution,
) -> AttackedTable:
    """One update attacked and scored, with the next batch's truth for the floor."""
    seed = number_of(execution.seed, "table", number)
    drawn = campaign.drawn
    truth = columns.cells(drawn[number].inputs) if campaign.scored else None
    how = options.patience, options.ensemble, options.iterations, options.decoys, options.tolerance
    try:
        setting = TableSetting(columns, seed, *how, truth)
        answer = method.run(observed.view, setting, execution.progress)
    except NotApplicable as error:
        return AttackedTable(None, None, None, str(error))
    if not campaign.scored:
        return AttackedTable(answer, None, None)
    scored = [
        scores_of(columns, answer, columns.cells(batch.inputs), batch.labels, options.tolerance)
        for batch in (drawn[number], drawn[(number + 1) % len(drawn)])
    ]
    return AttackedTable(answer, scored[0], scored[1] if len(drawn) > 1 else None)


def _row_share(outcomes: Sequence[AttackedTable]) -> float:
    scores = [outcome.scores for outcome in outcomes if outcome.scores is not None]
    return float(np.mean([s.rows.mean() for s in scores])) if scores else 0.0


def _share(metric: str, scores: TableScores) -> NDArray[np.bool_]:
    """Of each cell or row, whether it counts for a metric."""
    if metric == "cell_accuracy":
        return scores.right.ravel()
    return scores.rows if metric == "row_accuracy" else scores.certified


def _mean(shares: Sequence[NDArray[np.bool_]]) -> tuple[float, tuple[float, float]]:
    """Over batches, each as often as it has rows or cells."""
    means = np.array([share.mean() for share in shares])
    return clustered(means, np.array([float(len(share)) for share in shares]))


def _measured(
    rows: Rows, metric: str, shares: Sequence[NDArray[np.bool_]], details: dict[str, JsonValue]
) -> Measurement:
    value, interval = _mean(shares)
    count = len(shares)
    if metric == "rows_certified":  # a proof of these rows, and no estimate of others
        details = {**details, "interval_of_others": list(interval)}
        return rows.measured(metric, value, n=sum(map(len, shares)), details=details)
    return rows.measured(
        metric,
        value,
        interval=interval,
        n=count,
        details=details,
    )


def _false_rows(rows: Rows, scores: Sequence[TableScores]) -> Measurement:
    named, false = sum(s.named for s in scores), sum(s.false for s in scores)
    if not named:
        return next(rows.skipped("no row is named", ["false_rows"]))
    details: dict[str, JsonValue] = {"certified": sum(s.false_certified for s in scores)}
    interval = clopper_pearson(false, named)
    return rows.measured("false_rows", false / named, interval=interval, n=named, details=details)


def _sure(certainty: NDArray[np.float64], right: NDArray[np.bool_]) -> JsonValue:
    """Of cells that are called at least 90 % sure, how many there are and which share is right."""
    sure = certainty >= 0.9
    share = float(right[sure].mean()) if sure.any() else None
    said = float(certainty[sure].mean()) if sure.any() else None
    return {"cells": int(sure.sum()), "right": share, "said": said}


def _facts(answers: Sequence[TableAnswer]) -> dict[str, JsonValue]:
    """What the attack says of every update, and decoys over all of them."""
    facts: dict[str, JsonValue] = {"updates": [dict(answer.facts) for answer in answers]}
    tried, false = _total(answers, "decoys"), _total(answers, "decoys_certified")
    for reason in ("not_found", "below_precision", "below_noise"):
        if count := _total(answers, reason):
            facts[f"rows_{reason}"] = count
    if tried:
        facts |= {"decoys": tried, "decoys_certified": false}
        facts["false_rate_at_most"] = clopper_pearson(false, tried)[1]
    return facts


def _total(answers: Sequence[TableAnswer], fact: str) -> int:
    """A fact that is a count, summed over updates."""
    return sum(int(str(answer.facts.get(fact, 0))) for answer in answers)
