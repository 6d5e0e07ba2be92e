"""Audits a whole federated job: what leaves its clients, and its actual privacy."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.core.noise_laws import Noise


class JobOptions(AuditOptions):
    """Options of the audit of a whole job."""

    folder: Path | None = Field(
        None, description="Folder of a Flower app or an NVFlare job (the argument of `job`)."
    )
    site: Path | None = Field(
        None,
        description="Privacy policy of the site, privacy.json (NVFlare); every scope in "
        "it is composed.",
    )
    client: str = Field("site-1", description="Name of the client whose app is audited (NVFlare).")
    model: str | None = Field(
        None,
        json_schema_extra={"short": "-m"},
        description="Model, where the job names none that can be built: zoo:NAME, "
        "FILE.py:factory, package.module:factory.",
    )
    replies: tuple[str, ...] = Field(
        (),
        description="Number that clients send beside their arrays: NAME=VALUE for a constant (also "
        "a list or text that a mod adds), NAME for one that follows from their data, NAME=none for "
        "one that is not sent, none for no number at all; TASK.NAME for one task "
        "(train.train_loss); repeat it for several. The framework's usual ones are assumed until "
        "they are declared, as no training is run.",
    )
    clients: int | None = Field(
        None,
        ge=1,
        description="Number of clients that are online (Flower); without it num-supernodes of the "
        "app's federation, or num-clients of its configuration.",
    )
    heaviest_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Largest share of the weight that one client holds in a mean weighted by "
        "counts; without it the epsilon of such a mean is unknown.",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        description="Number of rounds that epsilon is computed for (without it the "
        "rounds of the job).",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="Delta that epsilon is computed for.")
    noise: Noise | None = Field(
        None,
        description="Law of the noise that your own filters or mods add; without it epsilon is "
        "computed only for noise whose law is known from the framework.",
    )
    seed: int = Field(0, ge=0, description="Seed of the simulated updates.")


class Job(Audit[JobOptions]):
    """Compose a job's filters and mods as the framework does, and measure what leaves.

    ``gradaudit job JOB`` loads an NVFlare job folder or a Flower app. Filters and mods are run on
    simulated updates of the job's own model; executors, training functions and workflows are never
    entered. NVFlare's chains are those of its ``apply_filters`` (the site scope's filters, then the
    job's, by the exact key task/direction), Flower's from ``make_ffn`` (the first mod is outermost,
    mods of the app around those of ``@app.train``).

    sensitivity is the distance of what leaves of two opposite updates with common random numbers,
    so that the noise cancels; it is infinite where a longer update always moves what leaves
    further. noise is the deviation of an element over rounds. epsilon of a client composes T rounds
    exactly (Dong, Roth and Su 2019, corollary 3.3, checked against dp-accounting's privacy loss
    distributions); it is infinite where an array or number leaves in clear, and has no value where
    the law of the noise is not known. A record moves its client's update by no more than replacing
    the client does, so epsilon of a record is at most that, under both relations.

    server_multiplier is the noise of the released mean over the most that one client moves it,
    against what the strategy promises. scope is the noise of the training's chain over what a
    client moves, under each scope of the site's policy, and 0 where nothing bounds that.
    """

    name = "job"
    summary = "Audit what leaves a federated job's clients, and its epsilon."
    paper = "https://arxiv.org/abs/1905.02383"
    metrics = (
        Metric(
            id="faults",
            title="Faults of the job by which privacy is lost",
            per_layer=False,
            riskier="higher",
            error=0.0,
            question="records",
            chance=0.0,
            finding="The job has faults that cost privacy.",
            asks="Has the job faults that cost privacy?",
            noun="faults",
            why="each fault is listed with the file and key to change",
            helps="the repair that each fault names",
        ),
        Metric(id="chain", title="Filters or mods that a task's results pass", per_layer=False),
        Metric(id="unfiltered", title="Arrays and numbers that leave as they are", per_layer=False),
        Metric(id="untouched", title="Arrays that leave bit for bit as training made them"),
        Metric(
            id="sensitivity",
            title="Largest distance of what leaves of two updates, without noise",
            per_layer=False,
            unit="L2",
        ),
        Metric(id="noise", title="Deviation of the noise on an element", per_layer=False),
        Metric(id="repeats", title="Whether two rounds get the same noise", per_layer=False),
        Metric(
            id="server_multiplier",
            title="Noise of the released mean over the most that one client moves it",
            per_layer=False,
            riskier="lower",
        ),
        Metric(
            id="scope",
            title="Noise over what a client moves, under a scope of the site",
            per_layer=False,
            riskier="lower",
        ),
        Metric(
            id="epsilon_client",
            title="Epsilon of all rounds for a client replaced",
            per_layer=False,
            riskier="higher",
            guarantee=True,
        ),
        Metric(
            id="epsilon_record",
            title="Epsilon of all rounds for a record replaced, at most",
            per_layer=False,
            riskier="higher",
            guarantee=True,
        ),
    )
    headline = ("faults", "epsilon_client")
    proxy = True
    Options = JobOptions
    examples: ClassVar = ("JOB", "JOB --site privacy.json --rounds 50")
    brings_model = True
    priority = 200
