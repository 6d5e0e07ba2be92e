"""What the benchmarks share: real data, options, timing in turns, tables, training.

They run from the repository's root, as ``python -m benchmarks.papers.copa_table2``. Real data are
in ``../shared/data`` beside the checkout, or in ``data`` of the folder that GRADAUDIT_SHARED names.
"""

import argparse
import gzip
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_models"
DATA = Path(os.environ.get("GRADAUDIT_SHARED", ROOT.parent / "shared")) / "data"

Work = Callable[[], object]


def arguments(doc: str | None) -> argparse.Namespace:
    """The options that a benchmark's docstring names in its usage, with the defaults there.

    ``[--rounds 3]`` takes a number or a word, ``[--sizes 1 8 …]`` several, ``[--mode a|b]`` one of
    them (the first without it), ``[--quick]`` is a flag; a word in capitals stands for what has no
    default, FILE and FOLDER for paths; ``[PARTS …]`` are words without an option. Torch computes
    with one thread, or with as many as ``--threads``.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usage = re.search(r"^ +python -m \S+(.*?)(?=\n\n|\Z)", doc or "", re.M | re.S)
    assert usage is not None, "the docstring has no usage"
    for option, name, several in _WORDS.findall(usage[1]):
        if option:
            flag, _, words = option.partition(" ")
            parser.add_argument(flag, **_taken(words.strip()))
        else:
            more: dict[str, Any] = {"nargs": "*"} if several else {"type": _kind(name)}
            parser.add_argument((name or several).lower(), **more)
    given = parser.parse_args()
    torch.set_num_threads(getattr(given, "threads", 1))
    return given


_WORDS = re.compile(r"\[(--[^\]]+)\]|\b([A-Z]{2,})\b(?! …)|\[([A-Z]+) …\]")


def _taken(words: str) -> dict[str, Any]:
    """What argparse is told of an option with this default."""
    if not words:
        return {"action": "store_true"}
    if words[0] == "'":
        return {"default": words[1:-1]}
    if words.endswith(" …"):
        first, *rest = words.split()[:-1]
        kind = _kind(first)
        return {"nargs": "+", "type": kind, "default": [kind(word) for word in (first, *rest)]}
    if "|" in words:
        kinds = tuple(map(_kind(words.split("|")[0]), words.split("|")))
        return {"choices": kinds, "default": kinds[0], "type": type(kinds[0])}
    kind = _kind(words)
    return {"type": kind, "default": None if words.isupper() else kind(words)}


def _kind(word: str) -> Callable[[str], Any]:
    """How words like this one are read."""
    if word in ("FILE", "FOLDER"):
        return Path
    for kind in (int, float):
        with suppress(ValueError):
            kind(word)
            return kind
    return str


def data_file(name: str) -> Path:
    """A file of the real data; the benchmark ends with a word where it is absent."""
    if not (DATA / name).is_file():
        sys.exit(f"{DATA / name} is not there; name the folder above data with GRADAUDIT_SHARED")
    return DATA / name


def stored(name: str) -> dict[str, Any]:
    """The arrays of an npz file of the real data."""
    with np.load(data_file(name), allow_pickle=False) as file:
        return dict(file)


def scaled(images: np.ndarray) -> Tensor:
    """Pictures (count, height, width, channels) of bytes as (count, channels, …) in [0, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255


def cifar10(size: int = 32, *, tested: bool | None = None) -> Records:
    """CIFAR-10's pictures in [0, 1], float64, averaged to a size; all, or one side of the test."""
    file = stored("cifar10_6k_jpeg.npz")
    images, labels = scaled(file["images"]), torch.from_numpy(file["labels"].astype(np.int64))
    if size < 32:
        images = nn.functional.adaptive_avg_pool2d(images, size)
    records = Records(images, labels, tuple(map(str, file["class_names"])))
    if tested is None:
        return records
    return records.take(np.flatnonzero(file["is_test"].astype(bool) == tested))


def mnist(count: int | None = None) -> Records:
    """MNIST's test pictures (count, 1, 28, 28) in [0, 1], float64."""
    raw = [data_file(f"mnist-t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1")]
    pictures, labels = (np.frombuffer(gzip.decompress(one.read_bytes()), np.uint8) for one in raw)
    inputs = torch.from_numpy(pictures[16:].reshape(-1, 1, 28, 28)[:count] / 255)
    return Records(inputs, torch.from_numpy(labels[8:][:count].astype(np.int64)))


def timed(work: Work, clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the processor, or of another clock, that something takes."""
    begun = clock()
    work()
    return clock() - begun


def in_turn(
    ways: Mapping[str, Work],
    rounds: int,
    *,
    warm: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each way by round; the ways take turns, and the first rounds are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + warm):
        for name, work in ways.items():
            seconds[name].append(timed(work, clock))
    return {name: each[warm:] for name, each in seconds.items()}


def line(*cells: object) -> None:
    """Print a line of a Markdown table."""
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def heading(*names: str) -> None:
    """Print the head of a Markdown table."""
    line(*names)
    print("|---" * len(names) + "|")


def epochs_of(
    count: int, size: int, epochs: int, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Batches of rows, every row once an epoch."""
    for _ in range(epochs):
        yield from torch.split(torch.randperm(count, generator=generator), size)


def drawn(count: int, size: int, steps: int) -> Iterator[Tensor]:
    """Batches of rows with replacement, one a step."""
    return (torch.randint(count, (size,)) for _ in range(steps))


def entropy(returned: Any, labels: Tensor) -> Tensor:
    """Cross-entropy of whatever a model returns, of tokens too."""
    loss = CrossEntropy()
    return loss.of_batch(loss.taken(returned), labels)


def fit(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    optimiser: torch.optim.Optimizer,
    batches: Iterable[Tensor],
    loss: Callable[[Any, Tensor], Tensor] = nn.functional.cross_entropy,
) -> nn.Module:
    """The model after a step for each batch; in evaluation mode."""
    for rows in batches:
        optimiser.zero_grad()
        torch.autograd.backward(loss(model(inputs[rows]), labels[rows]))
        optimiser.step()
    return model.eval()


def seen_of(
    model: nn.Module,
    batch: Records,
    *,
    known_labels: bool = False,
    dtype: torch.dtype = torch.float32,
) -> AttackerView:
    """What an attacker gets of a batch's gradient of cross-entropy."""
    target = Target(model, CrossEntropy())
    threat = ThreatModel(target, SharingProtocol(), target.layers, known_labels)
    return threat.observed(batch, torch.Generator()).view.in_precision(dtype)


def blurred(view: AttackerView, level: float, generator: torch.Generator) -> AttackerView:
    """The view under Gaussian noise of so many times its update's root mean square."""
    flat = torch.cat([part.flatten() for part in view.update.values()])
    scale = level * float(flat.square().mean().sqrt())
    update = {
        name: part + scale * torch.randn(part.shape, generator=generator).to(part)
        for name, part in view.update.items()
    }
    return replace(view, update=update)
