"""``gradaudit capture`` saves what left a client as a file that attacks and audits read."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradaudit.cli.perform import stdout_for_the_report
from gradaudit.cli.reports import Verbose
from gradaudit.errors import UsageError
from gradaudit.files import expect_other_files
from gradaudit.text import listed, printable

SUFFIX = ".safetensors"


def capture(
    old: Annotated[Path, typer.Argument(help="File of the weights that the client received.")],
    new: Annotated[
        Path,
        typer.Argument(help="File that the client sent: its weights, or the difference to them."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Safetensors file to write.")],
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Model that names arrays saved in order, and says which are buffers: zoo:NAME, "
            "FILE.py:factory, …",
        ),
    ] = None,
    kind: Annotated[
        Literal["weights", "difference"] | None,
        typer.Option(
            "--kind",
            help="Kind of the file that the client sent (by default found by comparing both "
            "files).",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            "--rate", help="Learning rate that the difference is divided by (1 where unknown)."
        ),
    ] = 1.0,
    verbose: Verbose = False,
) -> None:
    """Save what left a client as an update by parameter name: (OLD - NEW) / rate.

    gradaudit capture old.safetensors new.safetensors -o update.safetensors
    gradaudit capture old.npz new.npz -m FILE.py:factory --rate 0.1 -o update.safetensors

    `attack reconstruct`, `attack text`, `observe` and `scan` read it with --update. Arrays are
    matched by name; those without names only where every shape is that of its place in the model.
    """
    if output.suffix != SUFFIX:
        raise UsageError(f"-o {output}: updates are saved as safetensors; name a file {SUFFIX}")
    if not 0 < rate < math.inf:
        raise UsageError(f"--rate {rate:g}: a learning rate is above 0, and finite")
    expect_other_files([output], [old, new])
    with stdout_for_the_report():
        from gradaudit.models.building import load_model
        from gradaudit.observer.saved_updates import captured, save_update

        update = captured(old, new, model=load_model(model) if model else None, kind=kind)
        save_update(output, update, rate)
    elements = sum(array.numel() for array in update.after.values())
    typer.echo(
        f"{printable(str(output))}: {len(update.after)} arrays, {elements:,} elements, from "
        f"{'two sets of weights' if update.kind == 'weights' else 'a difference'}"
    )
    if update.apart:
        typer.echo(f"  left aside: {listed([f'{n} ({why})' for n, why in update.apart.items()])}")
    if update.hidden:
        typer.echo(f"  did not leave: {listed(update.hidden)}")
