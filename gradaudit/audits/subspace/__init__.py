"""Distances between the gradients of records with and without a private attribute."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, MergeRare, Metric
from gradaudit.audits.presets import SAMPLED_LAYERS

DISTANCES: Mapping[str, str] = {
    "grassmann": "Grassmann distance: root of the sum of squared principal angles",
    "asimov": "Asimov distance: the largest principal angle",
    "chordal": "Chordal distance: root of the sum of squared sines of the principal angles",
    "procrustes": "Procrustes distance: twice the root of the sum of squared sines of half of them",
}
"""Titles by id."""


class SubspaceOptions(AuditOptions):
    """Options of the subspace audit."""

    merge_rare: MergeRare = 0
    reading: Literal["mean", "samples"] = Field(
        "samples",
        description="Kind of a record group's subspace: the leading directions of the records' "
        "single gradients, or the row space of their mean gradient.",
    )
    permutations: int = Field(
        200,
        ge=19,
        le=100_000,
        description="Number of label permutations for the p-value, which is at least 1 / (number + "
        "1); where records have users, the users' labels are permuted. Fewer than 100 leave the "
        "default limit of 0.01 undecided.",
    )


def _metrics() -> Iterator[Metric]:
    for name, title in DISTANCES.items():
        yield Metric(id=name, title=title, unit="rad", riskier="higher")
    yield Metric(
        id="grassmann_permuted",
        title="Mean Grassmann distance between groups drawn at random",
        unit="rad",
    )
    yield Metric(
        id="p_value",
        title="Share of random groups at least as far apart in the Grassmann distance",
        riskier="lower",
        warning=0.01,
        why="gradients of records with and without the attribute are further apart than those of "
        "random groups",
        question="attribute",
        finding="Gradients differ by the {secret}.",
        asks="Do gradients differ by the {secret}?",
        noun="permutation p",
        helps="noise (--defense)",
    )


class Subspace(Audit[SubspaceOptions]):
    """Distances between the subspaces of two groups' gradients, and a permutation test.

    With principal angles θ_1 … θ_k between the k-dimensional subspaces of the gradients of records
    with a value of the attribute and of the rest: Grassmann ‖θ‖₂, Asimov max θ, chordal ‖sin θ‖₂,
    Procrustes 2‖sin(θ/2)‖₂ (Mo et al. 2022, "Quantifying and localizing usable information leakage
    from neural network gradients", eq. 9 and 10; Ye and Lim 2016, table 2).

    The paper leaves the subspace open. ``samples``: the k leading directions of the group's single
    gradients, uncentred, k being what holds 95 % of the energy of both groups together, or the
    records of the smallest group that any labelling makes. ``mean``: the row space of the group's
    mean gradient as a matrix (C_out × rest), k the smaller numerical rank of the two; where k is
    the whole space, row space is everything and the layer is skipped. A mean forgets most of what
    its records hold, so ``samples`` is the default.

    Distances grow with k and with the noise of small groups, so they compare with nothing but
    themselves: beside each stands what groups drawn at random give. The p-value is (1 + b)/(1 + N)
    over N permutations of the labels, k kept. Where records have users, whole users are permuted if
    each has one value, and otherwise labels among each user's own records; the details say which. A
    layer is skipped where every permutation gives the same distance: nothing could be found there.
    An attribute of more than two values compares each with the rest; of several comparisons of a
    layer the headline is the one that stands out most, and all are variants. The headline's p-value
    is corrected for all comparisons of all layers looked at (Westfall and Young 1993), so that of
    an attribute that tells nothing one scan in a hundred has a p-value of 0.01 somewhere; what the
    comparison has by itself is in the details.

    There is no interval on a distance: resampled records repeat, and repeated records span less
    and lie further apart. ``known_to`` in the details says how far distances of half samples vary
    (``samples`` alone), and where p-values of new samples lie (Boos and Stefanski 2011). Gradients
    are those of single records, before any defense.

    Limits: a distance alone says nothing, so the p-value is what is judged. A limit of 0.01 flags
    one in a hundred models that tell nothing; being told apart is not yet a measure of
    how much is told, so no limit is an error.
    """

    name = "subspace"
    summary = "Measure distances of gradients with and without an attribute."
    paper = "https://arxiv.org/abs/2105.13929"
    metrics = tuple(_metrics())
    headline = ("grassmann", "p_value")
    proxy = True
    Options = SubspaceOptions
    one_thread = True
    priority = 38
    least: ClassVar = {"permutations": 100, "single": True, "samples": 12, "layers": SAMPLED_LAYERS}
    quick: ClassVar = {"permutations": 100}
    plain: ClassVar = {"permutations": 100}
    thorough: ClassVar = {"permutations": 2000}
