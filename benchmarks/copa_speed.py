"""COPA's table 1, ours against the singular values of U; ranks of VGG16-GN and ResNet-18 at 32×32.

For each variant of CNN3 the ranks of both convolutions are computed by ``convolution_rank`` and by
the singular values of U = [W; ∇_Z J], formed as a dense float64 matrix by automatic
differentiation (forming it is not timed), alternately; medians of seconds, their quotient and c(M)
by either are printed. Then every convolution of the larger networks, one record: n, rank, method,
seconds, and the peak memory of the process so far.

Run as ``python benchmarks/copa_speed.py --threads 1 --rounds 3``.
"""

import argparse
import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.ranks.convolution import LayerRank, convolution_rank
from gradaudit.ranks.copa_metric import copa_metric, weakest_method
from gradaudit.ranks.geometry import Convolution, geometry_of
from gradaudit.ranks.observe import ConvolutionUse, plain_convolutions, uses

NETWORKS = ("zoo:vgg16-gn", "torchvision:resnet18")


def observed(model: nn.Module, size: int) -> list[tuple[Convolution, ConvolutionUse]]:
    """Every convolution with ∂J/∂Z of one random record."""
    functional = FunctionalModel.of(Target(model, CrossEntropy()))
    generator = torch.Generator().manual_seed(0)
    record = torch.rand(1, 3, size, size, generator=generator, dtype=torch.float64)
    layers = plain_convolutions(model)
    return [(layers[use.layer], use) for use in uses(functional, layers, record, torch.tensor([0]))]


def our_rank(layer: Convolution, use: ConvolutionUse, flops: float = 3e11) -> LayerRank:
    geometry = geometry_of(layer, use.shape[2:])
    deltas = use.deltas[0].flatten(1)
    return convolution_rank(use.weight, deltas, geometry, layer.groups, flops=flops)


def our_ranks(seen: Sequence[tuple[Convolution, ConvolutionUse]]) -> list[int]:
    return [our_rank(*pair).high for pair in seen]


def dense_u(layer: Convolution, use: ConvolutionUse) -> Tensor:
    """[W; ∇_Z J] with rows of unit length, by automatic differentiation."""
    zero = torch.zeros(use.shape, dtype=torch.float64)

    def outputs(weight: Tensor, x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(layer, {"weight": weight}, (x,))
        return found

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return (outputs(weight, x) * use.deltas).sum()

    w: Tensor = torch.func.jacrev(outputs, argnums=1)(use.weight, zero).reshape(-1, zero.numel())
    of_gradient = torch.func.jacrev(torch.func.grad(loss), argnums=1)
    nabla: Tensor = of_gradient(use.weight, zero).reshape(-1, zero.numel())
    rows = torch.cat([w, nabla])
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / lengths.clamp_min(1e-300)


def dense_rank(u: Tensor) -> int:
    values = torch.linalg.svdvals(u)
    return int((values > max(u.shape) * torch.finfo(u.dtype).eps * values[0]).sum())


def dense_ranks_of(matrices: Sequence[Tensor]) -> list[int]:
    return [dense_rank(u) for u in matrices]


def timed(function: Callable[[], list[int]]) -> tuple[list[int], float]:
    begun = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begun


def compare_on_cnn3(rounds: int) -> None:
    print("CNN3          c(M) ours   c(M) dense    ours (s)   dense (s)   times faster")
    for variant in (1, 2, 3, 4):
        seen = observed(load_model(f"zoo:cnn3?variant={variant}"), 32)
        matrices = [dense_u(layer, use) for layer, use in seen]
        ours, theirs = [], []
        for _ in range(rounds):
            ranks, seconds = timed(partial(our_ranks, seen))
            ours.append(seconds)
            dense_ranks, seconds = timed(partial(dense_ranks_of, matrices))
            theirs.append(seconds)
        inputs = [math.prod(use.shape) for _, use in seen]
        fast, slow = statistics.median(ours), statistics.median(theirs)
        print(
            f"variant {variant}  {c_of(ranks, inputs):12} {c_of(dense_ranks, inputs):12} "
            f"{fast:11.3f} {slow:11.2f} {slow / fast:14.0f}",
            flush=True,
        )


def c_of(ranks: Sequence[int], inputs: Sequence[int]) -> float:
    return copa_metric([[rank] for rank in ranks], inputs)[0]


def print_ranks(seen: list[tuple[Convolution, ConvolutionUse]], flops: float) -> None:
    print(f"{'layer':24} {'n':>9} {'rank':>19}  {'method':8} {'seconds':>8} {'peak GB':>8}")
    total = time.process_time()
    for layer, use in seen:
        begun = time.process_time()
        rank = our_rank(layer, use, flops)
        seconds = time.process_time() - begun
        bracket = str(rank.high) if rank.low == rank.high else f"{rank.low}–{rank.high}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{use.layer:24} {math.prod(use.shape):9} {bracket:>19}  "
            f"{weakest_method([rank]):8} {seconds:8.2f} {peak:8.2f}",
            flush=True,
        )
    print(f"all layers: {time.process_time() - total:.1f} CPU seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-dense", action="store_true", help="only the larger networks")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} thread(s), torch {torch.__version__}")
    for name in NETWORKS:
        print(f"\n{name}, 3×32×32")
        print_ranks(observed(load_model(name), 32), 3e11)
    if not arguments.skip_dense:
        print()
        compare_on_cnn3(arguments.rounds)


if __name__ == "__main__":
    main()
