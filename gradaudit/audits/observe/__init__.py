"""The audit of a captured update that needs no model and no data."""

from functools import partial

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, Metric

_of_model = partial(Metric, per_layer=False)
_HELPS = "larger batches (--deployment), secure aggregation, or noise (--defense)"
_ANY = 1e-15
"""Less than the share that one element has of any model."""


class ObserveOptions(AuditOptions):
    """Options of the audit of a captured update."""

    update: str | None = Field(
        None,
        description="Captured update to read: a file of gradients (`gradaudit capture` writes "
        "one), or two checkpoints OLD,NEW.",
    )
    rate: float | None = Field(
        None,
        gt=0,
        description="Learning rate between two checkpoints OLD,NEW (by default unknown).",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        description="Number of records behind the update, where that is known; rows of a table "
        "are proved only then.",
    )


class Observe(Audit[ObserveOptions]):
    """Check an update in seconds before it leaves, mostly without model or data.

    record_share: rows of a fully connected layer whose quotients ∇_{W_k}/∇_{b_k} agree hold one
    record, which the quotient is (Fan et al. 2020, theorem 2.1); the number is the energy of the
    largest such group over the layer's, at least. labels_named: classes whose gradient of the last
    bias is negative were there (Zhao et al. 2020, section 3.1). tokens_named: rows of a table that
    moved (Melis et al. 2019, section 4.1). span_share: the rank of a linear map's update over its
    width; whoever holds a record or text can test whether it was there (Petrov et al. 2024,
    theorem 3.1). rows_certified is the share of a table's rows that one gradient proves to an
    attacker who knows the columns alone (as in ``attack table``); it takes the model, the table and
    the number of records. norm and moved_share are of each layer, weights and biases together;
    beside counts buffers, whole numbers and single numbers that leave with it and that no defense
    acts on.

    All of it is exact but for rounding, and at least what is there: an attack with the model does
    better, so this alone never makes a layer's risk low.
    """

    name = "observe"
    summary = "Check one update for leaked labels and single records, without attacks."
    paper = "https://arxiv.org/abs/2006.11601"
    metrics = (
        Metric(
            id="record_share",
            title="Largest share of a layer's update that is a single record's, at least",
            riskier="higher",
            question="records",
            chance=0.0,
            warning=0.0,
            error=0.5,
            why="rows of this layer's update hold one record alone, and a division reveals it",
            finding="Records can be divided out of a layer.",
            asks="Can records be divided out of a layer?",
            noun="share of one record",
            helps=_HELPS,
        ),
        _of_model(
            id="labels_named",
            title="Classes that the last bias names as being among the labels",
            riskier="higher",
        ),
        Metric(
            id="tokens_named",
            title="Tokens that rows of the table name",
            riskier="higher",
            question="records",
            warning=0.0,
            why="rows of a table that moved are the words of the batch",
            finding="Moved rows name tokens.",
            asks="Do moved rows name tokens?",
            noun="tokens named",
            helps="keep the table on the client (--hide), or noise (--defense)",
        ),
        _of_model(
            id="rows_certified",
            title="Share of the table's rows behind the update that it proves",
            riskier="higher",
            question="records",
            chance=0.0,
            error=0.0,
            why="the update proves which rows of the table were behind it",
            finding="Rows behind the update are proved.",
            asks="Are rows behind the update proved?",
            noun="share of rows proved",
            helps="batches of more rows than the first layers are wide, or noise (--defense)",
        ),
        Metric(
            id="span_share",
            title="Dimensions that the batch fills at a linear map, over its width",
            riskier="lower",
        ),
        Metric(id="norm", title="Length of the layer's update, weights and biases together"),
        Metric(id="moved_share", title="Share of the layer's elements that moved"),
        _of_model(
            id="update_moved_share",
            title="Share of the whole update's elements that moved",
            riskier="lower",
            question="records",
            error=_ANY,
            why="no element of the update moved: training changed nothing",
            finding="Training moved nothing.",
            asks="Did training move nothing?",
            noun="share of elements moved",
            helps="an optimizer that holds the parameters which the model trains",
        ),
        _of_model(
            id="beside",
            title="Buffers, whole numbers and single numbers that leave beside the update",
        ),
    )
    headline = ("record_share",)
    proxy = True
    Options = ObserveOptions
    examples = (
        "-m FILE.py:factory -d 'csv:table.csv?label=income' --update update.safetensors",
        "-m 'zoo:mlp?inputs=10&classes=2' -d diabetes --update old.safetensors,new.safetensors",
    )
    priority = 5
