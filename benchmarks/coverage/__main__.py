"""Nominal against measured coverage of every interval and verdict, by simulation.

    python -m benchmarks.coverage [STUDIES …] [--full] [--runs 200] [--jobs 2] [--only '']
        [--results coverage.jsonl] [--markdown FILE]

Every simulated study is a line of the results file, written as it ends, so that an interrupted run
goes on where it was; a seed gives the same line whatever the jobs. The table tells, for each
interval in each cell, the share of studies whose interval held the truth, with Clopper and
Pearson's interval of that share, the same of the rows that a policy judges alone, the median width,
and how often the row was marked imprecise.
``benchmarks/results/coverage.md`` holds the full size. One thread a job.
"""

import argparse
import importlib
import json
import pkgutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import torch
from joblib import Parallel, delayed
from scipy.stats import binomtest
from threadpoolctl import threadpool_limits

from benchmarks.coverage import studies
from benchmarks.coverage.studies.base import Cell, Outcome, Study
from benchmarks.harness import arguments


class Line(TypedDict):
    """One simulated study, as it stands in the results file."""

    study: str
    cell: str
    seed: int
    outcomes: dict[str, tuple[bool | None, float | None, bool]]


Key = tuple[str, str]
TOLD = {"power": "as often as can be", "estimate": "nothing is promised"}
"""What is said of shares that tell how much is shown, or how an estimate does, by their prefix."""


def discovered() -> dict[str, Study]:
    modules = sorted(m.name for m in pkgutil.iter_modules(studies.__path__) if m.name != "base")
    found = (importlib.import_module(f"{studies.__name__}.{name}").STUDY for name in modules)
    return {study.name: study for study in found}


def cells(study: Study, full: bool, only: str) -> Iterator[Cell]:
    for cell in study.full() if full else study.quick():
        if only in title(cell):
            yield cell


def title(cell: Cell) -> str:
    return ", ".join(f"{key} {value}" for key, value in cell.settings.items())


def play(name: str, full: bool, wanted: str, seed: int) -> Line:
    """One simulated study, in a worker that finds its cell by name."""
    torch.set_num_threads(1)
    found = next(cell for cell in cells(discovered()[name], full, "") if title(cell) == wanted)
    with threadpool_limits(1):
        outcomes = found.play(seed)
    told = {key: (each.covered, each.width, each.imprecise) for key, each in outcomes.items()}
    return {"study": name, "cell": wanted, "seed": seed, "outcomes": told}


def done(path: Path) -> list[Line]:
    """Lines that are whole; one that an interruption cut is played again."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def play_missing(names: list[str], given: argparse.Namespace) -> None:
    there = {(line["study"], line["cell"], line["seed"]) for line in done(Path(given.results))}
    wanted = [
        (name, given.full, title(cell), seed)
        for name in names
        for cell in cells(discovered()[name], given.full, given.only)
        for seed in range(given.runs)
        if (name, title(cell), seed) not in there
    ]
    played = Parallel(n_jobs=given.jobs, return_as="generator_unordered")(
        delayed(play)(*one) for one in wanted
    )
    with Path(given.results).open("a") as stream:
        for count, line in enumerate(played, start=1):
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            if sys.stderr.isatty() or count % 100 == 0:
                print(f"\r{count} of {len(wanted)} ", end="", file=sys.stderr, flush=True)


def table(name: str, given: argparse.Namespace) -> Iterator[str]:
    """The rows of one study in Markdown."""
    study = discovered()[name]
    played: dict[Key, list[Outcome]] = defaultdict(list)
    for line in done(Path(given.results)):
        if line["study"] == name and line["seed"] < given.runs:
            for key, outcome in line["outcomes"].items():
                played[line["cell"], key].append(Outcome(*outcome))
    yield f"### {name}\n\n{study.says}\n"
    yield (
        "| cell | interval | should be right | right | right, of rows judged | width | imprecise "
        "| studies |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for cell in cells(study, given.full, given.only):
        for (of, key), outcomes in played.items():
            if of == title(cell):
                yield row(cell, key, outcomes)
    for note in study.notes:
        yield f"\n{note}"
    yield ""


def row(cell: Cell, key: str, outcomes: list[Outcome]) -> str:
    said = [outcome for outcome in outcomes if outcome.covered is not None]
    judged = [outcome for outcome in said if not outcome.imprecise]
    widths = [outcome.width for outcome in said if outcome.width is not None]
    low, high = cell.nominal[0], cell.nominal[1] if widths else 1.0
    told = TOLD.get(key.partition(": ")[0])
    right = told or (f"{low:.0%} to {high:.0%}" if high < 1 else f"at least {low:.0%}")
    if not said:
        return f"| {title(cell)} | {key} | {right} | nothing said | | | | {len(outcomes)} |"
    share = hits(judged) / len(judged) if judged else low
    off = " **!**" if not told and not low <= share <= high else ""
    width = f"{statistics.median(widths):.3g}" if widths else ""
    imprecise = 1 - len(judged) / len(said)
    return (
        f"| {title(cell)} | {key} | {right} | {measured(said)} | {measured(judged)}{off} "
        f"| {width} | {imprecise:.0%} | {len(said)} |"
    )


def measured(outcomes: list[Outcome]) -> str:
    """Share of right outcomes with its interval; nothing of no outcomes."""
    if not outcomes:
        return ""
    ends = binomtest(hits(outcomes), len(outcomes)).proportion_ci(method="exact")
    return f"{hits(outcomes) / len(outcomes):.1%} [{ends.low:.1%}, {ends.high:.1%}]"


def hits(outcomes: list[Outcome]) -> int:
    return sum(bool(outcome.covered) for outcome in outcomes)


def main() -> None:
    given = arguments(__doc__)
    names = given.studies or list(discovered())
    if unknown := set(names) - set(discovered()):
        sys.exit(f"no study {sorted(unknown)}; there are {sorted(discovered())}")
    play_missing(names, given)
    text = "\n".join(line for name in names for line in table(name, given))
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
