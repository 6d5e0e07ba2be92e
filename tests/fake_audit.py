"""A tiny audit, for tests of what runs and shows audits."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gradaudit.audits import Audit, AuditOptions, Metric
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.subject import Subject

Trouble = Literal["no", "sleep", "crash", "leave", "refuse", "skip", "interrupt", "nothing", "nan"]


class Options(AuditOptions):
    """One option of each kind that the command line has to get right."""

    scale: float = Field(1.0, gt=0, description="What counts are multiplied by.")
    doubled: bool = Field(True, description="Twice the count.")
    mode: Literal["plain", "loud"] = Field("plain", description="loud prints.")
    trouble: Trouble = Field("no", description="What happens after the first layer.")


class Counting(Audit[Options]):
    """Counts the parameters of each layer, and stumbles on request."""

    name: ClassVar[str] = "counting"
    summary: ClassVar[str] = "How many parameters each layer has."
    metrics = (
        Metric(id="count", title="Parameters", riskier="higher", warning=500.0, why="Many."),
    )
    headline = ("count",)
    Options = Options
    renames: ClassVar[dict[str, str]] = {"mode": "model_mode"}
    quick: ClassVar[dict[str, float]] = {"scale": 0.5}
    thorough: ClassVar[dict[str, float]] = {"scale": 10.0}

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        if self.options.trouble == "nothing":
            raise NotApplicable("there is nothing to count")
        for position, layer in enumerate(subject.layers):
            if position == 1:
                self._stumble()
            if self.options.trouble == "nan":
                yield Measurement(
                    audit=self.reports_as(),
                    metric="count",
                    layer=layer.name,
                    status="failed",
                    reason="NaN",
                )
                continue
            value = layer.parameters * self.options.scale * (2 if self.options.doubled else 1)
            yield Measurement(
                audit=self.reports_as(), metric="count", layer=layer.name, value=value
            )
        if self.options.mode == "loud":
            print("counted")

    def gradients(self, subject: "Subject") -> float:
        return 1.0

    def _stumble(self) -> None:
        match self.options.trouble:
            case "sleep":
                time.sleep(9)
            case "crash":
                raise RuntimeError("first line\nsecond \x1b[31mline")
            case "leave":
                raise SystemExit(0)
            case "refuse":
                raise AuditError("the second layer is odd")
            case "skip":
                raise NotApplicable("only first layers are counted")
            case "interrupt":
                raise KeyboardInterrupt
