"""The part of an observation that may be sent on: the verdict's word, and four counts."""

from dataclasses import dataclass
from typing import Self

from gradaudit.judging import Word, fails, verdict
from gradaudit.report import Report

PREFIX = "gradaudit."


@dataclass(frozen=True)
class Verdict:
    """A policy's verdict on an update; it names no layer, label, word or value.

    Attributes:
        word: the verdict, ``passed``, ``failed`` or ``undecided``.
        fails: whether the policy does not let it leave, as the gate fails a report.
        shown: how many of its limits are exceeded.
        unclear: of how many that cannot be told.
        left_out: how many things there was no time for.
        share_of_time: what observing took so far, over what training took.
        fault: why nothing could be observed; it stays with the report.
    """

    word: Word
    fails: bool
    shown: int = 0
    unclear: int = 0
    left_out: int = 0
    share_of_time: float = 0.0
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether every limit of an error rule is shown to be kept."""
        return self.word == "passed"

    @classmethod
    def of(cls, judged: Report, share_of_time: float) -> Self:
        """The verdict of a judged report."""
        outcomes = [finding.outcome for finding in judged.findings]
        return cls(
            word=verdict(judged),
            fails=fails(judged),
            shown=outcomes.count("failed"),
            unclear=outcomes.count("unclear"),
            left_out=sum(row.left_out for row in judged.rows),
            share_of_time=share_of_time,
        )

    @classmethod
    def unobserved(cls, fault: str) -> Self:
        """The verdict on an update that could not be observed, and why; it may not leave."""
        return cls("undecided", fails=True, fault=fault)

    def metrics(self) -> dict[str, float]:
        """Numbers by name, always the same names, so that a server can average them."""
        return {
            f"{PREFIX}passed": float(self.passed),
            f"{PREFIX}undecided": float(self.word == "undecided"),
            f"{PREFIX}fails": float(self.fails),
            f"{PREFIX}shown": float(self.shown),
            f"{PREFIX}unclear": float(self.unclear),
            f"{PREFIX}left_out": float(self.left_out),
            f"{PREFIX}observed": float(not self.fault),
            f"{PREFIX}share_of_time": self.share_of_time,
        }

    def __str__(self) -> str:
        """In a few words."""
        if self.fault:
            return f"not observed: {self.fault}"
        limits = "limit" if self.shown == 1 else "limits"
        return (
            f"{self.word}: {self.shown} {limits} exceeded, {self.unclear} unclear, "
            f"{self.left_out} not looked at, {self.share_of_time:.1%} of the time"
        )
