"""Tables: rows that attacks rebuild from some updates, scored, beside the best guess without."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.attacks.reconstruction.campaign import Campaign, Choice, example_name, expect_folder
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.audits.attack_reconstruct.measure import attacked_rounds
from gradaudit.audits.attack_table import AttackTable, TableOptions
from gradaudit.audits.attack_table.base import (
    NO_PROOF,
    TableAnswer,
    TableAttack,
    TableSetting,
    guessed,
)
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.table_scores import (
    TableScores,
    calibration_error,
    scores_of,
    write_cells,
)
from gradaudit.audits.rows import NO_TRUTH, Rows
from gradaudit.core.parts import discover
from gradaudit.core.randomness import number as number_of
from gradaudit.core.randomness import rng
from gradaudit.core.specs import pick
from gradaudit.core.statistics.intervals import clopper_pearson, clustered
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject

SHARES = ("cell_accuracy", "row_accuracy", "rows_certified")
METRICS = (*SHARES, "false_rows", "certainty_error")
_AUTOMATIC = ("row-space", "tableak")
"""Attacks without --method; the second needs a schema of categories."""
_KNOWN = 5_000
"""Records that the attacker has of the same kind, at most."""


@dataclass(frozen=True)
class AttackedTable:
    """The answer and scores of a method for one update, or the reason why it does not apply.

    Attributes:
        answer: None where the method does not apply.
        scores: beside the truth, where it is known.
        other: beside the next batch, which is the floor.
        reason: why there is no answer.
    """

    answer: TableAnswer | None = None
    scores: TableScores | None = None
    other: TableScores | None = None
    reason: str = ""


def gradients(audit: AttackTable, subject: Subject) -> float:
    """Count the search for each row as a thousand passes.

    Raises:
        NotApplicable: the records are no table.
    """
    _expect_table(subject.records)
    return 1_000.0 * audit.options.records_behind * audit.options.count(subject)


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
    known = discover("gradaudit.audits.attack_table", TableAttack)
    usual = _AUTOMATIC if subject.records.features else _AUTOMATIC[:1]
    methods = {
        name: pick(name, known, f"--method {name}", "attack on tables")()
        for name in options.method or usual
    }
    sharing = options.sharing(subject.defenses, subject.hidden)
    for target, variant in attacked_rounds(subject, options):
        threat = ThreatModel(target, sharing, subject.layers, options.known_labels)
        drawn = options.drawn(subject.samples)
        choice = Choice(options.batch_size, drawn, options.records, options.update, options.rate)
        campaign = Campaign.prepare(subject, choice, threat, progress)
        others = _others(subject, campaign.drawn)
        columns = TableColumns.of(subject.records, others.inputs)
        attack = _Attack(options, columns, campaign, others)
        yield from attack.rows(Rows(type(audit), variant), methods)


def _expect_table(records: Records) -> None:
    if records.discrete and not records.features:
        raise NotApplicable("the records are no table: they are of tokens, and have no columns")
    if len(records.parts) > 1:
        raise NotApplicable(
            f"the model takes {len(records.parts)} inputs, and rows are rebuilt of one table"
        )
    if records.labels.dim() > 1 and (parts := records.labels[0].numel()) > 1:
        raise NotApplicable(f"rows are rebuilt with one label each; these have {parts}")


def _others(subject: Subject, batches: Sequence[Records]) -> Records:
    """Records that are in none of the batches: what the attacker has of the kind."""
    inputs = subject.records.inputs
    rows = inputs.flatten(1).contiguous().numpy()
    kind = np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))
    taken = torch.cat([batch.inputs.flatten(1) for batch in batches]).contiguous().numpy()
    free = np.flatnonzero(~np.isin(rows.view(kind).ravel(), taken.view(kind).ravel()))
    if len(free) < 2:
        return subject.records
    chosen = rng(subject.seed, "table", "others").permutation(free)[:_KNOWN]
    return subject.records.take(np.sort(chosen))


@dataclass(frozen=True)
class _Attack:
    """The attack on one checkpoint."""

    options: TableOptions
    columns: TableColumns
    campaign: Campaign
    others: Records

    def rows(self, rows: Rows, methods: dict[str, TableAttack]) -> Iterator[Measurement]:
        """Make the rows of the first method that answers, or of each if several are compared."""
        compared = len(methods) > 1 and bool(self.options.method)
        results: dict[str, list[AttackedTable]] = {}
        reasons: dict[str, str] = {}
        for name, method in methods.items():
            answers = [o.answer for outcomes in results.values() for o in outcomes if o.answer]
            if not compared and any(bool(answer.named.any()) for answer in answers):
                break
            outcomes = self.campaign.outcomes(partial(self._attacked, method), "table")
            if all(outcome.answer is None for outcome in outcomes):
                reasons[name] = outcomes[0].reason
            else:
                results[name] = outcomes
                self._save(example_name(name, rows.variant), outcomes)
        if not results:
            raise NotApplicable("; ".join(f"{name}: {why}" for name, why in reasons.items()))
        best = max(results, key=lambda name: _shares_right(results[name]))
        facts: dict[str, JsonValue] = {"method": best, "refused": dict(reasons)}
        yield from self._of_method(rows.of({}, facts), results[best])
        for name in methods if compared else ():
            rows_of = rows.of({"method": name})
            if name in results:
                yield from self._of_method(rows_of, results[name])
            else:
                yield from rows_of.skipped(reasons[name], METRICS)

    def _attacked(
        self, method: TableAttack, observed: AttackedBatch, number: int, execution: Execution
    ) -> AttackedTable:
        """Attack one update, and score the answer by its own batch and, as a floor, the next."""
        drawn, scored = self.campaign.drawn, self.campaign.scored
        setting = TableSetting(
            self.columns,
            number_of(execution.seed, "table", number),
            self.options,
            self.columns.cells(drawn[number].inputs) if scored else None,
            self.others,
            self.campaign.threat,
        )
        try:
            answer = method.run(observed.view, setting, execution.progress)
        except NotApplicable as error:
            return AttackedTable(reason=str(error))
        if not scored:
            return AttackedTable(answer)
        other = self._scores(answer, drawn[(number + 1) % len(drawn)]) if len(drawn) > 1 else None
        return AttackedTable(answer, self._scores(answer, drawn[number]), other)

    def _scores(self, answer: TableAnswer, batch: Records) -> TableScores:
        truth = self.columns.cells(batch.inputs)
        return scores_of(self.columns, answer, truth, batch.labels, self.options.tolerance)

    def _guess(self, batch: Records) -> TableScores:
        """Score the best guess without an update."""
        mode = batch.labels.double().flatten().mode().values.expand(len(batch))
        return self._scores(replace(guessed(self.columns, len(batch)), labels=mode), batch)

    def _of_method(self, rows: Rows, outcomes: Sequence[AttackedTable]) -> Iterator[Measurement]:
        answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
        refused = [outcome.reason for outcome in outcomes if outcome.answer is None]
        rows = rows.of({}, {**self.campaign.facts, **_facts(answers, refused)})
        scores = [outcome.scores for outcome in outcomes if outcome.scores is not None]
        noisy = any(answer.facts.get("noisy") for answer in answers)
        if noisy:
            yield from rows.skipped(NO_PROOF, ["rows_certified"])
        if not scores:  # a proof needs no truth
            proved = torch.cat([answer.certified for answer in answers]).double()
            if not noisy:
                yield rows.measured("rows_certified", float(proved.mean()), n=len(proved))
            yield from rows.skipped(NO_TRUTH, [m for m in METRICS if m != "rows_certified"])
            return
        for metric in SHARES[: 2 if noisy else 3]:
            yield _measured(rows, metric, [s.counted(metric) for s in scores], {})
        guesses = list(map(self._guess, self.campaign.drawn))
        others = [outcome.other for outcome in outcomes if outcome.other is not None]
        knowledge = {
            "most frequent values": [s.right.ravel() for s in guesses],
            "another update": [s.right.ravel() for s in others],
        }
        for name, shares in knowledge.items():
            if shares:
                yield _measured(rows.of({"knowledge": name}), "cell_accuracy", shares, {})
        yield _false_rows(rows, scores)
        certainty = np.concatenate([s.certainty.ravel() for s in scores])
        right = np.concatenate([s.right.ravel() for s in scores])
        value, sure = calibration_error(certainty, right), _sure(certainty, right)
        yield rows.measured("certainty_error", value, n=len(right), details={"sure": sure})
        for place, name in enumerate(self.columns.names):
            shares = [s.right[:, place] for s in scores]
            guess = float(np.mean([s.right[:, place].mean() for s in guesses]))
            yield _measured(rows.of({"column": name}), "cell_accuracy", shares, {"guess": guess})

    def _save(self, name: str, outcomes: Sequence[AttackedTable]) -> None:
        folder = self.options.save_examples
        for number, outcome in enumerate(outcomes if folder else (), start=1):
            assert folder is not None
            file, reveal = f"{name}-{number:02d}", self.options.reveal
            if outcome.answer is not None:
                write_cells(folder, file, self.columns, outcome.answer, reveal=reveal)


def _shares_right(outcomes: Sequence[AttackedTable]) -> tuple[float, float]:
    """The mean shares of rows and of cells that are right; nothing where the truth is unknown."""
    scores = [outcome.scores for outcome in outcomes if outcome.scores is not None]
    shares = [(s.rows.mean(), s.right.mean()) for s in scores] or [(0.0, 0.0)]
    rows, cells = np.mean(shares, axis=0)
    return float(rows), float(cells)


def _measured(
    rows: Rows, metric: str, shares: Sequence[NDArray[np.bool_]], details: dict[str, JsonValue]
) -> Measurement:
    means, sizes = np.array([(share.mean(), float(len(share))) for share in shares]).T
    value, interval = clustered(means, sizes)
    if metric == "rows_certified":  # a proof of these rows; other seeds have other rows
        details = {**details, "known_to": list(interval)}
        return rows.measured(metric, value, n=sum(map(len, shares)), details=details)
    return rows.measured(metric, value, interval=interval, n=len(shares), details=details)


def _false_rows(rows: Rows, scores: Sequence[TableScores]) -> Measurement:
    named, false = sum(s.named for s in scores), sum(s.false for s in scores)
    if not named:
        return next(rows.skipped("no row is named", ["false_rows"]))
    details: dict[str, JsonValue] = {"certified": sum(s.false_certified for s in scores)}
    interval = clopper_pearson(false, named)
    return rows.measured("false_rows", false / named, interval=interval, n=named, details=details)


def _sure(certainty: NDArray[np.float64], right: NDArray[np.bool_]) -> JsonValue:
    """Count the cells that are called at least 90 % sure, with the shares said and right."""
    sure = certainty >= 0.9
    share = float(right[sure].mean()) if sure.any() else None
    said = float(certainty[sure].mean()) if sure.any() else None
    return {"cells": int(sure.sum()), "right": share, "said": said}


def _facts(answers: Sequence[TableAnswer], refused: Sequence[str]) -> dict[str, JsonValue]:
    """Collect the details of the report: facts of every update, and decoys over all of them.

    Shares are of the updates that are not refused; how many others there are stands beside them.
    """
    facts: dict[str, JsonValue] = {"updates": [dict(answer.facts) for answer in answers]}
    if refused:
        facts |= {
            "updates_refused": len(refused),
            "refused_because": list[JsonValue](sorted(set(refused))),
        }

    def total(fact: str) -> int:
        return sum(int(str(answer.facts.get(fact, 0))) for answer in answers)

    tried, false = total("decoys"), total("decoys_certified")
    for reason in ("not_found", "below_precision", "below_noise"):
        if count := total(reason):
            facts[f"rows_{reason}"] = count
    if tried:
        facts |= {"decoys": tried, "decoys_certified": false}
        facts["false_rate_at_most"] = clopper_pearson(false, tried)[1]
    return facts
