"""Per-sample gradients against one batched backward pass, vmap of grad and a loop, in one run.

Prints, for each model and number of threads, milliseconds a record of an ordinary forward and
batched backward pass, and how many times that the per-sample gradients (weights and biases) of the
same records take: by ``per_sample_gradients``, by vmap of grad in the same batches, by a loop; and
what setting ``per_sample_gradients`` up costs once, in passes over the records. Rounds alternate
between the methods; medians are printed.

Run as ``python benchmarks/per_sample_speed.py --threads 1 2``.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of


class Net(NamedTuple):
    name: str
    shape: tuple[int, ...]
    records: int


NETS = [
    Net("zoo:lenet", (3, 32, 32), 256),
    Net("zoo:lenet?shape=1,28,28", (1, 28, 28), 256),
    Net("zoo:deep-leakage", (3, 32, 32), 256),
    Net("zoo:cnn3", (3, 32, 32), 256),
    Net("zoo:alexnet-mo21", (3, 32, 32), 128),
    Net("zoo:vgg9", (3, 32, 32), 64),
    Net("zoo:vgg11net", (3, 32, 32), 64),
    Net("zoo:alexnet-32", (3, 32, 32), 64),
    Net("zoo:vgg16-gn", (3, 32, 32), 16),
    Net("torchvision:resnet18", (3, 64, 64), 16),
    Net(f"{__file__}:resnet18_gn", (3, 32, 32), 32),
    Net(f"{__file__}:resnet18_gn", (3, 64, 64), 16),
    Net(f"{__file__}:Transformer", (32, 64), 64),
]


def resnet18_gn() -> nn.Module:
    """ResNet-18 for 10 classes, with group normalisation in the place of batch normalisation."""
    model = load_model("torchvision:resnet18?num_classes=10")
    for block in [model, *(part for part in model.modules() if isinstance(part, nn.Sequential))]:
        for module in [block, *block.children()]:
            for name, child in list(module.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, nn.GroupNorm(32, child.num_features))
    return model


class Transformer(nn.Module):
    """Two encoder layers of 128 features on sequences (positions, 64)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.embed = nn.Linear(64, 128)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(128, 10)

    def forward(self, sequences: Tensor) -> Tensor:
        classes: Tensor = self.classify(self.encode(self.embed(sequences)).mean(1))
        return classes


def methods(
    model: nn.Module, inputs: Tensor, labels: Tensor, gradients: PerSampleGradients
) -> dict[str, Callable[[], object]]:
    view = FunctionalModel.of(Target(model, CrossEntropy()), dtype=torch.float32)
    per_record = torch.func.vmap(
        torch.func.grad(view.record_loss), in_dims=(None, 0, 0), chunk_size=gradients.batch
    )
    parameters = list(model.parameters())

    def backward(records: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        loss = nn.functional.cross_entropy(model(records), targets)
        return torch.autograd.grad(loss, parameters)

    return {
        "backward": lambda: backward(inputs, labels),
        "ours": lambda: [None for _ in gradients],
        "vmap": lambda: per_record(view.parameters, inputs, labels),
        "loop": lambda: [backward(x[None], y[None]) for x, y in zip(inputs, labels, strict=True)],
    }


def seconds(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each function over alternating rounds, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def measure(net: Net, threads: int, rounds: int) -> str:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(net.records, *net.shape, generator=generator)
    model = load_model(net.name).eval()
    with torch.no_grad():
        classes = model(inputs[:1]).shape[1]
    labels = torch.randint(classes, (net.records,), generator=generator)
    target = Target(model, CrossEntropy())
    for _ in range(2):  # torch.func's own first use takes over a second
        start = time.perf_counter()
        gradients = per_sample_gradients(target, inputs, labels, layers_of(model, with_bias=True))
        setup = time.perf_counter() - start
    found = seconds(methods(model, inputs, labels, gradients), rounds)
    base = found["backward"]
    ratios = " | ".join(f"{found[name] / base:.2f}" for name in ("ours", "vmap", "loop"))
    ways = "+".join(sorted(set(gradients.ways.values())))
    return (
        f"| {net.name} | {threads} | {ways} | {gradients.batch} / {gradients.chunk} | "
        f"{1000 * base / net.records:.3f} | {ratios} | {setup / base:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", nargs="+", default=[net.name for net in NETS])
    arguments = parser.parse_args()
    print("| model | threads | way | batch / chunk | backward, ms | ours | vmap | loop | setup |")
    print("|---|---|---|---|---|---|---|---|---|")
    for threads in arguments.threads:
        for net in NETS:
            if net.name in arguments.nets:
                print(measure(net, threads, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
