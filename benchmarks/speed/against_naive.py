"""What the audits' algorithms take beside the way that they are usually written.

    python -m benchmarks.speed.against_naive [--only sensitivity,releases,copa,systems,ranks]
        [--rounds 3] [--records 16] [--network torchvision:resnet18] [--size 32] [--work 300]

Ways take turns on one thread; medians of CPU seconds are printed.

- ``sensitivity``: input Jacobian norms of LeNet (Mo et al. 2022), exact and by 64 probes; naive is
  one ``jvp`` of ``grad`` an input element, timed on 60 of the elements and scaled up.
- ``releases``: 5,000 + 5,000 releases of a gradient of 30,000 elements with both statistics, by the
  batched mechanism and by the statistic's law; naive is a loop of numpy. Then the most memory, and
  Kolmogorov-Smirnov p-values between the statistics of the mechanism and of the law.
- ``copa``: the ranks behind COPA's table 1 (Chen & Campbell 2021) for each variant of CNN3; naive
  are the singular values of U = [W; ∇_Z J], formed by automatic differentiation (not timed).
- ``systems``: the systems of R-GAP's CNN6 (Zhu & Blaschko 2021) for one record of 3×32×32, solved
  within whole attacks by R-GAP and COPA; naive is LAPACK's least squares of the dense systems.
- ``ranks``: every convolution of a network, one record: n, the rank or its bracket, the method, CPU
  seconds and the peak memory of the process so far, within a work of so many GFLOP a layer.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import ks_2samp
from torch import Tensor, nn

from benchmarks.harness import arguments, medians, peak, seen_of, timed
from gradaudit import zoo
from gradaudit.attacks.layerwise.layer_chain import Activation, Stage
from gradaudit.attacks.layerwise.recursion import SolvedLayer, Solver, best_of
from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.layerwise.systems import System
from gradaudit.attacks.reconstruction.copa import CombinedSolver, RecordActivations
from gradaudit.attacks.reconstruction.r_gap import LeastSquares
from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, known_ruler, laws_of
from gradaudit.audits.dp_audit.game.play import Rules, TrialsResult, play, trials_of_laws
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.audits.sensitivity.jacobian import Jacobians
from gradaudit.data.records import Records
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.jacobian_norms import Gaussian, Pass, by_probes, exact_norms
from gradaudit.gradients.memory import peak_bytes
from gradaudit.gradients.trace import Trace
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.ranks.convolution import LayerRank, convolution_rank
from gradaudit.ranks.copa_metric import copa_metric, weakest_method
from gradaudit.ranks.observe import (
    Convolution,
    ConvolutionUse,
    geometry_of,
    plain_convolutions,
    uses,
)

SHAPE, PROBES, COLUMNS = (3, 32, 32), 64, 60
CLIP, SIGMA, DELTA, SEEDS, TRIALS, ELEMENTS = 2.0, 0.5, 1e-5, 5, 5000, 30_000


def show(title: str, seconds: dict[str, float]) -> None:
    """Seconds of each way, and how many times the first way takes them."""
    first = next(iter(seconds.values()))
    told = (f"{name} {each:.4g} s ({first / each:.1f} times)" for name, each in seconds.items())
    print(f"{title}: {', '.join(told)}", flush=True)


def lenet() -> nn.Module:
    """LeNet of Mo et al. 2022, table III, for ten classes."""
    torch.manual_seed(0)
    return zoo.build("lenet", activation="relu")


def jacobians_of(model: nn.Module, records: Tensor, labels: Tensor) -> Jacobians:
    """Input Jacobians of float64 records by the fastest way."""
    layers = layers_of(model)
    names = [name for layer in layers for name in layer.parameter_names]
    trace = Trace.of(FunctionalModel.of(Target(model, CrossEntropy())), names, records, labels)
    batch = Batch(trace, records, records, labels, range(len(records)))
    return Jacobians(batch, fastest(batch, "point"), "point", layers)


def columns_of(model: nn.Module, record: Tensor, label: Tensor) -> Callable[[int], object]:
    """The norms of one column of every layer's Jacobian by its index."""
    weights = {name: p.detach().double() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, weights, (x[None],))
        return F.cross_entropy(outputs, label[None])

    def gradient(x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.func.grad(loss)(weights, x)
        return found

    def column(index: int) -> object:
        unit = F.one_hot(torch.tensor(index), record.numel()).to(record).view_as(record)
        tangent = torch.func.jvp(gradient, (record,), (unit,))[1]
        return [(t.square().sum(), t.abs().sum(), t.abs().max()) for t in tangent.values()]

    return column


def sensitivity(given: argparse.Namespace) -> None:
    model, count = lenet(), given.records
    records, labels = torch.rand(count, *SHAPE, dtype=torch.float64), torch.arange(count) % 10
    jacobians, size = jacobians_of(model, records, labels), math.prod(SHAPE)
    column = columns_of(model, records[0], labels[0])

    def norms(passes: list[Pass]) -> Callable[[], object]:
        return lambda: jacobians.norms(passes, lambda units: None)

    ways: dict[str, Callable[[], object]] = {
        "naive": lambda: [column(k * 7) for k in range(COLUMNS)],
        "exact F, 1, inf": norms(exact_norms(size)),
        f"{PROBES} probes, F": norms([Pass(Gaussian(PROBES, 0), ("f",), total=False)]),
        f"{PROBES} probes F, {PROBES} columns 1": norms(by_probes(size, PROBES, 0)),
    }
    seconds = {name: each / count for name, each in medians(ways, given.rounds).items()}
    seconds["naive"] *= count * size / COLUMNS
    show(f"sensitivity, LeNet, {count} records, float64, a record", seconds)


def pair_of_gradients() -> Hypotheses:
    """Two gradients of norm 5 at an angle of 60 degrees."""
    draws = torch.randn(
        ELEMENTS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    first, second = torch.linalg.qr(draws).Q.T
    turned = 0.5 * first + 0.75**0.5 * second
    return Hypotheses(5 * first, 5 * turned[None], torch.zeros(0, ELEMENTS, dtype=torch.float64))


def numpy_loop(hypotheses: Hypotheses) -> np.ndarray:
    """One trial after the other, in float64: projections and distances."""
    rng = np.random.default_rng(0)
    pair = [hypotheses.null.numpy(), hypotheses.alternatives[0].numpy()]
    pair = [each / max(1, np.linalg.norm(each) / CLIP) for each in pair]
    direction = (pair[1] - pair[0]) / np.linalg.norm(pair[1] - pair[0])
    found = np.empty((2, 2, TRIALS))
    for hypothesis, clipped in enumerate(pair):
        for trial in range(TRIALS):
            offset = clipped + SIGMA * rng.standard_normal(ELEMENTS) - pair[0]
            found[:, hypothesis, trial] = offset @ direction, np.linalg.norm(offset)
    return found


def game(hypotheses: Hypotheses, mode: str, seed: int = 0, trials: int = TRIALS) -> TrialsResult:
    rules = Rules(trials, DELTA, mode=mode, memory=1 << 30)  # type: ignore[arg-type]
    return play(ClippedNoise(clip=CLIP, sigma=SIGMA), hypotheses, rules, seed)


def draw_law(hypotheses: Hypotheses) -> None:
    """Both statistics by their laws, without what comes before and after the trials."""
    law = ClippedNoise(clip=CLIP, sigma=SIGMA).law(hypotheses.records)
    laws = laws_of(law, hypotheses, known_ruler(law, hypotheses))
    trials_of_laws(laws, TRIALS, 0, lambda units: None)


def releases(given: argparse.Namespace) -> None:
    hypotheses = pair_of_gradients()
    ways: dict[str, Callable[[], object]] = {
        "numpy loop": partial(numpy_loop, hypotheses),
        "implementation": partial(game, hypotheses, "implementation"),
        "exact": partial(draw_law, hypotheses),
    }
    show(f"{TRIALS} + {TRIALS} releases of {ELEMENTS} elements", medians(ways, given.rounds))
    most = peak_bytes(lambda: game(hypotheses, "implementation", trials=500))
    whole = 2 * TRIALS * ELEMENTS * 4
    print(f"memory at its peak {most / 2**20:.0f} MiB; all releases {whole / 2**20:.0f} MiB")
    for seed in range(SEEDS):
        real, law = (game(hypotheses, mode, seed) for mode in ("implementation", "exact"))
        values = [
            ks_2samp(getattr(score, side), getattr(law.scores[name], side)).pvalue
            for name, score in real.scores.items()
            for side in ("null", "alternative")
        ]
        print(f"seed {seed}: Kolmogorov-Smirnov p", *(f"{p:.3f}" for p in values))


Observed = tuple[Convolution, ConvolutionUse]


def observed(model: nn.Module, size: int) -> list[Observed]:
    """Every convolution with ∂J/∂Z of one random record."""
    functional = FunctionalModel.of(Target(model, CrossEntropy()))
    draws = torch.Generator().manual_seed(0)
    record = torch.rand(1, 3, size, size, generator=draws, dtype=torch.float64)
    layers = plain_convolutions(model)
    return [(layers[use.layer], use) for use in uses(functional, layers, record, torch.tensor([0]))]


def rank_of(layer: Convolution, use: ConvolutionUse, flops: float = 3e11) -> LayerRank:
    geometry = geometry_of(layer, use.shape[2:])
    deltas = use.deltas[0].flatten(1)
    return convolution_rank(use.weight, deltas, geometry, layer.groups, flops=flops)


def dense_u(layer: Convolution, use: ConvolutionUse) -> Tensor:
    """[W; ∇_Z J] with rows of unit length, by automatic differentiation."""
    zero = torch.zeros(use.shape, dtype=torch.float64)

    def outputs(weight: Tensor, x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(layer, {"weight": weight}, (x,))
        return found

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return (outputs(weight, x) * use.deltas).sum()

    slopes = (torch.func.jacrev(each, argnums=1) for each in (outputs, torch.func.grad(loss)))
    parts = [slope(use.weight, zero).reshape(-1, zero.numel()) for slope in slopes]
    rows: Tensor = torch.cat(parts)
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / lengths.clamp_min(1e-300)


def dense_rank(u: Tensor) -> int:
    values = torch.linalg.svdvals(u)
    return int((values > max(u.shape) * torch.finfo(u.dtype).eps * values[0]).sum())


def copa(given: argparse.Namespace) -> None:
    for variant in (1, 2, 3, 4):
        seen = observed(load_model(f"zoo:cnn3?variant={variant}"), 32)
        matrices = [dense_u(*pair) for pair in seen]
        ranks: dict[str, list[int]] = {}

        def dense(matrices: list[Tensor] = matrices, ranks: dict[str, list[int]] = ranks) -> None:
            ranks["dense"] = [dense_rank(u) for u in matrices]

        def ours(seen: list[Observed] = seen, ranks: dict[str, list[int]] = ranks) -> None:
            ranks["ours"] = [rank_of(*pair).high for pair in seen]

        seconds = medians({"dense": dense, "ours": ours}, given.rounds)
        inputs = [math.prod(use.shape) for _, use in seen]
        values = {
            name: copa_metric([[rank] for rank in each], inputs)[0] for name, each in ranks.items()
        }
        show(f"copa, variant {variant}, c(M) {values}", seconds)


def ranks(given: argparse.Namespace) -> None:
    model = load_model(given.network)
    if given.size != 32 and hasattr(model, "classifier"):
        model.classifier = nn.LazyLinear(10)  # memory goes to the convolutions
        model(torch.zeros(1, 3, given.size, given.size))
    print(f"{'layer':24} {'n':>9} {'rank':>19}  {'method':8} {'seconds':>8} {'peak GB':>8}")
    for layer, use in observed(model, given.size):
        begun = time.process_time()
        rank = rank_of(layer, use, 1e9 * given.work)
        seconds = time.process_time() - begun
        bracket = str(rank.high) if rank.low == rank.high else f"{rank.low}–{rank.high}"
        print(
            f"{use.layer:24} {math.prod(use.shape):9} {bracket:>19}  "
            f"{weakest_method([rank]):8} {seconds:8.2f} {peak():8.2f}",
            flush=True,
        )


def cnn6() -> nn.Module:
    """Channels, kernel, stride and padding of each convolution as in the paper's code."""
    torch.manual_seed(0)
    sizes = ((12, 4, 2, 2), (36, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1))
    layers: list[nn.Module] = []
    channels = SHAPE[0]
    for out, kernel, stride, padding in (*sizes, (128, 3, 1, 1)):
        layers += [nn.Conv2d(channels, out, kernel, stride, padding), nn.LeakyReLU(0.2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3200, 10)).double().eval()


@dataclass(frozen=True)
class TimedSolver(Solver):
    """A solver whose seconds and systems are kept, by layer."""

    solver: Solver
    seconds: dict[str, float] = field(default_factory=dict)
    systems: dict[str, System] = field(default_factory=dict)

    def solve(
        self, stage: Stage, system: System, before: Activation, previous: Stage | None
    ) -> SolvedLayer:
        """As the solver does it."""
        begun = time.process_time()
        found = self.solver.solve(stage, system, before, previous)
        self.seconds[stage.layer] = time.process_time() - begun
        self.systems[stage.layer] = system
        return found


def systems(given: argparse.Namespace) -> None:
    record = torch.rand(1, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    view = seen_of(
        cnn6(), Records(record, torch.tensor([3])), known_labels=True, dtype=torch.float64
    )
    setting = LayerwiseSetting.of(view, "benchmark")
    middle = RecordActivations.of(setting.chain, torch.full(SHAPE, 0.5, dtype=torch.float64))
    solvers = {
        "R-GAP": TimedSolver(LeastSquares()),
        "COPA": TimedSolver(CombinedSolver(middle, 20)),
    }
    for name, solver in solvers.items():
        begun = time.process_time()
        found = best_of(setting, solver, box=False)
        seconds = time.process_time() - begun
        error = float((found.record - record[0]).norm() / record.norm())
        print(f"{name}: {seconds:.1f} s, relative error {error:.1e}, peak memory {peak():.2f} GiB")
    for stage in setting.chain.stages[:3]:
        matrix, right = solvers["R-GAP"].systems[stage.layer].balanced()
        solve = partial(np.linalg.lstsq, matrix.toarray(), right, rcond=1e-12)
        ours = {name: solver.seconds[stage.layer] for name, solver in solvers.items()}
        show(f"systems, layer {stage.layer}, {matrix.shape}", {"dense": timed(solve), **ours})


PARTS = {part.__name__: part for part in (sensitivity, releases, copa, systems, ranks)}


def main() -> None:
    given = arguments(__doc__)
    for part in given.only.split(","):
        PARTS[part](given)


if __name__ == "__main__":
    main()
