"""By how much estimates may be wrong: scans played with what audits were recorded to take.

    python -m benchmarks.speed.schedule [--played 200] [--alone] [--record '']

Of scans of the models of ``budget.py`` was recorded what every size of every audit was estimated to
take, and what those that were run took (``schedule.json`` beside this script; ``--record`` makes it
of such scans' logs). A scan is played with the estimates of one model. What an audit takes is its
estimate times a ratio that is drawn from those recorded, of its own or of any audit, times one of
each size (log-normal, 0.3) and one of the scan (log-normal, 0.5). 60 or 300 seconds are left. A
sample of the layers was not recorded: it is taken for 0.35 of the least size, as of ResNet-50.

Printed for every choice of the constants of ``gradaudit.planning.schedule``: the share of audits
that have numbers, the steps on their ladders that they reached (1 for all), the share of the
time that went into what was cut short, and that of the questions, of attacks and of what stands for
them, that have an answer. The audits of lower priority count more: 1, 0.9, 0.81, ….
With ``--alone`` every audit is played by itself, as the commands of single audits have it, with 20
seconds too, and the constant is the part of a size of which the least one has time kept for it.
"""

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import arguments
from gradaudit.audits import audits
from gradaudit.audits.sizes import Size
from gradaudit.planning import schedule

RECORDED = Path(__file__).with_name("schedule.json")
BUDGETS = (60.0, 300.0)
TOGETHER, SCATTER, PATIENCE, OF_LEAST = 0.5, 0.3, 0.9, 0.35
GRID = {"CAUTION": (1.0, 2.0, 3.0, 5.0), "KNOWN": (1.0, 1.2, 1.5), "USUAL": (1.0, 3.0, 10.0)}
ALONE = {"SMALL": (0.0, 0.1, 0.25, 0.5, 1.0)}


class Course(NamedTuple):
    """An audit of a scan that is played: its sizes, and what each is told and bound to take."""

    sizes: Sequence[Size]
    told: Sequence[float]
    takes: Sequence[float]

    @property
    def questions(self) -> set[tuple[str, bool]]:
        """The questions that it answers, and whether it only stands for an attack."""
        audit = self.sizes[0].audit
        return {(metric.question, audit.proxy) for metric in audit.metrics if metric.question}


class Came(NamedTuple):
    """What came of a scan: shares of what could have."""

    numbers: float
    steps: float
    lost: float
    answered: float


def drawn(
    ladders: dict[str, list[float]], ratios: dict[str, list[float]], seed: int
) -> list[Course]:
    """A scan's courses with what they take, in the order of their turns."""
    draws = np.random.default_rng(seed)
    every = list(itertools.chain.from_iterable(ratios.values()))
    known = audits()
    common = np.exp(TOGETHER * draws.standard_normal())
    courses = []
    for name in sorted(ladders, key=lambda name: known[name].priority):
        sample = [OF_LEAST * ladders[name][0]] if known[name].sample else []
        told = [*sample, *ladders[name]]
        own = ratios.get(name, [])
        ratio = draws.choice(own if own and draws.random() < 0.5 else every)
        scatter = np.exp(SCATTER * draws.standard_normal(len(told)))
        # a number apart, for equal sizes would be one
        sizes = [Size("plain", known[name], number) for number in range(len(told))]  # type: ignore[arg-type]
        courses.append(Course(sizes, told, list(common * ratio * np.array(told) * scatter)))
    return courses


def in_turn(courses: Sequence[Course]) -> list[Course]:
    """The courses in the order of their turns."""
    by_name = {course.sizes[0].audit.name: course for course in courses}
    ladders = [course.sizes for course in courses]
    turns = schedule.in_turn(ladders, lambda size: by_name[size.audit.name].told[0])
    return [by_name[sizes[0].audit.name] for sizes in turns]


def parted(courses: list[Course], *, alone: bool) -> list[list[Course]]:
    """All in one scan, or each in one of its own."""
    return [[course] for course in courses] if alone else [in_turn(courses)]


def played(courses: Sequence[Course], seconds: float) -> Came:
    """Play the schedule to its end."""
    told = {
        size: t for course in courses for size, t in zip(course.sizes, course.told, strict=True)
    }
    spent = lost = 0.0
    reached = [-1] * len(courses)
    plan = schedule.Schedule([c.sizes for c in courses], told.__getitem__, lambda: seconds - spent)
    while turn := plan.next():
        at = courses[turn.place].sizes.index(turn.size)
        takes = courses[turn.place].takes[at]
        limit = turn.seconds if turn.seconds is not None else takes
        spent += min(takes, limit)
        if takes <= limit:
            reached[turn.place] = max(reached[turn.place], at)
        else:
            lost += limit
        plan.done(turn, min(takes, limit), whole=takes <= limit)
    priorities = np.array([course.sizes[0].audit.priority for course in courses])
    weights = PATIENCE ** priorities.argsort(kind="stable").argsort(kind="stable")
    asked = set[tuple[str, bool]]().union(*(course.questions for course in courses))
    got = {q for c, at in zip(courses, reached, strict=True) if at >= 0 for q in c.questions}
    steps = np.array([(at + 1) / len(c.sizes) for at, c in zip(reached, courses, strict=True)])
    total = weights.sum()
    return Came(
        float(weights @ (np.array(reached) >= 0) / total),
        float(weights @ steps / total),
        lost / seconds,
        len(got) / max(len(asked), 1),
    )


def record(logs: Sequence[Path]) -> None:
    """Make the file of logs, a model each: its ladders in the first line, then its turns."""
    ladders, ratios = {}, dict[str, list[float]]()
    for log in logs:
        first, *turns = map(json.loads, log.read_text().splitlines())
        ladders[log.stem] = {
            name: [round(seconds, 3) for _, seconds in sizes]
            for name, sizes in first.items()
            if sizes[-1][1]
        }
        for name, _, told, _, took, whole, rows in turns:
            if told and rows and (whole or took > told):
                ratios.setdefault(name, []).append(round(took / told, 3))
    RECORDED.write_text(json.dumps({"ladders": ladders, "ratios": ratios}, indent=1) + "\n")


def main() -> None:
    asked = arguments(__doc__)
    if asked.record:
        record([Path(each) for each in asked.record.split(",")])
    recorded = json.loads(RECORDED.read_text())
    grid, budgets = (ALONE, (20.0, *BUDGETS)) if asked.alone else (GRID, BUDGETS)
    scans = [
        (courses, seconds)
        for ladders in recorded["ladders"].values()
        for seed in range(asked.played)
        for courses in parted(drawn(ladders, recorded["ratios"], seed), alone=asked.alone)
        for seconds in budgets
    ]
    heads = "".join(f"{name:>8}" for name in grid)
    print(f"{len(scans)} scans\n{heads} numbers   steps    lost answered")
    for values in itertools.product(*grid.values()):
        for name, value in zip(grid, values, strict=True):
            setattr(schedule, name, value)
        came = [played(*scan) for scan in scans]
        means = [statistics.fmean(column) for column in zip(*came, strict=True)]
        shares = "".join(f"{mean:8.3f}" for mean in means)
        print("".join(f"{value:8g}" for value in values) + shares)


if __name__ == "__main__":
    main()
