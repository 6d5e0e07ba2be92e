"""Collecting shadow batches' features against one ordinary backward pass a batch, in one run.

For each model, defense and reduction prints the CPU seconds that ``Interceptor`` takes for all
batches of records drawn from a pool, the first time (setting it up and fitting components
included) and again with the same interceptor; the seconds that one forward and backward pass a
batch take, measured on some of the batches and scaled; and their ratio. The backward pass does not
keep, defend or reduce its gradients, but where they are pruned "naive" is a pass whose tensors are
pruned by ``torch.topk``; "fill" is how long it takes to fill memory of the features' size with
noughts, which whoever keeps features cannot do without. It is done just
before the interceptor is timed, since a virtual machine may have to fetch memory from its host at
first, which takes several times as long. With ``--memory`` prints the peak resident memory of a
process that observes VGG11Net, besides what it holds before it begins.

    python benchmarks/shadow_batches.py [--threads 1] [--batches 5000] [--records 1000] [--size 16]
    python benchmarks/shadow_batches.py --nets resnet18 --only "prune:0.99 subset" --records 32
    python benchmarks/shadow_batches.py --memory
"""

import argparse
import resource
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.rows import empty_rows


class Net(NamedTuple):
    spec: str
    shape: tuple[int, ...]
    sample: int
    """Batches whose backward pass is timed."""


NETS = {
    "mlp": Net("zoo:mlp?inputs=105&classes=2", (105,), 1000),
    "lenet": Net("zoo:lenet", (3, 32, 32), 200),
    "vgg11net": Net("zoo:vgg11net", (3, 32, 32), 20),
    "resnet18": Net("torchvision:resnet18", (3, 64, 64), 6),
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
    ("prune:0.99", "subset:2000"),
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


def ordinary(
    target: Target, data: Records, batches: np.ndarray, sample: int, pruned: float = 0
) -> float:
    """CPU seconds of one backward pass for every batch, its tensors pruned by this share."""
    parameters = list(target.model.parameters())
    rows = torch.from_numpy(batches)
    for repeat in range(2):
        begun = time.process_time()
        for batch in rows[: 5 if repeat == 0 else sample]:
            loss = nn.functional.cross_entropy(target.model(data.inputs[batch]), data.labels[batch])
            gradients = torch.autograd.grad(loss, parameters)
            if pruned:
                _ = [prune(gradient.flatten(), pruned) for gradient in gradients]
    return (time.process_time() - begun) / min(sample, len(batches)) * len(batches)


def prune(gradient: Tensor, share: float) -> Tensor:
    """All but the largest magnitudes of (elements,) set to zero, by torch alone."""
    kept = gradient.abs().topk(max(1, len(gradient) - round(share * len(gradient)))).indices
    return torch.zeros_like(gradient).index_copy_(0, kept, gradient[kept])


def observed(
    target: Target, data: Records, batches: np.ndarray, defense: str, reduce: str | None
) -> tuple[list[float], int, bool]:
    """Seconds of all features, first and again; how many; whether all layers are linear."""
    sharing = SharingProtocol(tuple(map(parse_defense, defense.split())))
    begun = time.process_time()
    interceptor = Interceptor(target, data, target.layers, sharing=sharing, reduce=reduce)
    times = []
    for _ in range(2):
        found = sum(features.shape[1] for _, features in interceptor.features(batches))
        times.append(time.process_time() - begun)
        begun = time.process_time()
    return times, found, all(map(interceptor.linear, target.layers))


def fill(batches: int, features: int) -> float:
    """Seconds that new memory for the features takes, once the machine has it at hand."""
    for _ in range(2):
        begun = time.process_time()
        empty_rows(batches, features, torch.float32).zero_()
        taken = time.process_time() - begun
    return taken


def speed(arguments: argparse.Namespace) -> None:
    print(
        f"{arguments.batches} batches of {arguments.size} from {arguments.records} records, "
        f"{torch.get_num_threads()} thread(s); CPU seconds"
    )
    print(
        "| model | defense | reduction | path | features | backward | naive | fill | "
        "interceptor, first | again | backward / first | / again | naive / first | / again |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    draw = np.random.default_rng(0)
    ways = [way for way in WAYS[: arguments.ways] if " ".join(way).startswith(arguments.only)]
    for name in arguments.nets:
        target, data = case(NETS[name], arguments.records)
        batches = draw.integers(arguments.records, size=(arguments.batches, arguments.size))
        for defense, reduce in ways:
            plain = naive = ordinary(target, data, batches, NETS[name].sample)
            if defense.startswith("prune:"):
                share = float(defense.removeprefix("prune:"))
                naive = ordinary(target, data, batches, NETS[name].sample, share)
            # torch.func's own first use, and how many features there are
            _, found, _ = observed(target, data, batches[:10], defense, reduce)
            filled = fill(len(batches), found)
            taken, found, linear = observed(target, data, batches, defense, reduce)
            path = "linear" if linear else "formed"
            print(
                f"| {name} | {defense or 'none'} | {reduce} | {path} | {found} | {plain:.2f} | "
                f"{naive:.2f} | {filled:.2f} | {taken[0]:.2f} | {taken[1]:.2f} | "
                f"{plain / taken[0]:.1f} | {plain / taken[1]:.1f} | "
                f"{naive / taken[0]:.1f} | {naive / taken[1]:.1f} |",
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
    parser.add_argument("--only", default="", help="ways that begin so: DEFENSE REDUCTION")
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
