"""Which rows a sum of clients' updates gives away, and which of them belong to one client."""

from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from gradaudit.audits.base import Audit, Metric
from gradaudit.audits.sharing_options import ClientOptions


class AttributionOptions(ClientOptions):
    """Options of the attack on sums."""

    batch_size: int = Field(16, ge=1, description="Number of records of a client.")
    algorithm: Literal["fedsgd", "fedavg"] = Field(
        "fedavg",
        description="Update that a client shares: the difference after local training (fedavg), or "
        "a gradient (fedsgd), whose sum links no rows to each other.",
    )
    local_steps: int | None = Field(
        5, ge=1, description="Number of local steps of FedAvg, instead of epochs."
    )
    rate: float | None = Field(None, gt=0, description="Learning rate of FedAvg (0.1).")
    local_batch: int | None = Field(
        4, ge=1, description="Number of records in a local minibatch of FedAvg."
    )
    others: int = Field(
        4, ge=0, description="Number of other clients whose updates are in the sum too."
    )
    rounds: int = Field(
        5, ge=1, description="Number of rounds whose sums the attacker sees, of the same clients."
    )
    repeats: int = Field(36, ge=1, description="Number of repetitions with other records.")


_of_model = partial(Metric, per_layer=False, question="records", counts="repetitions")


class AttackAttribution(Audit[AttributionOptions]):
    """Recover rows from sums of clients' updates, and group them by client.

    The attacker sees what secure aggregation lets a server see: of each round the weights that the
    clients receive and the mean of their updates. A unit of the first fully connected layer that
    one row alone activates has the gradient δ [x; 1], so that ΔW_j/Δb_j is that row. A quotient
    counts as a row where every column holds a value that the column of other records can have, if
    columns have few values, and else where units of two rounds agree in it.

    Each unit's update is then written as a combination of recovered rows by least squares. Where
    that leaves nothing but rounding, a row that takes part and that did not activate the unit at
    the weights received was let in by local steps of its own client: it belongs to the client of
    the rows that did, where that is one row, or rows that are linked already.

    rows_recovered is the share of the clients' rows that are recovered, rows_invented that of the
    recovered rows that no client has. Of the pairs of recovered rows that are grouped together
    pair_precision is the share that one client owns, pair_recall is the share of the pairs of
    recovered rows of one client that are grouped together; ``by_chance`` beside them is their mean
    where the rows' clients are permuted.

    Source: T. Marchand et al., "SRATTA: Sample re-attribution attack of secure aggregation in
    federated learning" (2023), sections 3 and 4.
    """

    name = "attack attribution"
    summary = "Recover rows from sums of clients' updates, and group them by client."
    paper = "https://arxiv.org/abs/2306.07644"
    applies_defenses = True
    metrics = (
        _of_model(
            id="rows_recovered",
            title="Share of all clients' rows that are recovered from the sums",
            riskier="higher",
            chance=0.0,
            warning=0.0,
            error=0.1,
            why="secure aggregation hides no row that alone activates a unit of the first layer",
            finding="Rows are recovered from sums of clients.",
            asks="Are rows recovered from sums of clients?",
            noun="share of rows",
            cleared="not recovered",
            helps="larger local batches, a narrower first layer, or noise (--defense)",
        ),
        _of_model(
            id="pair_precision",
            title="Share of the grouped pairs of rows that one client owns",
            riskier="higher",
        ),
        _of_model(
            id="pair_recall",
            title="Share of one client's pairs of recovered rows that are grouped",
            riskier="higher",
        ),
        _of_model(
            id="rows_invented",
            title="Share of the recovered rows that no client has",
        ),
    )
    headline = ("rows_recovered",)
    Options = AttributionOptions
    examples = (
        "-m FILE.py:factory -d 'csv:table.csv?label=income'",
        "-m zoo:mlp -d digits --others 9 --rounds 10",
    )
    priority = 90
    least: ClassVar[dict[str, Any]] = {"repeats": 1, "rounds": 2}
    quick: ClassVar[dict[str, Any]] = {"repeats": 36, "rounds": 3}
    thorough: ClassVar[dict[str, Any]] = {"repeats": 40, "rounds": 20}
