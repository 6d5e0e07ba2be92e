"""Options of a federated training, which are flags of ``train`` and arguments in Python."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_CANARIES = 100_000


class TrainingOptions(BaseModel):
    """Everything that decides a training's numbers except the model, its data and the seed."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
    )

    algorithm: str = Field(
        "fedavg", description="Training algorithm: fedsgd, fedavg or round-robin."
    )
    clients: int = Field(
        10, ge=1, le=10_000, description="Number of clients that the records are dealt out to."
    )
    rounds: int = Field(10, ge=1, le=100_000, description="Number of training rounds.")
    partition: str = Field(
        "iid",
        description="Partition of the records over clients: iid (each class dealt out evenly), or "
        "dirichlet:A (each class's shares drawn from a Dirichlet law; the smaller A, the more "
        "lopsided).",
    )
    epochs: int = Field(
        1, ge=1, description="Number of a client's passes over its records in each round."
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        description="Number of records in a client's step (without it 32, with fedsgd all that it "
        "holds).",
    )
    optimizer: Literal["sgd", "adam"] = Field(
        "sgd", description="Optimizer of the client's steps (with fedsgd, of the server's steps)."
    )
    rate: float = Field(0.1, gt=0, allow_inf_nan=False, description="Learning rate of these steps.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd.")
    weight_decay: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Weight decay (L2 penalty)."
    )
    canaries: int = Field(
        0,
        ge=0,
        le=MOST_CANARIES,
        description="Number of canary clients that send random directions, each included with "
        "probability 1/2; dp-audit --mode one-run guesses from the trained model which "
        "were included.",
    )
