"""RAVDESS: what an emotion model's gradients tell of gender and of who speaks.

    python -m benchmarks.papers.ravdess [--games property,user] [--weights initial,trained]
        [--rounds 3] [--trials 400] [--batches 480] [--reduce maxpool:10] [--deals 4] [--layers '*']

1,440 utterances of 24 speakers with 988 features (openSMILE emobase), standardised; the model has
one hidden layer of 100 units and tells eight emotions. By the design of the data gender and emotion
are uncorrelated: every speaker says everything in every emotion. Li et al. 2024 (sections 5.1 and
5.2) play on CREMA-D: such features of 7,442 utterances by 91 actors, four emotions. Their figures
stand beside ours, but are of other data.

Asked is whether an attack's lower 95 % end is above guessing: AUROC 1/2 of the gender, a success
rate of 1/5 of the speaker among five. No speaker has records on both sides: shadow speakers are
others than those attacked. Of each game there are several deals of speakers to sides. Intervals of
a deal are clustered by speaker; that of all deals is Student's of their values, which share
speakers. Batches of the gender hold nearly all speakers of one, so that no two of a side are
independent, and a deal where all is guessed right proves little by itself: that game is played by
records too (``by records``: the adversary has other records, but of the same speakers, as in the
paper). ``initial`` weights are the paper's (section 5.1.4), and are trained during the game for so
many rounds; ``trained`` have been through ten epochs on all records before.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

import gradaudit
from benchmarks.harness import arguments, data_file, epochs_of, fit, heading, line
from gradaudit.core.statistics.intervals import student
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.models.building import load_model
from gradaudit.report import Measurement

EPOCHS, RATE = 10, 0.01
GUESSING = {("property", "auroc"): 1 / 2, ("property", "asr"): 1 / 2}
GUESSING |= {("user", "auroc"): 1 / 2, ("user", "asr"): 1 / 5}
PAPER = {("property", "auroc"): "0.897", ("user", "auroc"): "0.681"}
"""Of all rounds together, on CREMA-D."""


def speech() -> Records:
    return load_records(
        f"npz:{data_file('ravdess_emobase.npz')}?inputs=features&label=emotion&attribute=gender"
        "&user=speaker&scale=standard",
        attributes=("gender",),
    )


def correlation(records: Records) -> None:
    """Cramér's V of gender and emotion; the paper gives Pearson's r."""
    gender, emotion = records.attributes["gender"].codes, records.labels.numpy()
    table = np.zeros((2, len(records.classes)))
    np.add.at(table, (gender, emotion), 1)
    test = stats.chi2_contingency(table, correction=False)
    v = np.sqrt(test.statistic / table.sum())
    print(f"gender and emotion: Cramér's V {v:.4f}, χ² p {test.pvalue:.3f}")


def emotion_model(records: Records, weights: str) -> nn.Module:
    width, classes = records.inputs.shape[1], len(records.classes)
    model = load_model(f"zoo:mlp?inputs={width}&classes={classes}", seed=0)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    epochs = EPOCHS if weights == "trained" else 0
    batches = epochs_of(len(records), 32, epochs, torch.Generator().manual_seed(0))
    return fit(model, records.inputs, records.labels, sgd, batches)


def play(game: str, weights: str, records: Records, given: argparse.Namespace) -> None:
    """The deals of one game; of every update that of the true secret beside the shuffled one."""
    options = {key: getattr(given, key) for key in ("rounds", "trials", "batches", "reduce")}
    sides = "by speakers" if records.users is not None else "by records"
    model = emotion_model(records, weights)
    right = (model(records.inputs).argmax(dim=1) == records.labels).float().mean()
    print(f"\n{game}, {sides}, {weights} weights, task accuracy {right:.3f} before the game")
    heading("deal", "update", "metric", "ours", "shuffled")
    found: dict[str, list[Measurement]] = {"auroc": [], "asr": []}
    for deal in range(given.deals):
        report = gradaudit.audit(
            model,
            records,
            audits={f"attack {game}": options},
            attributes=("gender",) if game == "property" else (),
            layers=given.layers.split(","),
            seed=deal,
        )
        for row in report.measurements:
            if row.metric not in found or row.variant:
                continue
            if row.status != "measured":
                line(deal, row.layer or "whole", row.metric, f"{row.status}: {row.reason}", "")
                continue
            permuted: Any = row.details.get("permuted") or {"value": None, "interval": None}
            shuffled = cell(permuted["value"], permuted["interval"])
            line(deal, row.layer or "whole", row.metric, cell(row.value, row.interval), shuffled)
            if row.layer is None:
                found[row.metric].append(row)
    for metric, rows in found.items():
        verdict(game, metric, rows)


def verdict(game: str, metric: str, rows: list[Measurement]) -> None:
    """The whole update in all deals, the paper beside it."""
    values = np.array([row.value for row in rows])
    ends = lows = [row.interval[0] for row in rows if row.interval]
    said = f"whole update, {metric}: mean of {len(rows)} deals {values.mean():.3f}"
    if len(values) > 1:
        low, high = np.clip(student(values), 0, 1)
        said, ends = f"{said} [{low:.3f}, {high:.3f}]", [low, *lows]
    guessing = GUESSING[game, metric]
    held = "all" if min(ends) > guessing else f"{sum(low > guessing for low in ends)}/{len(ends)}"
    print(
        f"{said}, paper {PAPER.get((game, metric), '-')} (CREMA-D); lower end of the deals' own "
        f"intervals {min(lows):.3f} to {max(lows):.3f}; lower ends above {guessing:g}: {held}"
    )


def cell(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None or interval is None:
        return "–"
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def main() -> None:
    given = arguments(__doc__)
    records = speech()
    print(f"RAVDESS, {len(records)} records, {vars(given)}", flush=True)
    correlation(records)
    for weights in given.weights.split(","):
        for game in given.games.split(","):
            play(game, weights, records, given)
            if game == "property":
                play(game, weights, replace(records, users=None), given)


if __name__ == "__main__":
    main()
