"""The verdict: outcome, policy, and the worst finding in plain words, in one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradaudit.judging import verdict
from gradaudit.judging.policy import DEFAULT
from gradaudit.judging.risk import risks_of
from gradaudit.report import Report
from gradaudit.view.concerns import Concern
from gradaudit.view.layers import Layers

UNNAMED = "its policy"
NO_POLICY = "none"
SERVER = "a server can "


@dataclass(frozen=True)
class Verdict:
    """Whether a report passes, by which policy, and what is worst in it; or what was measured.

    Attributes:
        outcome: as the gate says; ``measured`` where nobody judged.
        policy: the policy's name.
        sha256: of the policy; empty where the report does not say it.
        worst: what was found, in plain words; how much was measured, where nobody judged.
        tally: how many layers have each risk.
        warned: whether a warning is shown.
        whole: the risk of the whole model; empty where no rule judged it.
    """

    outcome: Literal["passed", "failed", "measured"]
    policy: str
    sha256: str
    worst: str
    tally: str
    whole: str = ""
    warned: bool = False

    @property
    def sentence(self) -> str:
        """``FAILED by the default policy: a server can rebuild single records``."""
        if self.outcome == "measured":
            return f"MEASURED: {self.worst}; {DEFAULT} sets no limit here"
        warned = " with warnings" if self.outcome == "passed" and self.warned else ""
        return f"{self.outcome.upper()} by {self.policy}{warned}: {self.worst}"


def verdict_of(judged: Report, concerns: Sequence[Concern], layers: Layers) -> Verdict:
    """The verdict on a judged report."""
    whole = risks_of(judged).get(None)
    policy, sha256 = policy_of(judged)
    outcome = verdict(judged)
    said = _amount(judged) if outcome == "measured" else _worst(concerns) or _nothing(layers)
    return Verdict(
        outcome=outcome,
        policy=policy,
        sha256=sha256,
        worst=said,
        warned=any(concern.shown for concern in concerns),
        tally=layers.tally + (f"; whole model {whole}" if whole else ""),
        whole=str(whole) if whole else "",
    )


def policy_of(judged: Report) -> tuple[str, str]:
    """Name and SHA-256 of the policy that judged a report; the hash is empty where nobody knows."""
    if not judged.findings:
        return NO_POLICY, ""
    by = judged.provenance.get("policy")
    name, sha256 = (by.get("name"), by.get("sha256")) if isinstance(by, dict) else ("", "")
    return str(name or UNNAMED), str(sha256 or "")


def _amount(report: Report) -> str:
    """``6 numbers of 2 layers and the whole model``."""
    measured = [row for row in report.measurements if row.status == "measured"]
    layers = len({row.layer for row in measured} - {None})
    of = [f"{layers:,} layer{'s' if layers > 1 else ''}"] if layers else []
    of += ["the whole model"] if any(row.layer is None for row in measured) else []
    return f"{len(measured):,} number{'s' if len(measured) > 1 else ''} of {' and '.join(of)}"


def _worst(concerns: Sequence[Concern]) -> str:
    """What is shown, most gravely, and what graver is not excluded; empty without concerns."""
    shown = [concern for concern in concerns if concern.shown]
    left = "" if not concerns or concerns[0].shown else concerns[0].sentence
    if not shown:
        return f"nothing beyond a limit is shown; {left}" if left else ""
    gravest = [concern for concern in shown if concern.level == shown[0].level]
    return "; ".join(filter(None, (_together(*_two(gravest)), left)))


def _nothing(layers: Layers) -> str:
    """What it means that no limit is exceeded: little where nobody tried."""
    idle = sum(line.level == "not tested" for line in layers.lines)
    if not idle:
        return "no limit is exceeded, and none is left open"
    tried = f"nothing tried to learn from {idle:,} of {len(layers.lines):,} layers"
    return f"no limit is exceeded, but {tried}"


def _two(gravest: Sequence[Concern]) -> list[str]:
    """The first, and the first that answers another question as surely."""
    first, *rest = gravest
    others = (
        concern
        for concern in rest
        if first.question and concern.question not in (None, first.question) and not concern.proxy
    )
    return [concern.sentence for concern in (first, *list(others)[:1])]


def _together(first: str, second: str = "") -> str:
    if not second:
        return first
    shared = first.startswith(SERVER) and second.startswith(SERVER)
    return f"{first}, and {'can ' + second.removeprefix(SERVER) if shared else second}"
