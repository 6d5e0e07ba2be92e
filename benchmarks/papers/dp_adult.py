"""Li et al. 2024, figures 7 and 8: Adult, an MLP with 100 hidden units, the attribute sex.

    python -m benchmarks.papers.dp_adult [--trials 5000] [--mode implementation|exact]

Figure 7: the gaps of a random and of crafted records, and what each statistic makes of it. Figure
8: the paper gives the ratio of theory (classical, sensitivity Δ) to its estimate in multiples of N
= 14 columns; its estimate follows. Ours stands beside it: the paper's estimate with its statistic
and with the projection (neither is a bound), the valid lower bound, the exact epsilon of the pair,
and theory at sensitivity 2Δ. The model is at its initialisation; the paper does not say which state
it audits.
"""

from benchmarks.harness import arguments, data_file, heading, line
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.data import load_records
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject

COLUMNS = 14
CLASSICAL_AT_ONE = 4.8448
"""√(2 ln(1.25/δ)) at δ = 1e-5."""

PAPER = {(4.0, 0.1): 1.86, (1.5, 0.1): 1.14, (2.0, 0.08): 1.20, (2.0, 0.13): 1.33}
"""Theory over estimate, in multiples of N, by (Δ, σ)."""
AS_THE_PAPER = [(1.5, 0.1), (2.0, 0.1), (3.0, 0.1), (4.0, 0.1), (2.0, 0.08), (2.0, 0.13)]
MORE_NOISE = [(0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (2.0, 0.7), (2.0, 1.4), (2.0, 3.0)]
"""Where the bound is below its ceiling."""


def subject() -> Subject:
    records = load_records(
        f"csv:{data_file('adult.csv')}?label=income&scale=standard", attributes=("sex",)
    )
    inputs = records.inputs.shape[1]
    model = load_model(f"zoo:mlp?inputs={inputs}&hidden=100&classes=2", seed=0)
    target = Target(model, CrossEntropy())
    return Subject((target,), records, target.layers, attributes=("sex",))


def audit(audited: Subject, clip: float, sigma: float, **options: object) -> list[Measurement]:
    mechanism = f"dp:clip={clip},sigma={sigma}"
    settled = DpAudit.Options.model_validate({"mechanism": mechanism, **options})
    return list(DpAudit(settled).run(audited, Silent()))


def number(rows: list[Measurement], metric: str, **variant: str | float) -> float:
    (row,) = (row for row in rows if row.metric == metric and row.variant == variant)
    assert row.number is not None, row.reason
    return row.number


def figure_7(audited: Subject, options: dict[str, object]) -> None:
    print("Figure 7: clip 2, sigma 0.1")
    heading("record", "gap", "statistic", "point", "bound")
    for name, chosen in (
        ("random", {"record": "random"}),
        ("crafted, feasible", {"domain": "feasible"}),
        ("crafted, free", {"domain": "free"}),
    ):
        rows = audit(audited, 2, 0.1, **options, **chosen)
        for row in (row for row in rows if row.metric == "epsilon_lower"):
            both = number(rows, "epsilon_point", **row.variant), row.number
            told = (f"{value:.2f}" for value in both)
            statistic = row.variant.get("statistic", "projection")
            line(name, f"{number(rows, 'canary_gap'):.3f}", statistic, *told)


def figure_8(audited: Subject, options: dict[str, object]) -> None:
    print(f"\nFigure 8: crafted records, free domain, N = {COLUMNS}")
    paper = ("paper: ratio/N", "estimate")
    ours = ("ours: ratio/N", "distance", "projection", "bound", "pair", "theory 2Δ")
    heading("clip", "sigma", *paper, *ours)
    for clip, sigma in AS_THE_PAPER + MORE_NOISE:
        rows = audit(audited, clip, sigma, domain="free", **options)
        classical, said = CLASSICAL_AT_ONE * clip / sigma, ["–", "–"]
        if ratio := PAPER.get((clip, sigma)):
            said = [f"{ratio:.2f}", f"{classical / (ratio * COLUMNS):.2f}"]
        distance = number(rows, "epsilon_point", statistic="distance")
        metrics = ("epsilon_point", "epsilon_lower", "epsilon_pair", "epsilon_theory")
        found = (distance, *(number(rows, metric) for metric in metrics))
        ratio = classical / distance / COLUMNS
        line(clip, sigma, *said, f"{ratio:.2f}", *(f"{value:.2f}" for value in found))


def main() -> None:
    given = arguments(__doc__)
    audited = subject()
    options: dict[str, object] = {"trials": given.trials, "mode": given.mode}
    figure_7(audited, options)
    figure_8(audited, options)


if __name__ == "__main__":
    main()
