"""Options of the four inference attacks."""

from typing import Literal

from pydantic import Field, field_validator

from gradaudit.audits.sharing_options import SharingOptions


class InferenceOptions(SharingOptions):
    """Options of an inference attack."""

    batch_size: int | None = Field(  # type: ignore[assignment]
        None,
        ge=1,
        description="Records in a batch (without it the paper's: 16 for attribute and property, "
        "128 for distribution, 8 for user).",
    )
    shadow: int = Field(
        1000, ge=2, description="Records of the same population that the adversary has, at most."
    )
    batches: int = Field(400, ge=10, description="Shadow batches that it fits on in each repeat.")
    trials: int = Field(
        2000, ge=2, description="Private batches that it has to guess, in all repeats together."
    )
    repeats: int = Field(
        5,
        ge=1,
        le=100,
        description="Splits of the records into shadow and private ones that the game is played "
        "on.",
    )
    merge_rare: int = Field(
        0,
        ge=0,
        description="Merge an attribute's values of fewer than so many records into one (other).",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Observed rounds: the last so many checkpoints (all of them); without "
        "checkpoints the audit trains so many rounds itself (3).",
    )
    learning_rate: float = Field(
        0.01, gt=0, description="SGD's, in the rounds that the audit trains itself."
    )
    adaptive: bool = Field(
        True,
        description="Play an adversary too that knows the defenses and applies them to its own "
        "updates; it is then the headline.",
    )
    knows: tuple[str, ...] = Field(
        (),
        description="Columns of the batch's records that the adversary knows (COL,…; label is the "
        "task label).",
    )
    prior: Literal["empirical", "uniform"] = Field(
        "empirical",
        description="How often each value is played, and what the adversary takes for granted.",
    )
    family: tuple[str, ...] = Field(
        ("forest",),
        description="Predictive families (forest, mlp, logistic); of several, the adversary takes "
        "the best on its held-out records.",
    )
    held_out: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Share of the shadow records kept for choosing and calibrating.",
    )

    @field_validator("knows", "family", mode="before")
    @classmethod
    def _split_at_commas(cls, given: object) -> object:
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, (tuple, list)):
            return given
        names = [part.strip() for text in given for part in str(text).split(",")]
        if not all(names):
            raise ValueError("an empty name; write COL or COL,COL")
        return tuple(names)


class DistributionOptions(InferenceOptions):
    """Options of distributional inference."""

    bins: int = Field(6, ge=3, le=64, description="Ratio bins: none, then equal shares of (0, 1].")
    value: str | None = Field(
        None, description="The attribute's value that is counted (its rarest one)."
    )


class UserOptions(InferenceOptions):
    """Options of user inference."""

    candidates: int = Field(5, ge=2, le=1000, description="Users to choose from.")
