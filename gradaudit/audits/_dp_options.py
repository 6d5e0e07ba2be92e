"""Options of the dp-audit."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from gradaudit.audits.base import AuditOptions


class DpAuditOptions(AuditOptions):
    """Options of the audit of a mechanism."""

    mechanism: str | None = Field(
        None,
        description="dp:clip=C,sigma=S (and then ,noise=laplace, or ,per= "
        "and one of record, sum, mean, release), opacus:clip=C,sigma=S, a deterministic defense "
        "(prune:0.99), or your own as FILE.py:NAME. The noise is absolute, and by "
        "default on the sum of clipped gradients. Laplace noise per record is refused beside "
        "--companions: their mean has no simple law.",
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="What a mechanism from a file clips to, to craft records by; only for these.",
    )
    noise: Literal["unknown", "gaussian"] = Field(
        "unknown",
        description="What a mechanism from a file is declared to add; only for these.",
    )
    claimed_epsilon: float | None = Field(
        None, ge=0, description="The claim; exit with 1 where the bound exceeds it."
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of every epsilon.")
    trials: int = Field(5000, ge=100, description="Releases under each hypothesis, in expectation.")
    record: str = Field(
        "crafted", description="Which record plays: random, crafted, or the index of one."
    )
    domain: Literal["feasible", "free"] = Field(
        "feasible",
        description="Where a crafted record may lie: observed ranges and categories, or anywhere.",
    )
    replacement: Literal["worst", "uniform"] = Field(
        "worst",
        description="The other value: the one that moves the gradient most, or any at random.",
    )
    companions: int = Field(0, ge=0, description="Other records in the batch.")
    statistic: Literal["projection", "distance"] = Field(
        "projection",
        description="The likelihood ratio, or the paper's distance; the other one is reported "
        "beside it, with a tenth of the error probability.",
    )
    mode: Literal["implementation", "exact"] = Field(
        "implementation", description="Run the mechanism, or sample the law of its statistic."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Of every bound.")
    restarts: int = Field(16, ge=0, description="Starts for crafting; 0 leaves it out.")
    iterations: int = Field(200, ge=2, description="Steps of crafting.")
    steps: int | None = Field(None, ge=1, description="Compose the theory over so many steps.")
    sampling_rate: float = Field(
        1.0, gt=0, le=1, description="Share of the records in each of these steps' batches."
    )
    sweep_clip: tuple[float, ...] = Field((), description="Play at these clips too.")
    sweep_sigma: tuple[float, ...] = Field((), description="Play at these sigmas too.")
    picture: Path | None = Field(
        None, description="Draw both hypotheses' statistics to this .svg or .png."
    )
    curves: Path | None = Field(None, description="Draw the sweeps to this .svg or .png.")
