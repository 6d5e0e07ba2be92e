"""Privacy against accuracy over a defense's settings."""

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from gradaudit.audits.base import Audit, AuditOptions, Metric, split_at_commas

GAMES = ("reconstruct", "membership", "tracing")
PROPERTY = "property"
WEIGHTS = ("initial", "trained")
ROUNDS, RATE = 100, 0.1


class TradeoffOptions(AuditOptions):
    """Options of the audit of privacy against accuracy."""

    defense: tuple[str, ...] = Field(
        (),
        description="Defense whose options hold V1|V2|… for every value of the grid, as "
        "dp:clip=1,sigma=0.1|0.5,per=release; repeat it for several, applied "
        "in order.",
    )
    against: tuple[str, ...] = Field(
        (),
        description="Defenses to compare with, as 'selective:0.05 then "
        "dp:clip=1,sigma=0.1|0.5,per=release'; repeat it for several.",
    )
    game: tuple[str, ...] = Field(
        GAMES,
        description="Attacks of the game: reconstruct, membership (labels) and tracing, or "
        "property.",
    )
    batch_size: tuple[int, ...] = Field(
        (),
        description="Number of records behind an update (1; property 16); repeat it to "
        "compare several.",
    )
    weights: tuple[str, ...] = Field(
        WEIGHTS,
        description="Weights that are attacked: those before the training (initial), after it "
        "(trained), or both; the first is the headline.",
    )
    insider: bool = Field(
        True,
        description="Also play an attacker who knows the part of the model that clients keep "
        "private, as with spn.",
    )
    curves: Path | None = Field(None, description="File of the picture (.svg, .png) of the curves.")
    method: str = Field(
        "dlg", description="Attack that rebuilds records, with options as NAME:key=v,…."
    )
    iterations: int = Field(
        30,
        ge=1,
        description="Number of optimiser steps of the reconstruction attack; the papers "
        "take 300 and more.",
    )
    restarts: int = Field(
        1, ge=1, le=10_000, description="Number of starting points of each attack."
    )
    batches: int = Field(
        5,
        ge=1,
        description="Number of updates to attack; every setting is attacked on the same ones.",
    )
    participants: int = Field(
        5,
        ge=2,
        description="Number of clients that the attacked updates are dealt out to, for tracing.",
    )
    repeats: int = Field(
        1, ge=1, description="Number of repetitions with other splits, batches and trainings."
    )
    algorithm: str = Field(
        "fedsgd",
        description="Training algorithm: fedsgd (each round's update is a gradient, defended as "
        "the attacked ones are), fedavg or round-robin.",
    )
    clients: int = Field(10, ge=1, le=10_000, description="Number of clients in the training.")
    rounds: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description=f"Number of rounds of the training ({ROUNDS}; property 3).",
    )
    epochs: int = Field(
        1,
        ge=1,
        description="Number of a client's passes over its records in a round (not with fedsgd).",
    )
    training_batch: int = Field(32, ge=1, description="Number of records in a client's step.")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="Optimizer of the training.")
    learning_rate: float | None = Field(
        None, gt=0, description=f"Learning rate of the training ({RATE}; property 0.01)."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd.")
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the records that is kept to measure accuracy on (without it the "
        "data set's non-members, or 0.2).",
    )
    shadow: int = Field(
        1000, ge=2, description="Number of records that the adversary of property has."
    )
    shadow_batches: int = Field(
        2000,
        ge=10,
        description="Number of shadow batches that the adversary of property is fitted on.",
    )
    trials: int = Field(
        1000,
        ge=2,
        description="Number of private batches that the adversary of property has to guess.",
    )

    _names = field_validator("game", "weights", mode="before")(split_at_commas)

    @model_validator(mode="after")
    def _expect_known(self) -> Self:
        _expect_names("game", self.game, (*GAMES, PROPERTY))
        _expect_names("weights", self.weights, WEIGHTS)
        if PROPERTY in self.game and len(self.game) > 1:
            raise ValueError("--game property: is played alone; run the others by themselves")
        if len(set(self.batch_size)) < len(self.batch_size) or min(self.batch_size, default=1) < 1:
            raise ValueError("--batch-size: name each size once, from 1 on")
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes; the first is the headline's."""
        return self.batch_size or ((16,) if PROPERTY in self.game else (1,))


def _expect_names(field: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"--{field}: there is no {name!r}; there are: {', '.join(known)}")
    if not given or len(set(given)) < len(given):
        raise ValueError(f"--{field}: name each of {', '.join(known)} at most once, and one")


_riskier_higher = partial(Metric, riskier="higher", per_layer=False)
_riskier_lower = partial(Metric, riskier="lower", per_layer=False)


class Tradeoff(Audit[TradeoffOptions]):
    """Accuracy and the attackers' success over a grid of a defense's settings.

    Calibrated averaged performance CAP = (1/n) Σ_m Acc_m · dist_m (eq. 1) over the settings m of
    the grid, which is part of the result and stands in the details with all points. Acc is the test
    accuracy of a model trained with the setting. dist is what an attack leaves between its answer
    and the truth: for reconstruction min(‖x̂ − x‖/‖x‖, 1), since a blank record is always to be had
    (``cap_paper`` is without the minimum, as in the paper), for membership the share of labels
    not recovered, for tracing the share of records traced to a wrong participant. One
    reconstruction a batch serves all three (algorithms 5 and 6). The higher, the better the
    defense. Attacks are on the model before training, as in appendix C, and on the trained model;
    all settings attack the same batches of training records. The axis of the curves is
    log10(‖B‖/‖E‖ + 1) of bias gradients and what the defense made of them (figure 5). Accuracy is
    on the left axis, distance on the right.

    With ``game property`` it is the advantage of property inference against accuracy (Li et al.
    2024, figure 6); CAP is then over 1 − advantage.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart
    privacy attacks" (2020), sections 2.1 and 4, appendices C and D.
    """

    name = "tradeoff"
    summary = "Measure privacy against accuracy over a defense's settings."
    paper = "https://arxiv.org/abs/2006.11601"
    applies_defenses = True
    metrics = (
        _riskier_lower(
            id="cap",
            title="Calibrated averaged performance: accuracy times distance, distance at most 1",
        ),
        _riskier_lower(
            id="cap_paper",
            title="Calibrated averaged performance with unbounded distance, as in the paper",
        ),
        _riskier_lower(id="accuracy", title="Test accuracy of models trained with the defense"),
        _riskier_lower(
            id="distance", title="What an attack leaves between its answer and the truth"
        ),
        _riskier_higher(id="advantage", title="Advantage of property inference"),
        _riskier_higher(id="auroc", title="AUROC of property inference"),
    )
    headline = ("cap",)
    Options = TradeoffOptions
    examples: ClassVar = (
        "-m 'zoo:mlp?inputs=10&classes=2' -d diabetes --defense 'prune:0.5|0.9|0.99'",
        "-m FILE.py:factory -d 'csv:table.csv?label=income' "
        "--defense 'dp:clip=1e6,sigma=0.01|0.1|0.5,per=release'",
    )
    renames: ClassVar = {"defense": "base_defense"}
    priority = 110
    least: ClassVar = {"iterations": 5, "rounds": 10}
    quick: ClassVar = {"iterations": 10, "rounds": 20}
    thorough: ClassVar = {"iterations": 300, "batches": 10, "repeats": 5}
