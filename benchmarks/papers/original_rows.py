"""What the benchmarks of information about the input share: pictures, the audit, a table."""

import argparse
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional

from gradaudit.audits.vinfo import Vinfo, VinfoOptions
from gradaudit.audits.vinfo.original import THRESHOLDS, ceiling
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject

LEVELS = THRESHOLDS
SINGULAR = (1e-1, 1e-2, 1e-3)


def measured(
    model: nn.Module, records: Records, given: argparse.Namespace, methods: tuple[str, ...]
) -> list[Measurement]:
    """The audit's rows at all thresholds."""
    target = Target(model.double(), CrossEntropy())
    subject = Subject((target,), records, target.layers, seed=given.seed)
    options = VinfoOptions(
        original=True,
        method=methods,
        restarts=given.restarts,
        updates=given.pictures,
        together=tuple(given.together),
    )
    begun = time.perf_counter()
    rows: list[Measurement] = []
    for row in Vinfo(options).run(subject, Silent()):
        if "threshold" in row.variant:
            rows.append(row)
        elif row.metric == "original_success" and row.value is not None:
            since = time.perf_counter() - begun
            print(f"{since:6.0f} s {_name(row)}: {row.value:.2f} reach 0.5", flush=True)
    print(f"{time.perf_counter() - begun:.0f} s, ceiling {ceiling(given.restarts):.2f} nats")
    return rows


def family(given: argparse.Namespace) -> tuple[str, ...]:
    """DLG, iDLG and inverting gradients with the steps that were asked for."""
    return (
        f"dlg:iterations={given.steps}",
        f"idlg:iterations={given.steps}",
        f"inverting-gradients:iterations={given.adam}",
    )


def directions(model: nn.Module, records: Records, together: Sequence[int]) -> None:
    """Rank of ∂G/∂x of consecutive layers at the first record, and what an error leaves of it."""
    record, label = records.inputs[0].double(), records.labels[:1]
    weights = {name: weight.detach().double() for name, weight in model.named_parameters()}
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in weights))
    basis = torch.eye(record.numel(), dtype=torch.float64)

    def gradient(flat: Tensor, chosen: Sequence[str]) -> Tensor:
        def loss(own: dict[str, Tensor]) -> Tensor:
            inputs = (flat.reshape(1, *record.shape),)
            outputs = functional_call(model, {**weights, **own}, inputs)
            return functional.cross_entropy(outputs, label)

        own = {name: w for name, w in weights.items() if name.rpartition(".")[0] in chosen}
        return torch.cat([part.flatten() for part in grad(loss)(own).values()])

    def moved(chosen: Sequence[str], tangent: Tensor) -> Tensor:
        found: Tensor = jvp(lambda x: gradient(x, chosen), (record.flatten(),), (tangent,))[1]
        return found

    for size in together:
        for start in range(len(layers) - size + 1):
            chosen = layers[start : start + size]
            jacobian = vmap(partial(moved, chosen), chunk_size=32)(basis)
            values = torch.linalg.svdvals(torch.linalg.qr(jacobian.T, mode="r")[1])
            rank = int((values > values[0] * max(jacobian.shape) * 2.2e-16).sum())
            above = " ".join(str(int((values > values[0] * level).sum())) for level in SINGULAR)
            print(
                f"{'+'.join(chosen):14s} {jacobian.shape[1]} elements, rank {rank} of "
                f"{len(basis)}; singular values above {SINGULAR} of the largest: {above}",
                flush=True,
            )


def names(rows: list[Measurement]) -> list[str]:
    """The attacked sets of layers in order."""
    return list(dict.fromkeys(_name(row) for row in rows))


def table(
    rows: list[Measurement], metric: str, member: str | None = None
) -> dict[str, list[float]]:
    """A metric by set of layers over ``LEVELS``; NaN where there is no success to compare."""
    found = {
        (_name(row), row.variant["threshold"]): _value(row, member)
        for row in rows
        if row.metric == metric
    }
    return {name: [found[name, level] for level in LEVELS] for name in names(rows)}


def show(title: str, of: dict[str, list[float]]) -> None:
    """Print a table; what cannot be compared is a dash."""
    width = max(map(len, of))
    print(f"\n{title}\n{'SSIM at least':{width}}" + "".join(f"{level:7.2f}" for level in LEVELS))
    for name, values in of.items():
        cells = "".join("      –" if np.isnan(value) else f"{value:7.2f}" for value in values)
        print(f"{name:{width}}{cells}")


def spreads(rows: list[Measurement], level: float) -> None:
    """Success at one threshold: 95 % intervals over restarts, and over 5 records or more."""
    print(f"\nsuccess at SSIM {level} [over restarts] [over records]")
    for row in rows:
        if row.metric == "original_success" and row.variant["threshold"] == level:
            of_restarts = row.details.get("interval_of_these_records")
            ends = (of_restarts if isinstance(of_restarts, list) else None, row.interval)
            told = " ".join(f"[{low:.2f}, {high:.2f}]" for low, high in filter(None, ends))
            print(f"{_name(row):14s} {_value(row, None):.3f} {told} of {row.n}")


def _name(row: Measurement) -> str:
    return row.layer or str(row.variant["layers"])


def _value(row: Measurement, member: str | None) -> float:
    if row.value is None:
        return float("nan")
    if member is None:
        return row.value
    members = row.details["members"]
    assert isinstance(members, dict)
    value = members.get(member)
    return max(float(value), 0.0) if isinstance(value, float) else float("nan")
