"""A federation described in a file, whose values hold where no option says otherwise.

``gradaudit scan --deployment FILE.yaml``; see docs/deployment.md.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradaudit.core.yaml_file import read_yaml
from gradaudit.errors import UsageError

Setting = Literal["diagnostic", "deployed"]
"""Setting of a number: the attacker's best case, or the federation's."""
LOCAL = (
    *("epochs", "local_steps", "local_batch", "optimizer", "momentum"),
    *("weight_decay", "warmup", "accumulate"),
)
"""Keys that describe local training, which only FedAvg has."""
RUNGS = (
    ("batch_size",),
    ("algorithm", "epochs", "local_steps", "local_batch", "accumulate", "rate"),
    ("optimizer", "momentum", "weight_decay", "warmup"),
    ("mode",),
    ("defense",),
    ("hide",),
    ("others",),
)
"""Keys that change from each rung of the ladder to the next, starting at the best case."""


def _key(name: str) -> str:
    """Returns a field's name as the file spells it."""
    return name.replace("_", "-")


class Deployment(BaseModel):
    """A federation: its clients, their training, and who sees which updates.

    A key without a default may be left out.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        allow_inf_nan=False,
        alias_generator=_key,
        validate_by_name=True,
    )

    clients: int | None = Field(None, ge=1, description="Number of clients.")
    participation: int | None = Field(
        None, ge=1, description="Number of clients that take part in a round (by default all)."
    )
    algorithm: Literal["fedsgd", "fedavg"] = Field(
        "fedsgd",
        description="Update that a client sends: the gradient of a batch (fedsgd), or the "
        "difference that local training makes (fedavg, the default where any key of local training "
        "is given).",
    )
    records: int | None = Field(
        None, ge=1, description="Number of records that a client trains on in a round of fedavg."
    )
    batch_size: int | None = Field(
        None, ge=1, description="Number of records in a step (without it all of a client's)."
    )
    epochs: int | None = Field(
        None, ge=1, description="Number of a client's passes over its records."
    )
    local_steps: int | None = Field(
        None, ge=1, description="Number of a client's steps in a round, instead of epochs."
    )
    optimizer: Literal["sgd", "adam", "adamw"] | None = Field(
        None, description="Optimizer of a client's steps; its state is reset in each round."
    )
    rate: float | None = Field(None, gt=0, description="Learning rate of a client's steps.")
    momentum: float | None = Field(None, ge=0, lt=1, description="Momentum of sgd.")
    weight_decay: float | None = Field(None, ge=0, description="Weight decay of adamw.")
    warmup: int | None = Field(
        None, ge=0, description="Number of first steps in which the rate rises linearly."
    )
    accumulate: int | None = Field(
        None, ge=1, description="Number of minibatches whose gradients are averaged for a step."
    )
    mode: Literal["eval", "train"] = Field(
        "train", description="Mode in which clients run BatchNorm and dropout."
    )
    defense: tuple[str, ...] = Field(
        (), description="Defenses that are applied to each update before it leaves, in order."
    )
    hide: tuple[str, ...] = Field((), description="Globs of the layers that are never shared.")
    aggregation: Literal["plain", "secure"] = Field(
        "plain", description="Whether the server sees each update, or only secure sums of them."
    )
    sum_of: int | None = Field(
        None, ge=1, description="Number of updates in a secure sum (without it all of a round's)."
    )
    adversary: Literal["server", "client"] = Field(
        "server",
        description="Adversary: the server, or a client that sees each round's mean update and "
        "subtracts its own update from it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _several_or_one(cls, given: Any) -> Any:
        """Accepts one text for a list, and takes keys of local training to mean FedAvg."""
        if not isinstance(given, dict):
            return given
        lists = {k: [v] for k, v in given.items() if k in ("defense", "hide") and type(v) is str}
        named = {str(key).replace("-", "_") for key in given}
        implied = {} if named.isdisjoint({*LOCAL, "records"}) else {"algorithm": "fedavg"}
        return {**implied, **given, **lists}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name, most in (("participation", self.clients), ("sum_of", self.of_a_round)):
            asked = getattr(self, name)
            if asked is not None and most is not None and asked > most:
                raise ValueError(f"{_key(name)}: {asked} is more than all {most} clients")
        if self.sum_of is not None and self.aggregation == "plain":
            raise ValueError("sum-of: only secure sums have it; set aggregation: secure")
        local = [name for name in LOCAL if getattr(self, name, None) is not None]
        if self.algorithm == "fedsgd" and local:
            raise ValueError(f"{_key(local[0])}: only local training has it; set algorithm: fedavg")
        if not self.alone and self.seen_together is None:
            raise ValueError(
                "aggregation: set how many clients' updates are summed: participation, or clients"
            )
        if self.algorithm == "fedavg" and self.behind is None:
            raise ValueError("records: set how many records a client trains on in a round")
        return self

    @property
    def of_a_round(self) -> int | None:
        """Number of clients that take part in a round; None where it is not set."""
        return self.participation or self.clients

    @property
    def alone(self) -> bool:
        """Whether the adversary sees each client's own update."""
        return self.adversary == "server" and self.aggregation == "plain"

    @property
    def seen_together(self) -> int | None:
        """Number of clients' updates whose mean the adversary sees."""
        if self.alone:
            return 1
        if self.adversary == "server" and self.sum_of is not None:
            return self.sum_of
        known = 1 if self.adversary == "client" else 0
        return None if self.of_a_round is None else max(1, self.of_a_round - known)

    @property
    def behind(self) -> int | None:
        """Number of records behind a client's update; None where it is not set."""
        if self.algorithm == "fedsgd":
            return self.batch_size or self.records
        steps = (self.local_steps or 0) * (self.accumulate or 1)
        return self.records or (steps * self.batch_size if steps and self.batch_size else None)

    def of_subject(self) -> dict[str, Any]:
        """Returns the settings of an audit's subject in this deployment, by name."""
        return {"mode": self.mode, "defense": self.defense, "hide": self.hide}

    def of_updates(self) -> dict[str, Any]:
        """Returns the options of shared updates in this deployment, by name, without unset ones."""
        local = {name: getattr(self, name) for name in LOCAL if name != "local_batch"}
        settings = {
            "batch_size": self.behind,
            "algorithm": self.algorithm,
            "rate": self.rate,
            **(local if self.algorithm == "fedavg" else {}),
            "local_batch": self.batch_size if self.algorithm == "fedavg" else None,
            "others": (self.seen_together or 1) - 1,
        }
        return {name: value for name, value in settings.items() if value is not None}


def read_deployment(path: str | Path) -> Deployment:
    """Read a file that describes a federation.

    Raises:
        UsageError: the file cannot be read, is empty, a key is unknown, or what it says does not
            fit.
    """
    schema = "gradaudit schema deployment"
    deployment = read_yaml(Path(path), Deployment, schema)
    if all(getattr(deployment, name) is None for name in deployment.model_fields_set):
        keys = ", ".join(map(_key, Deployment.model_fields))
        raise UsageError(f"{path}: sets no key of a federation; keys are: {keys} (see `{schema}`)")
    return deployment
