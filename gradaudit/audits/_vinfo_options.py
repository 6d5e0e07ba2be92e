"""Options of the vinfo audit."""

from typing import Literal

from pydantic import Field, field_validator

from gradaudit.audits.sharing_options import SharingOptions
from gradaudit.errors import UsageError

ITERATIONS = {"dlg": 20, "idlg": 20, "inverting-gradients": 240}
"""Steps of the attacks on the input where none are named: outer ones of L-BFGS, steps of Adam."""


class VinfoOptions(SharingOptions):
    """Options of the audit of usable information."""

    batch_size: int = Field(
        16,
        ge=1,
        description="Records in a batch, all with the same value of the attribute "
        "(1 with --original, any records).",
    )
    batches: int = Field(
        64,
        ge=10,
        description="Batches of each value to fit on; half as many to choose on, twice as many to "
        "score on.",
    )
    shadow: int | None = Field(
        None,
        ge=2,
        description="Records that the adversary fits and chooses on (without it, 70 % of those "
        "looked at, less what the correlation keeps); the rest score.",
    )
    repeats: int = Field(
        20,
        ge=2,
        description="Repetitions, each with another split of the records; fewer than 5 "
        "give a poor interval.",
    )
    family: tuple[str, ...] = Field(
        (),
        description="Predictive families (NAME,…) beside the prior: forest, mlp, logistic, "
        "extra-trees, discriminant (without it forest, mlp and logistic; with --paper forest).",
    )
    prior: Literal["uniform", "empirical"] = Field(
        "uniform",
        description="What is known without the gradient: nothing, or the values' frequencies.",
    )
    paper: bool = Field(
        False,
        description="Take the softmax of the forest's votes for probabilities, uncalibrated, as "
        "Mo21 does: it never shows more than 0.38 nats of two values, even of a perfect forest.",
    )
    original: bool = Field(
        False,
        description="Measure information about the input itself, by how often reconstructions "
        "succeed; the options of attributes say nothing then.",
    )
    correlation: bool | None = Field(
        None,
        description="Keep a third of the records for an independent attack, and correlate with its "
        "AUROC where there are 5 or more points (layers × checkpoints × attributes); without it, "
        "where there are 3,000 records or more.",
    )
    sensitivities: bool = Field(
        False, description="Correlate the layers' sensitivities with that AUROC too."
    )

    method: tuple[str, ...] = Field(
        ("dlg", "idlg", "inverting-gradients"),
        description="With --original: the family of attacks, NAME:key=value,… each; repeatable.",
    )
    restarts: int = Field(
        8, ge=1, le=10_000, description="With --original: starting points R of each attack."
    )
    iterations: int | None = Field(
        None,
        ge=1,
        description="With --original: steps of every attack (by default "
        + ", ".join(f"{count} of {name}" for name, count in ITERATIONS.items())
        + ", which shows less than the papers' 300 and 4,800 do).",
    )
    updates: int = Field(
        8,
        ge=1,
        description="With --original: updates that are attacked; --samples N takes as many as N "
        "records make.",
    )
    guesses: int = Field(
        256, ge=1, description="With --original: random reconstructions that the prior is made of."
    )
    together: tuple[int, ...] = Field(
        (1, 2),
        description="With --original: sizes of the sets of consecutive layers that are attacked "
        "(1: single layers); repeatable.",
    )
    threshold: float = Field(
        0.5, gt=0, le=1, description="With --original: SSIM of the rows without a variant."
    )
    known_labels: bool = Field(
        True,
        description="With --original: tell idlg and inverting-gradients the labels, which their "
        "papers read off the whole update; dlg searches them in any case.",
    )

    @field_validator("together")
    @classmethod
    def _sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or min(sizes) < 1:
            raise ValueError("a set has one layer or more")
        return tuple(dict.fromkeys(sizes))

    @field_validator("family", mode="before")
    @classmethod
    def _split_at_commas(cls, given: object) -> object:
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, (tuple, list)):
            return given
        return tuple(name.strip() for text in given for name in str(text).split(","))

    @field_validator("family")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from gradaudit.families import family

        for name in names:
            try:
                family(name)
            except UsageError as error:
                raise ValueError(str(error)) from error
        return names

    @property
    def members(self) -> tuple[str, ...]:
        """The families beside the prior."""
        return self.family or (("forest",) if self.paper else ("forest", "mlp", "logistic"))

    @property
    def permuted_repeats(self) -> int:
        """Repetitions of the permuted attribute: half as many, but five where there are."""
        return max(min(self.repeats, 5), self.repeats // 2)

    @property
    def attacker(self) -> str:
        """The family of the independent attack: none that measures, if there is another."""
        return "forest" if "extra-trees" in self.members else "extra-trees"

    @property
    def records_behind(self) -> int:
        """The records behind an update that is inverted: one, unless it was said."""
        return self.batch_size if "batch_size" in self.model_fields_set else 1
