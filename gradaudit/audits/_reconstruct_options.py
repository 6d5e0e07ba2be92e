"""The options of ``attack reconstruct``. No torch in here."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from gradaudit.audits.base import AuditOptions

AUTOMATIC = ("closed-form", "dlg")
AUTOMATIC_ITERATIONS = 60
_FLAGS = {
    "objective": "objective",
    "tv": "tv",
    "box": "box",
    "optimiser": "optimiser",
    "iterations": "iterations",
    "learning_rate": "rate",
    "decay": "decay",
    "init": "init",
    "adaptive": "adaptive",
    "precision": "precision",
}
"""Options of this audit by the name that methods know them by."""


class LocalOptions(AuditOptions):
    """How the attacked client makes its update."""

    algorithm: Literal["fedsgd", "fedavg"] = Field(
        "fedsgd", description="share a gradient, or the difference after local training"
    )
    epochs: int = Field(1, ge=1, description="local epochs of FedAvg")
    rate: float | None = Field(
        None,
        gt=0,
        description="learning rate of FedAvg (0.1), or between the two checkpoints of --update "
        "OLD,NEW (unknown)",
    )
    local_batch: int | None = Field(
        None, ge=1, description="records in a local minibatch of FedAvg (the whole batch)"
    )


class ReconstructOptions(LocalOptions):
    """Options of the reconstruction audit."""

    method: tuple[str, ...] = Field(
        (),
        description="dlg, idlg, inverting-gradients, r-gap, copa or closed-form, with options as "
        "NAME:key=value,…; repeat to compare; without it: closed-form where that applies, and dlg "
        f"with {AUTOMATIC_ITERATIONS} iterations",
    )
    restarts: int = Field(4, ge=1, le=10_000, description="starting points of each attack")
    iterations: int | None = Field(
        None,
        ge=1,
        description="steps of the optimiser; of L-BFGS outer steps of up to 20 inner ones (300 for "
        "dlg and idlg, 2400 for inverting-gradients)",
    )
    batch_size: int = Field(1, ge=1, description="records behind an update")
    batches: int = Field(
        4, ge=1, description="updates to attack; --samples N takes as many as N records make"
    )
    records: tuple[int, ...] = Field(
        (),
        description="attack the batch of these records of the data set, by number from 0; with "
        "--update, the records that the update was made of, to score the answer",
    )
    known_labels: bool = Field(False, description="tell the attacker the labels")
    update: str | None = Field(
        None,
        description="attack a captured update: a file of gradients (safetensors or a state dict), "
        "or two checkpoints OLD,NEW",
    )
    objective: Literal["l2", "cosine"] | None = Field(
        None, description="distance of updates that is minimised"
    )
    tv: float | None = Field(None, ge=0, description="weight of the pictures' total variation")
    box: bool | None = Field(None, description="keep candidates in the known range of values")
    optimiser: Literal["lbfgs", "adam", "signed-adam"] | None = Field(None, description="optimiser")
    learning_rate: float | None = Field(None, gt=0, description="learning rate of Adam")
    decay: bool | None = Field(
        None, description="let Adam's rate fall to a tenth at 3/8, 5/8 and 7/8 of the iterations"
    )
    init: Literal["normal", "uniform", "pattern", "given"] | None = Field(
        None, description="where the attack starts"
    )
    start: Path | None = Field(
        None, description="a .npy file with the batch that --init given starts from"
    )
    adaptive: bool | None = Field(
        None, description="the attacker compares only what a defense did not set to zero"
    )
    precision: Literal["float32", "float64"] | None = Field(
        None, description="floating-point precision of the attack"
    )
    success: float = Field(
        0.1, gt=0, description="relative error up to which a restart counts as a success"
    )
    every_round: bool = Field(False, description="attack every checkpoint, not only the newest")
    save_examples: Path | None = Field(
        None,
        description="folder for pictures of originals beside reconstructions (private data)",
    )

    @field_validator("records")
    @classmethod
    def _distinct(cls, records: tuple[int, ...]) -> tuple[int, ...]:
        if any(record < 0 for record in records):
            raise ValueError("records are counted from 0")
        return records

    def flags(self) -> dict[str, Any]:
        """The options of methods that are set, by the names that methods know."""
        given = {of_method: getattr(self, own) for own, of_method in _FLAGS.items()}
        flags = {name: value for name, value in given.items() if value is not None}
        if not self.method:
            flags.setdefault("iterations", AUTOMATIC_ITERATIONS)
        return flags
