"""The audit that measures which rows of a table an update gives away."""

from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gradaudit.audits.attack_reconstruct.options import UpdateOptions
from gradaudit.audits.base import Audit, Metric


class TableOptions(UpdateOptions):
    """Options of the attack on tables."""

    batch_size: int = Field(32, ge=1, description="Number of rows behind a client's update.")
    method: tuple[str, ...] = Field(
        (),
        description="Attack that rebuilds rows: row-space (whole rows with proof) or tableak "
        "(cells by optimisation); repeat it to compare both (without it row-space, "
        "and tableak where that does not apply).",
    )
    ensemble: int = Field(
        4, ge=1, description="Number of optimisations that tableak pools (30 in its paper)."
    )
    iterations: int = Field(
        1000,
        ge=1,
        description="Number of steps of each of tableak's optimisations (1500 in its paper).",
    )
    tolerance: float = Field(
        0.02,
        gt=0,
        description="Largest error of a number that counts as right, in standard deviations of "
        "its column (0.319 in TabLeak's paper).",
    )
    known_labels: bool = Field(False, description="Give the labels to the attacker.")
    save_examples: Path | None = Field(
        None,
        description="Folder for a table of each update's answer, with the certainty of its cells.",
    )
    reveal: bool = Field(
        False, description="Write the rows' values into the tables of --save-examples."
    )


_of_model = partial(Metric, riskier="higher", per_layer=False, question="records")


class AttackTable(Audit[TableOptions]):
    """Rebuild the rows of a batch of a table, and prove which of them were in it.

    Each record is tested alone (method ``row-space``): [x; 1] lies in the row space of [dW₁ | db₁]
    and [φ(W₁x + b₁); 1] in that of [dW₂ | db₂] (Petrov et al. 2024, DAGER, theorem 3.1), and one
    category a column makes the search for such x a least-squares problem. Rows that are found are
    taken out of the gradient until nothing is left. Where the spans say nothing, cells are
    optimised until their gradient is the one that was shared (method ``tableak``: Vero et al. 2023,
    section 4).

    The answer's rows are matched with the batch's by an optimal assignment. cell_accuracy is the
    share of cells that are right, row_accuracy of rows that are right in every cell and the label;
    rows_certified is the share of the batch's rows that the attacker can be sure of: their residual
    is below a tenth of the least of decoys' (named rows with one category swapped and other
    records), and their multiplicity is whole. Certificates are of categories; numbers have a
    precision beside them. Behind noise rows are named and none is certified. false_rows is the
    share of named rows that are not in the batch. certainty_error is how far the certainty of cells
    lies from the share of them that are right, the mean over ten bins. Rows of cell_accuracy
    with some ``knowledge`` are right without the update.
    """

    name = "attack table"
    summary = "Reconstruct rows of a table from an update, with certificates."
    paper = "https://arxiv.org/abs/2210.01785"
    applies_defenses = True
    metrics = (
        _of_model(
            id="cell_accuracy",
            title="Share of the batch's cells that the attacker names",
        ),
        _of_model(
            id="row_accuracy",
            title="Share of the batch's rows that the attacker names in every cell",
            chance=0.0,
            warning=0.0,
            error=0.1,
            why="an attacker reconstructs whole rows of the table",
            finding="Rows of the table are reconstructed.",
            asks="Are rows of the table reconstructed?",
            noun="share of rows",
            counts="updates (attack table --batches)",
            cleared="not reconstructed",
            helps="batches of more rows than the first layers are wide, or noise (--defense)",
        ),
        _of_model(
            id="rows_certified",
            title="Share of the batch's rows that the attacker can prove",
            chance=0.0,
            error=0.0,
            why="an attacker can prove that a row is in the batch",
            finding="Rows of the table are proved.",
            asks="Are rows of the table proved?",
            noun="share of rows proved",
            cleared="not proved",
            helps="batches of more rows than the first layers are wide, or noise (--defense)",
        ),
        Metric(
            id="false_rows",
            title="Share of the named rows that are not in the batch",
            per_layer=False,
        ),
        Metric(
            id="certainty_error",
            title="How far cells' certainty lies from the share of them that are right",
            per_layer=False,
        ),
    )
    headline = ("row_accuracy", "rows_certified")
    Options = TableOptions
    examples = (
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income&scale=standard'",
        "-m FILE.py:factory -d 'csv:table.csv?label=income&scale=standard' --batch-size 64 "
        "--method row-space --method tableak",
    )
    priority = 14
    least: ClassVar = {"batches": 1, "ensemble": 1, "iterations": 100}
    quick: ClassVar = {"batches": 2, "ensemble": 1, "iterations": 200}
    plain: ClassVar = {"batches": 4, "ensemble": 2, "iterations": 500}
    thorough: ClassVar = {"batches": 20}
