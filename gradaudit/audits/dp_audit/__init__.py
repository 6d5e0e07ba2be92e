"""Empirical epsilon of a gradient-release mechanism, as a bound that holds."""

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, Metric


class DpAuditOptions(AuditOptions):
    """Options of the audit of a mechanism."""

    mechanism: str | None = Field(
        None,
        description="dp:clip=C,sigma=S (and then ,noise=laplace, or ,per= "
        "and one of record, sum, mean, release), opacus:clip=C,sigma=S (divides by a constant; "
        ",divisor=records plays its fault opacus#571), your own as FILE.py:NAME, or middleware "
        "between a client and the wire, "
        "which needs no attribute: flower:MODULE:OBJECT?k=v&k=v (a mod) or "
        "nvflare:MODULE:CLASS?k=v (a filter), of a module or a FILE.py. "
        "The noise is absolute, and by default on the sum of clipped gradients. Laplace noise per "
        "record is refused beside --companions: their mean has no simple law.",
    )
    claimed_epsilon: float | None = Field(
        None,
        ge=0,
        description="Claimed epsilon; the exit status is 1 where the lower bound exceeds it.",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="Delta of every (ε, δ) in the report.")
    trials: int = Field(
        5000, ge=100, description="Expected number of releases under each hypothesis."
    )
    mode: Literal["implementation", "exact", "one-run"] = Field(
        "implementation",
        description="Mode of the audit: run the mechanism (implementation), sample the law of its "
        "statistic (exact), or guess from a single training which canaries took part (one-run): "
        "clients of --canaries RUN, or records of a training by --mechanism opacus:… for --steps "
        "at --sampling-rate and --rate.",
    )
    record: str = Field("crafted", description="Canary record: random, crafted, or an index.")
    clip: float | None = Field(
        None,
        gt=0,
        description="L2 norm that a mechanism from a file clips to; crafted records depend on it.",
    )
    noise: Literal["unknown", "gaussian"] = Field(
        "unknown", description="Law of the noise that a mechanism from a file declares to add."
    )
    companions: int = Field(0, ge=0, description="Number of other records in the batch.")
    relation: Literal["replace", "remove"] = Field(
        "replace",
        description="Neighbour relation: a record's value (or a client's update) is replaced by "
        "another, or the record (or the update) is removed. Removed records are "
        "played for opacus:… and FILE.py:NAME beside --companions, and need no attribute.",
    )
    domain: Literal["feasible", "free"] = Field(
        "feasible",
        description="Domain of a crafted record: observed ranges and categories (feasible), or "
        "anywhere (free).",
    )
    replacement: Literal["worst", "uniform"] = Field(
        "worst",
        description="Choice of the neighbour's value: the one that moves the gradient most, or a "
        "random one.",
    )
    statistic: Literal["projection", "distance"] = Field(
        "projection",
        description="Statistic that distinguishes the two hypotheses: the likelihood ratio, or the "
        "paper's distance; the other one is reported beside it, with a tenth of the "
        "error probability.",
    )
    canaries: Path | None = Field(
        None, description="Folder of a training with --canaries, for --mode one-run."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Confidence level of every bound.")
    restarts: int = Field(
        16, ge=0, description="Number of starting points for crafting the canary; 0 skips crafting."
    )
    iterations: int = Field(
        200, ge=2, description="Number of optimiser steps for crafting the canary."
    )
    rate: float = Field(0.1, gt=0, description="Learning rate of the training of --mode one-run.")
    unsent: tuple[str, ...] = Field(
        (),
        description="Glob of the state dict's keys whose arrays clients do not send; repeat "
        "it for several.",
    )
    steps: int | None = Field(
        None,
        ge=1,
        description="Number of steps over which the theoretical epsilon is composed, and of the "
        "training of --mode one-run.",
    )
    sampling_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sampling rate: the share of the records in the batch of each of these steps.",
    )


_riskier_higher = partial(Metric, riskier="higher", per_layer=False)


class DpAudit(Audit[DpAuditOptions]):
    """Lower bounds on ε from the per-attribute privacy audit game.

    A record holds one value of a private attribute or another, as a fair coin says for each of
    thousands of releases. Thresholds are fixed before the trials. One test t ≥ τ errs at rates p
    and q, and ε ≥ ln((1 − δ − q)/p), ln((1 − δ − p)/q) at the upper Clopper-Pearson limits of
    both; or guesses in both tails, with abstention between, are right at a rate of at most e^ε/(1
    + e^ε). Which of the two bounds it is, is chosen before the trials too. Releases that depend on
    each other give none. The gradient is that of every trainable parameter of all layers but the
    hidden ones, biases too, as DP-SGD clips it. Replacing a value moves a clipped gradient by up
    to 2Δ, so the theory is the analytic Gaussian mechanism at 2Δ/σ. The bounds of games, over
    attributes and statistics, hold at once (Bonferroni).

    Middleware between a client's training and the wire is of client level: neighbours are a
    simulated update and its opposite, or none, as in ``gradaudit job``, and each array of the state
    dict has its row. No training is run.

    One run (--mode one-run) has no releases to repeat: a training let in each of many clients of
    random directions by a coin (train --canaries), and what it released shows which. The headline
    is Steinke's bound on the whole run's ε of a client; beside it those that hold if the run is
    Gaussian: of the f-DP recursion, and of the mean shift (Andrew et al. 2024), with its
    estimate. By --mechanism opacus:… the canaries are records of known gradients in a training by
    Opacus that is run here, or in your own (gradaudit.integrations.opacus). Each of the three holds
    by itself at the confidence 1 − α, the largest of them at 1 − 3α: choose one before looking; the
    gate and the claim take the headline.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), definition 7.2; T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1)
    training run" (2023); B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for
    differential privacy" (2018).
    """

    name = "dp-audit"
    summary = "Bound a mechanism's epsilon from below by playing it."
    paper = "https://arxiv.org/abs/2408.16913"
    metrics = (
        _riskier_higher(
            id="epsilon_lower",
            title="Proven lower bound on epsilon",
            proven=True,
            warning=1,
            error=5,
            why="the releases of two neighbouring batches were distinguished so surely that "
            "epsilon cannot be smaller",
            question="attribute",
            chance=0.0,
            finding="Two values of the {secret} are distinguished.",
            asks="Are two values of the {secret} distinguished?",
            noun="epsilon at least",
            cleared="not distinguished",
            helps="more noise, or a smaller clip",
        ),
        _riskier_higher(
            id="epsilon_lower_gaussian",
            title="Lower bound on epsilon if the noise is Gaussian",
            proven=True,
        ),
        _riskier_higher(
            id="mu_lower",
            title="Lower bound on the gap over the noise, if that is Gaussian",
            proven=True,
        ),
        _riskier_higher(
            id="epsilon_point",
            title="The paper's estimate of epsilon, which is no bound",
            counts="trials",
        ),
        _riskier_higher(
            id="epsilon_pair",
            title="Exact epsilon of the pair that was played",
            finding="The pair that was played has a larger epsilon.",
            asks="Has the pair that was played a larger epsilon?",
            noun="epsilon",
            helps="more noise, or a smaller clip",
        ),
        _riskier_higher(
            id="epsilon_theory",
            title="Epsilon that the mechanism promises for a replaced record",
            finding="The mechanism's law has a larger epsilon.",
            asks="Has the mechanism's law a larger epsilon?",
            noun="epsilon",
            helps="more noise, or a smaller clip",
        ),
        _riskier_higher(
            id="epsilon_classical", title="Epsilon by the classical formula, valid up to 1"
        ),
        Metric(
            id="epsilon_ceiling", title="The most that so many trials can prove", per_layer=False
        ),
        _riskier_higher(
            id="canary_gap",
            title="Distance that replacing the value moves the noiseless release",
            unit="L2 norm",
        ),
        Metric(
            id="untouched",
            title="Whether an array leaves as training made it",
            riskier="higher",
            warning=0.5,
            why="an array passes the middleware bit for bit, neither clipped nor under noise",
            question="records",
            chance=0.0,
            finding="Arrays leave as training made them.",
            asks="Do arrays leave as training made them?",
            noun="arrays untouched",
            helps="middleware that handles arrays of every shape and type, or not sending these",
        ),
        Metric(id="norm_ratio", title="Share of an array's norm that the middleware leaves"),
    )
    headline = ("epsilon_lower",)
    Options = DpAuditOptions
    one_thread = True
    examples: ClassVar = (
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income' -a sex "
        "--mechanism dp:clip=1,sigma=0.1 --claimed-epsilon 5",
        "-m FILE.py:factory -d 'csv:table.csv?label=income' --mechanism flower:FILE.py:mod",
    )
    renames: ClassVar = {"mode": "model_mode"}
    priority = 35
    least: ClassVar = {"trials": 1000, "restarts": 4, "iterations": 20}
    quick: ClassVar = {"trials": 1000, "restarts": 8, "iterations": 60}
    thorough: ClassVar = {"trials": 20000, "restarts": 64, "iterations": 600}
