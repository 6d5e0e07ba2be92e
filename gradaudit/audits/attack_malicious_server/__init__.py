"""Checks whether a server crafted its model so that updates reveal single records."""

from typing import Any, ClassVar

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.deployment import Deployment


class MaliciousServerOptions(AuditOptions):
    """Options of the check."""

    batch_size: int = Field(
        16,
        ge=2,
        description="Number of records in a batch; the audit measures one record's share of the "
        "batch's gradient.",
    )

    published: str | None = Field(
        None,
        description="Weights that the server should have sent, as published: a file, or a folder "
        "of shards; the model's frozen parameters are compared with them.",
    )

    @classmethod
    def deployed(cls, deployment: Deployment) -> dict[str, Any]:
        """A client's batch size; a batch of one record has no share to measure."""
        size = deployment.batch_size or deployment.records
        return {"batch_size": size} if size and size > 1 else {}

    def seen(self) -> dict[str, Any]:
        """The gradient of a client's batch, before any defense."""
        return {"batch_size": self.batch_size, "algorithm": "fedsgd", "others": 0, "defense": ()}


class AttackMaliciousServer(Audit[MaliciousServerOptions]):
    """Check before training whether a model was crafted to reveal single records.

    record_share is max_i ‖g_i‖/Σ_i‖g_i‖ over the records of a batch, mean over batches. It tells
    what a batch gives away, not why: of a model that has learnt all records but one, that one's
    share is near 1 too. So it has no limit, and imprint_score, the strongest of four signs over
    that sign's own limit, has. Linear layers: rows alike that are active for ever fewer records
    (cumulative bins, Fowl et al. 2022, section 4: limit 4 in a chain), and rows that hardly a
    record turns on (trap weights, Boenisch et al. 2023: 0.4 of the rows). The layer that gives the
    outputs: all weights with one class (Wen et al. 2022, section 3: 0.7). All layers: records that
    the loss asks something of and the layer hears nothing of, less than 0.01 of the mean gain
    ‖g_i‖/‖∂ℓ_i/∂outputs‖ (0.3 of the records); by the gain an overfitted model is an honest one.

    movement is ‖w − w₀‖/‖w₀‖ since the checkpoint before (-c twice, oldest first) over what was to
    be expected: the median of the other layers' or the layer's own longest move before, 0.05 at
    least.

    altered_weights is the share of the model's frozen parameters, below an adapter for example,
    that differ from the published weights which ``--published`` names by more than rounding to half
    precision; every element counts, as a crafted base needs few. A frozen tensor that was not
    published counts whole.

    The limits are where simulation put them (benchmarks/coverage/malicious_server.py): above every
    honest round of fresh to overfitted models, below every attack on the same models. What passes
    is not proved honest: an attacker who knows these signs can make them smaller, at a price.
    """

    name = "attack malicious-server"
    summary = "Detect a model crafted to isolate single records."
    paper = "https://arxiv.org/abs/2110.13057"
    metrics = (
        Metric(
            id="record_share",
            title="Largest share of one record in a batch's gradient",
            riskier="higher",
            question="records",
            counts="batches",
        ),
        Metric(
            id="imprint_score",
            title="Strongest sign of an imprint or of fishing, over its limit",
            riskier="higher",
            question="records",
            error=1.0,
            why="this layer is crafted so that its gradient reveals single records",
            finding="The model is crafted to isolate single records.",
            asks="Is the model crafted to isolate single records?",
            noun="imprint score",
            helps="another model: send no update of this one, and ask the server where it is from",
        ),
        Metric(
            id="movement",
            title="How many times farther than expected the layer moved since the last round",
            riskier="higher",
            question="records",
            warning=8.0,
            why="this layer moved further since the last round than training explains",
            finding="Weights were replaced since the last round.",
            asks="Were weights replaced since the last round?",
            noun="movement",
            helps="the model of the round before, until the server says what changed",
        ),
        Metric(
            id="altered_weights",
            title="Share of the frozen weights that differ from the published ones",
            per_layer=False,
            riskier="higher",
            question="records",
            error=0.0,
            why="altered frozen weights can make the trained ones reveal single records",
            finding="Published weights were altered.",
            asks="Were published weights altered?",
            noun="share of altered weights",
            helps="the published weights: send no update of these, and ask what was changed",
        ),
    )
    headline = ()
    proxy = True
    Options = MaliciousServerOptions
    examples = (
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income'",
        "-m FILE.py:factory -c old.safetensors -c weights.safetensors "
        "-d 'csv:table.csv?label=income' --batch-size 8",
    )
    priority = 12
    least: ClassVar = {"samples": 32, "single": True}
