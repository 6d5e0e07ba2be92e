"""One evaluation of several restarts: one after the other, by ``vmap``, and folded into one batch.

Processor time on one thread; all ways take turns, and the medians of the rounds are printed with
what folding saves over each. The restarts are of one record: DLG on the paper's network, and
inverting gradients on residual nets in evaluation mode, of pictures of 32×32. The first two ways
run as they would without folding: recorded where that pays, convolutions as products in float32.

With eight restarts, in ms (one after the other, vmap, folded): DLG 43, 13, 11 and in float64 36,
16, 17; three residual blocks 185, 90, 91; ResNet-18 1,201, 1,062, 267.

    python benchmarks/folded_restarts.py [--restarts 8] [--rounds 5] [--nets dlg residual resnet-18]
"""

import argparse
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable

import torch
from reconstruction_speed import scene
from torch import Tensor, nn
from total_variation import Residual, residual

from gradaudit.attacks.reconstruction import blocks
from gradaudit.attacks.reconstruction.folded import foldable, folded
from gradaudit.attacks.reconstruction.objectives import Evaluation, Objective
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.attacks.reconstruction.replay import recorded
from gradaudit.attacks.reconstruction.unknowns import Targets
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol


def resnet_18() -> nn.Module:
    widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    pairs = [(Residual(*width), Residual(width[1], width[1], 1)) for width in widths]
    stem = OrderedDict(
        conv=nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        norm=nn.BatchNorm2d(64),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(3, 2, 1),
    )
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(nn.Sequential(stem), *(one for pair in pairs for one in pair), *ends)


def inverted(model: nn.Module) -> Objective:
    """Inverting gradients' objective of one record with a known label."""
    target = Target(model.eval(), CrossEntropy())
    batch = Records(torch.rand(1, 3, 32, 32), torch.tensor([3]))
    threat = ThreatModel(target, SharingProtocol(), target.layers, known_labels=True)
    view = threat.observed(batch, torch.Generator()).view.in_precision(torch.float32)
    return Objective(view, Targets.of(view, view.labels), "cosine", 1e-4)


SCENES: dict[str, Callable[[], Objective]] = {
    "dlg": lambda: scene()[1],
    "dlg in float64": lambda: scene(torch.float64)[1],
    "residual": lambda: inverted(residual()),
    "resnet-18": lambda: inverted(resnet_18()),
}


def repeated(evaluate: Evaluation, points: Tensor) -> Evaluation:
    """The evaluation's recording where one can be made."""
    return recorded(evaluate, -points) or evaluate


def milliseconds(ways: list[Callable[[], object]], rounds: int) -> list[float]:
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, found in zip(ways, times, strict=True):
            begun = time.process_time()
            way()
            found.append(1e3 * (time.process_time() - begun))
    return [statistics.median(found) for found in times]


def line(name: str, objective: Objective, restarts: int, rounds: int) -> None:
    def of_one(points: Tensor) -> tuple[Tensor, Tensor]:
        return blocks._alone(objective, points[0])

    if not foldable(objective, of_one):
        raise SystemExit(f"{name} cannot be folded")
    points = objective.trial_points(restarts)
    alone = repeated(of_one, points[:1])
    mapped, together = (
        repeated(way, points) for way in (blocks._mapped(objective), folded(objective))
    )
    ways: list[Callable[[], object]] = [
        lambda: [alone(point[None]) for point in points],
        lambda: mapped(points),
        lambda: together(points),
    ]
    in_turn, by_vmap, at_once = milliseconds(ways, rounds)
    print(
        f"{name:16}{restarts:4} restarts: in turn {in_turn:8.1f} ms, vmap {by_vmap:8.1f}, folded "
        f"{at_once:8.1f}: {in_turn / at_once:5.2f} and {by_vmap / at_once:5.2f} times as fast",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", nargs="+", choices=SCENES, default=list(SCENES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in given.nets:
        for restarts in given.restarts:
            line(name, SCENES[name](), restarts, given.rounds)


if __name__ == "__main__":
    main()
