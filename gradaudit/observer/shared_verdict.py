"""The part of an observation that may be sent on, and its rows as a report without data."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from pydantic import JsonValue

from gradaudit._version import __version__
from gradaudit.attacks.reading import ReadingValue
from gradaudit.attacks.reading.base import linear_of, size_of
from gradaudit.audits.observe import Observe
from gradaudit.audits.observe.measure import rows_of
from gradaudit.audits.rows import Rows
from gradaudit.judging import Word, fails, verdict
from gradaudit.report import Finding, LayerRecord, Report, TargetRecord
from gradaudit.sharing.named import NamedUpdate

PREFIX = "gradaudit."
_STATES = ("passed", "failed", "undecided", "not_looked_at")


@dataclass(frozen=True)
class Verdict:
    """A policy's verdict on an update; it names no layer, label, word or value.

    Attributes:
        word: the verdict, ``passed``, ``failed`` or ``undecided``.
        fails: whether the policy stops the update because of what was observed.
        not_looked_at: whether time was too short for something that an error rule judges, or
            nothing could be observed at all; the update then neither fails nor passes.
        shown: how many of its limits are exceeded.
        unclear: number of limits for which it is undecided.
        left_out: number of readings for which there was no time.
        not_applicable: number of readings that an error rule judges and that do not apply to
            the update; where that is all that is asked about records, the update does not pass.
        share_of_time: time of observing so far, as a share of the time of training.
        fault: why nothing could be observed; it stays with the report.
    """

    word: Word
    fails: bool
    not_looked_at: bool = False
    shown: int = 0
    unclear: int = 0
    left_out: int = 0
    not_applicable: int = 0
    share_of_time: float = 0.0
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether every limit of an error rule is shown to be kept."""
        return self.word == "passed"

    @property
    def may_leave(self) -> bool:
        """Whether the update may leave: it was looked at, and does not fail."""
        return not (self.fails or self.not_looked_at)

    @classmethod
    def of(cls, judged: Report, share_of_time: float) -> Self:
        """The verdict of a judged report."""
        outcomes = [finding.outcome for finding in judged.findings]
        left_out = {row.key for row in judged.rows if row.left_out}
        errors = [finding for finding in judged.findings if finding.level == "error"]
        failing = [finding for finding in errors if finding.says == "error"]
        unseen = [f.outcome == "unmeasured" and f.key in left_out for f in failing]
        word = verdict(judged)
        return cls(
            word="undecided" if word == "passed" and _unanswered(errors) else word,
            fails=fails(judged) and not (unseen and all(unseen)),
            not_looked_at=any(unseen),
            shown=outcomes.count("failed"),
            unclear=outcomes.count("unclear"),
            left_out=sum(row.left_out for row in judged.rows),
            not_applicable=sum(finding.outcome == "not-applicable" for finding in errors),
            share_of_time=share_of_time,
        )

    @classmethod
    def unobserved(cls, fault: str) -> Self:
        """The verdict on an update that could not be observed, and why; it may not leave."""
        return cls("undecided", fails=False, not_looked_at=True, fault=fault)

    def metrics(self) -> dict[str, float]:
        """Numbers by name, always the same, each named for what its mean over clients says.

        The first four are shares of updates: one of them is 1, so that their means add up to 1.
        """
        state = "not_looked_at" if self.not_looked_at and not self.fails else self.word
        return {
            **{f"{PREFIX}share_{each}": float(state == each) for each in _STATES},
            f"{PREFIX}share_observed": float(not self.fault),
            f"{PREFIX}share_not_fit_to_leave": float(not self.may_leave),
            f"{PREFIX}mean_limits_exceeded": float(self.shown),
            f"{PREFIX}mean_limits_unclear": float(self.unclear),
            f"{PREFIX}mean_readings_left_out": float(self.left_out),
            f"{PREFIX}mean_readings_not_applicable": float(self.not_applicable),
            f"{PREFIX}mean_share_of_time": self.share_of_time,
        }

    def __str__(self) -> str:
        """The verdict in a few words."""
        if self.fault:
            return f"not looked at: {self.fault}"
        limits = "limit" if self.shown == 1 else "limits"
        word = "not looked at" if self.not_looked_at and not self.fails else self.word
        unseen = self.left_out + self.not_applicable
        return (
            f"{word}: {self.shown} {limits} exceeded, {self.unclear} unclear, "
            f"{unseen} not looked at, {self.share_of_time:.1%} of the time"
        )


def _unanswered(errors: Sequence[Finding]) -> bool:
    """Whether no reading could answer something that error rules ask."""
    known = {metric.id: metric.question for metric in Observe.metrics}
    known["update_moved_share"] = None  # that training did something clears no record
    asked: dict[str, list[bool]] = {}
    for finding in errors:
        metric = finding.metric.rpartition(".")[2]
        question = known.get(metric) or metric
        asked.setdefault(question, []).append(finding.outcome == "not-applicable")
    return any(map(all, asked.values()))


def report_of(
    update: NamedUpdate,
    values: Sequence[ReadingValue],
    *,
    model: str,
    loss: str,
    provenance: Mapping[str, JsonValue],
) -> Report:
    """Makes the report of what was read off an update.

    Args:
        update: what leaves.
        values: all readings; ``details.left_out`` names those for which there was no time.
        model: what to call the model.
        loss: its training loss, as far as it is known.
        provenance: when and how it was observed.
    """
    layers = update.layers()
    sizes = {layer: size_of(update, names) for layer, names in layers.items()}
    return Report(
        tool={"name": "gradaudit", "version": __version__},
        target=TargetRecord(
            model=model,
            parameters=sum(sizes.values()),
            layers=[
                LayerRecord(
                    name=layer,
                    kind="Linear" if linear_of(update, names) else "array",
                    parameters=sizes[layer],
                    position=position,
                )
                for position, (layer, names) in enumerate(layers.items())
            ],
            loss=loss,
            mode="train",
        ),
        data={
            "adapter": "update",
            **({} if update.records is None else {"records": update.records}),
        },
        provenance={
            **provenance,
            "device": str(next(iter(update.after.values())).device),
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        },
        measurements=list(rows_of(Rows(Observe, facts={"kind": update.kind}), values)),
    )
