"""Collecting shadow batches' features against one ordinary backward pass a batch, in one run.

For each model, defense and reduction prints the seconds that ``Interceptor`` takes for all batches
of records drawn from a pool, the first time (setting it up and fitting components included) and
again with the same interceptor; the seconds that one forward and backward
pass a batch take, measured on some of the batches and scaled; and their ratio. The backward pass
does not keep, defend or reduce its gradients; "fill" is how long it takes to fill memory of the
features' size with noughts, which whoever keeps features cannot do without. It is done just
before the interceptor is timed, since a virtual machine may have to fetch memory from its host at
first, which takes several times as long. With ``--memory`` prints the peak resident memory of a
process that observes VGG11Net, besides what it holds before it begins.

    python benchmarks/shadow_batches.py [--threads 1] [--batches 5000] [--records 1000] [--size 16]
    python benchmarks/shadow_batches.py --memory
"""

import argparse
import resource
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.rows import room


class Net(NamedTuple):
    spec: str
    shape: tuple[int, ...]
    sample: int
    """Batches whose backward pass is timed."""


NETS = {
    "mlp": Net("zoo:mlp?inputs=105&classes=2", (105,), 1000),
    "lenet": Net("zoo:lenet", (3, 32, 32), 200),
    "vgg11net": Net("zoo:vgg11net", (3, 32, 32), 20),
}
"""The first is Li et al.'s for Adult, with 105 encoded columns."""

WAYS = [
    ("", "none"),
    ("", "pca:50"),
    ("", "subset:48"),
    ("dp:clip=2,sigma=0.1,per=record", "pca:50"),
    ("", "maxpool:3"),
    ("prune:0.99", "none"),
    ("prune:0.99", "maxpool:3"),
    ("sign", "subset:48"),
    ("selective:0.05 dp:clip=1,sigma=0.1,per=release", "pca:50"),
]


def case(net: Net, records: int) -> tuple[Target, Records]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(records, *net.shape, generator=generator)
    target = Target(load_model(net.spec).eval(), CrossEntropy())
    with torch.no_grad():
        classes = target.model(inputs[:1]).shape[1]
    return target, Records(inputs, torch.randint(classes, (records,), generator=generator))


def ordinary(target: Target, data: Records, batches: np.ndarray, sample: int) -> float:
    """Seconds of one backward pass for every batch."""
    parameters = list(target.model.parameters())
    rows = torch.from_numpy(batches)
    for repeat in range(2):
        begun = time.perf_counter()
        for batch in rows[: 5 if repeat == 0 else sample]:
            loss = nn.functional.cross_entropy(target.model(data.inputs[batch]), data.labels[batch])
            torch.autograd.grad(loss, parameters)
    return (time.perf_counter() - begun) / min(sample, len(batches)) * len(batches)


def observed(
    target: Target, data: Records, batches: np.ndarray, defense: str, reduce: str | None
) -> tuple[list[float], int, bool]:
    """Seconds of all features, first and again; how many; whether all layers are linear."""
    sharing = SharingProtocol(tuple(map(parse_defense, defense.split())))
    begun = time.perf_counter()
    interceptor = Interceptor(target, data, target.layers, sharing=sharing, reduce=reduce)
    times = []
    for _ in range(2):
        found = sum(features.shape[1] for _, features in interceptor.features(batches))
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    return times, found, all(map(interceptor.linear, target.layers))


def fill(batches: int, features: int) -> float:
    """Seconds that new memory for the features takes, once the machine has it at hand."""
    for _ in range(2):
        begun = time.perf_counter()
        room(batches, features, torch.float32).zero_()
        taken = time.perf_counter() - begun
    return taken


def speed(arguments: argparse.Namespace) -> None:
    print(
        f"{arguments.batches} batches of {arguments.size} from {arguments.records} records, "
        f"{torch.get_num_threads()} thread(s); seconds"
    )
    print(
        "| model | defense | reduction | path | features | backward | fill | interceptor, first | "
        "again | times faster, first | again |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    draw = np.random.default_rng(0)
    for name in arguments.nets:
        target, data = case(NETS[name], arguments.records)
        batches = draw.integers(arguments.records, size=(arguments.batches, arguments.size))
        for defense, reduce in WAYS[: arguments.ways]:
            plain = ordinary(target, data, batches, NETS[name].sample)
            # torch.func's own first use, and how many features there are
            _, found, _ = observed(target, data, batches[:10], defense, reduce)
            filled = fill(len(batches), found)
            taken, found, linear = observed(target, data, batches, defense, reduce)
            path = "linear" if linear else "formed"
            print(
                f"| {name} | {defense or 'none'} | {reduce} | {path} | {found} | {plain:.2f} | "
                f"{filled:.2f} | {taken[0]:.2f} | {taken[1]:.2f} | {plain / taken[0]:.1f} | "
                f"{plain / taken[1]:.1f} |",
                flush=True,
            )


def peak() -> float:
    """GiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def memory(arguments: argparse.Namespace) -> None:
    target, data = case(NETS["vgg11net"], arguments.records)
    draw = np.random.default_rng(0)
    batches = draw.integers(arguments.records, size=(arguments.batches, arguments.size))
    before = peak()
    reduce = arguments.reduce
    taken, found, _ = observed(target, data, batches, arguments.defense, reduce)
    print(
        f"vgg11net, {len(batches)} batches of {arguments.size} from {arguments.records} records, "
        f"defense {arguments.defense or 'none'}, reduction {reduce or 'by size'}: {found} "
        f"features, {taken[0]:.1f} s, peak resident {peak():.2f} GiB ({before:.2f} before)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=["mlp", "lenet"])
    parser.add_argument("--ways", type=int, default=len(WAYS), help="how many of the ways")
    parser.add_argument("--batches", type=int, default=5000)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--defense", default="", help="with --memory")
    parser.add_argument("--reduce", help="with --memory")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    (memory if arguments.memory else speed)(arguments)


if __name__ == "__main__":
    main()
