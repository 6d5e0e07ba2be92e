"""R-GAP and COPA on six convolutions of one 3×32×32 record, beside dense least squares.

The network is R-GAP's CNN6 (Zhu & Blaschko 2021): LeakyReLU(0.2), no pooling, and a fully
connected layer, here of ten classes. Both attacks run first, with the seconds that every layer
took and the peak memory of the process; then the same systems are solved densely by LAPACK, for the
layers named. Seconds are of the processor; attacks and solves run in one thread.

    python benchmarks/layerwise_speed.py [--dense 0 1 2] [--copa-steps 20]
"""

import argparse
import resource
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from gradaudit.attacks.layerwise.chain import Activation, Stage
from gradaudit.attacks.layerwise.recursion import RecoveredRecord, SolvedLayer, Solver, best_of
from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.layerwise.systems import System
from gradaudit.attacks.reconstruction.copa import CombinedSolver, RecordActivations
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.attacks.reconstruction.r_gap import LeastSquares
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol

SHAPE, CLASSES = (3, 32, 32), 10
CONVOLUTIONS = ((12, 4, 2, 2), (36, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1))
LAST = (128, 3, 1, 1)


def cnn6() -> nn.Sequential:
    """Channels, kernel, stride and padding of each convolution as in the paper's code."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = SHAPE[0]
    for out, kernel, stride, padding in (*CONVOLUTIONS, LAST):
        layers += [nn.Conv2d(channels, out, kernel, stride, padding), nn.LeakyReLU(0.2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3200, CLASSES)).double().eval()


def scene() -> tuple[LayerwiseSetting, Tensor]:
    """What the attacker has of one drawn record, and the record."""
    generator = torch.Generator().manual_seed(0)
    record = torch.rand(1, *SHAPE, generator=generator, dtype=torch.float64)
    target = Target(cnn6(), CrossEntropy())
    threat = ThreatModel(target, SharingProtocol(), target.layers, known_labels=True)
    seen = threat.observed(Records(record, torch.tensor([3])), torch.Generator())
    return LayerwiseSetting.of(seen.view, "benchmark"), record[0]


@dataclass(frozen=True)
class Timed(Solver):
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


def attacked(name: str, setting: LayerwiseSetting, record: Tensor, solver: Solver) -> Timed:
    """Run an attack and print what it took."""
    timed = Timed(solver)
    begun = time.process_time()
    found = best_of(setting, timed, box=False)
    seconds = time.process_time() - begun
    told(name, found, record, seconds, timed)
    return timed


def told(name: str, found: RecoveredRecord, record: Tensor, seconds: float, timed: Timed) -> None:
    error = float((found.record - record).norm() / record.norm())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: {seconds:.1f} s, relative error {error:.1e}, peak memory {peak:.2f} GiB")
    for one in found.solved:
        if one.layer in timed.seconds:
            system = timed.systems[one.layer]
            rows = len(system.outputs) + len(system.weight_gradient)
            print(
                f"  layer {one.layer:>2}: {rows:>6} × {system.weights.shape[1]}, "
                f"{timed.seconds[one.layer]:6.2f} s, {one.iterations} iterations, residual "
                f"{one.residual:.1e}",
                flush=True,
            )


def densely(layer: str, system: System, ours: dict[str, float]) -> None:
    """Solve a layer's system by ``numpy.linalg.lstsq`` and print it beside ours."""
    matrix, right = system.balanced()
    dense = matrix.toarray()
    begun = time.process_time()
    np.linalg.lstsq(dense, right, rcond=1e-12)
    seconds = time.process_time() - begun
    told = ", ".join(
        f"{name} {spent:.2f} s ({seconds / spent:.1f} times faster)" for name, spent in ours.items()
    )
    print(f"  layer {layer:>2}: dense {seconds:.1f} s, {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dense", type=int, nargs="*", default=[0, 1, 2], help="convolutions")
    parser.add_argument("--copa-steps", type=int, default=20)
    parser.add_argument("--skip-copa", action="store_true")
    given = parser.parse_args()
    setting, record = scene()
    ours = {"R-GAP": attacked("R-GAP", setting, record, LeastSquares())}
    if not given.skip_copa:
        middle = RecordActivations.of(setting.chain, torch.full(SHAPE, 0.5, dtype=torch.float64))
        ours["COPA"] = attacked("COPA", setting, record, CombinedSolver(middle, given.copa_steps))
    print("the same systems by dense least squares, one thread:")
    layers = [stage.layer for stage in setting.chain.stages]
    for number in given.dense:
        layer = layers[number]
        spent = {name: timed.seconds[layer] for name, timed in ours.items()}
        densely(layer, ours["R-GAP"].systems[layer], spent)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
