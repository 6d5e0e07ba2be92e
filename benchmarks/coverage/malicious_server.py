"""How often ``attack malicious-server`` flags honest rounds, and malicious models.

    python -m benchmarks.coverage.malicious_server [--rounds 20] [--seeds 1]
        [--models mlp,wide,lenet,resnet,transformer,diabetes]

Honest: the global model after 0, 1, 2, 3, 5, 10 and 20 rounds of a federation of five clients, by
FedAvg with SGD and with Adam, FedSGD, and lopsided clients with batches of four; until the model
has learnt its 300 records. The check looks at 32 and at 128 records of the first client's kind,
with the rounds before. Malicious: each attack on the fresh and on the trained model: Robbing the
Fed (a module before the model, and rows of its first linear layer overwritten), fishing for a
class, for a feature; and trap weights, whose strength is a matter of degree.

The largest of each sign over honest checks, the smallest over attacks, and shares flagged. All six
models take nine processor minutes.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, heading, line, mnist
from benchmarks.nets import Residual, group_norm
from gradaudit.audits.attack_malicious_server.check import LIMITS, State, check
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.federation.federated_training import train_rounds
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.zoo.architectures import lenet, mlp

SHOWN = (0, 1, 2, 3, 5, 10, 20, 40, 60)
RECORDS, TRAINED, MOVED = (32, 128), 300, 8.0
SIGNS = (*LIMITS, "movement")
SHARP = 300.0
"""Weight of the feature that is fished by, as in Wen et al.'s code."""
SILENT = 1000.0
"""Bias of the classes that are not fished for, as in Wen et al.'s code."""


class Imprint(nn.Module):
    """A module before a model that bins records by their mean, and hands them on almost unchanged.

    x ↦ x + s · V relu(W x + b), all rows of W the mean, −b quantiles of it, all columns of V alike.

    Source: L. Fowl et al., "Robbing the Fed: directly obtaining private data in federated learning
    with modified models" (2022), section 4.
    """

    def __init__(self, records: Tensor, bins: int, strength: float = 1e-3) -> None:
        super().__init__()
        size = records[0].numel()
        self.bins, self.back = nn.Linear(size, bins), nn.Linear(bins, size)
        self.strength = strength
        bin_rows(self.bins, records.flatten(1))
        with torch.no_grad():
            self.back.weight.copy_(self.back.weight[:, :1].expand_as(self.back.weight))

    def forward(self, x: Tensor) -> Tensor:
        """Records of the same shape."""
        seen = torch.relu(self.bins(x.flatten(1)))
        handed_on: Tensor = x + self.strength * self.back(seen).reshape(x.shape)
        return handed_on


def bin_rows(layer: nn.Linear, inputs: Tensor) -> None:
    """Set all rows to the mean input, and biases to quantiles of a normal law fitted to it.

    Args:
        layer: is changed; a ReLU should follow.
        inputs: (records, inputs) such as come in.
    """
    means = inputs.mean(dim=1)
    levels = (torch.arange(layer.out_features) + 0.5) / layer.out_features
    cuts = means.mean() + means.std() * torch.special.ndtri(levels)
    with torch.no_grad():
        layer.weight.fill_(1 / layer.in_features)
        layer.bias.copy_(-cuts)


def trap_rows(layer: nn.Linear, scale: float, generator: torch.Generator) -> None:
    """Half of each row negative, the other half those numbers times −scale, shuffled.

    Source: F. Boenisch et al., "When the curious abandon honesty: federated learning is not
    private" (2023), section 5.2. Their scale just below 1 is for inputs that are positive and many.
    """
    rows, inputs = layer.weight.shape
    half = inputs // 2
    deviation = float(layer.weight.detach().std())
    with torch.no_grad():
        for row in range(rows):
            below = -torch.randn(half, generator=generator).abs() * deviation
            above = -scale * below[torch.randperm(half, generator=generator)]
            places = torch.randperm(inputs, generator=generator)
            layer.weight[row, places[:half]] = below
            layer.weight[row, places[half : 2 * half]] = above
        layer.bias.zero_()


def fish_for_class(layer: nn.Linear, wanted: int) -> None:
    """The last layer without the weights of all other classes, whose biases drown out the one.

    Source: Y. Wen et al., "Fishing for user data in large-batch federated learning via gradient
    magnification" (2022), section 3.1.
    """
    others = [number for number in range(layer.out_features) if number != wanted]
    with torch.no_grad():
        layer.weight[others] = 0
        layer.bias[others] = SILENT


def fish_for_feature(layer: nn.Linear, wanted: int, features: Tensor, share: float = 0.3) -> None:
    """The last layer hears of one class whether one feature is above a quantile of it.

    Source: Wen et al. 2022, section 3.2.

    Args:
        layer: is changed.
        wanted: the class.
        features: (records, inputs) that come in of records of that class.
        share: of them, below the cut: those whose gradient is left.
    """
    place = int(features.std(dim=0).argmax())
    cut = float(features[:, place].quantile(share))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight[wanted, place] = SHARP
        layer.bias[wanted] = -SHARP * cut


def inputs_of(model: nn.Module, layer: nn.Module, records: Tensor) -> Tensor:
    """(records, inputs) that come into a layer; a row for each position where it has several."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, given: Sequence[Tensor]) -> None:
        seen.append(given[0].detach())

    handle = layer.register_forward_pre_hook(keep)
    try:
        with torch.no_grad():
            model(records)
    finally:
        handle.remove()
    return seen[0].flatten(0, -2)


def resnet() -> nn.Module:
    """Two residual blocks on pictures of 28×28."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers += nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()
        layers.append(Residual(after, norm=group_norm, bias=True))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Block(nn.Module):
    """Attention and a feed-forward pair, each after a norm and beside what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(records, positions, width)."""
        seen = self.norm1(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        output: Tensor = x + self.down(torch.relu(self.up(self.norm2(x))))
        return output


class Transformer(nn.Module):
    """Reads a picture's lines as tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(28, width), nn.Linear(width, 10)
        self.places = nn.Parameter(0.1 * torch.randn(28, width))
        self.blocks = nn.Sequential(Block(width), Block(width))

    def forward(self, x: Tensor) -> Tensor:
        """(records, classes)."""
        lines = self.embed(x[:, 0]) + self.places
        output: Tensor = self.head(self.blocks(lines).mean(dim=1))
        return output


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp((1, 28, 28), (200,)),
    "wide": lambda: mlp((1, 28, 28), (512, 256)),
    "lenet": lambda: lenet((1, 28, 28)),
    "resnet": resnet,
    "transformer": Transformer,
    "diabetes": lambda: mlp((10,), (32,), classes=2),
}
FEDERATIONS = {
    "fedavg": TrainingOptions(algorithm="fedavg", clients=5, batch_size=8, epochs=2),
    "adam": TrainingOptions(
        algorithm="fedavg", clients=5, rate=0.003, batch_size=8, epochs=2, optimizer="adam"
    ),
    "fedsgd": TrainingOptions(algorithm="fedsgd", clients=5, rate=0.3),
    "lopsided": TrainingOptions(
        algorithm="fedavg", clients=5, rate=0.05, batch_size=4, epochs=4, partition="dirichlet:0.3"
    ),
}


@dataclass(frozen=True)
class Checked:
    """What was checked, whether an attack is in it, and the strongest of each sign."""

    what: str
    malicious: bool
    signs: Mapping[str, float]

    @property
    def imprinted(self) -> bool:
        """Whether the score's limit is reached."""
        return any(self.signs[name] >= limit for name, limit in LIMITS.items())

    @property
    def moved(self) -> bool:
        """Whether a layer moved improbably."""
        return self.signs["movement"] > MOVED


def looked_over(
    what: str, model: nn.Module, records: Records, history: list[State], *, malicious: bool
) -> Iterator[Checked]:
    for count in RECORDS:
        some = records.take(np.arange(count))
        found = check(Target(model, CrossEntropy()), some, history)
        signs = {
            name: max((getattr(of_layer, name) or 0.0 for of_layer in found.values()), default=0.0)
            for name in SIGNS
        }
        yield Checked(f"{what}, {count} records", malicious, signs)


def manipulations(
    name: str, model: nn.Module, records: Records, seed: int
) -> Iterator[tuple[str, str, Callable[[nn.Linear], None]]]:
    """What an attack is called, the layer that it changes, and how."""
    linear = {place: m for place, m in model.named_modules() if type(m) is nn.Linear}
    classes, wanted = int(records.labels.max()) + 1, int(records.labels[0])
    *_, head = (place for place, layer in linear.items() if layer.out_features == classes)
    inner = [place for place in linear if place != head]
    if target := {"transformer": "blocks.0.up"}.get(name, (inner or [None])[0]):
        seen = inputs_of(model, linear[target], records.inputs[:200])
        yield "rows as bins", target, partial(bin_rows, inputs=seen)
    of_class = records.inputs[:300][records.labels[:300] == wanted]
    features = inputs_of(model, linear[head], of_class)
    yield "class fished", head, partial(fish_for_class, wanted=wanted)
    yield "feature fished", head, partial(fish_for_feature, wanted=wanted, features=features)
    for scale in (0.9, 0.7, 0.5) if name in ("mlp", "wide") else ():
        draws = torch.Generator().manual_seed(seed)
        trap = partial(trap_rows, scale=scale, generator=draws)
        yield f"traps {scale}", next(iter(linear)), trap


def with_attacks(
    what: str, model: nn.Module, records: Records, history: list[State], seed: int
) -> Iterator[Checked]:
    for bins in (8, 16, 64, 256):
        imprinted = nn.Sequential(Imprint(records.inputs, bins), copy.deepcopy(model))
        yield from looked_over(
            f"{what}, {bins} bins before it", imprinted, records, [], malicious=True
        )
    for attack, place, manipulate in manipulations(what.split()[0], model, records, seed):
        changed = copy.deepcopy(model)
        layer = changed.get_submodule(place)
        assert isinstance(layer, nn.Linear)
        manipulate(layer)
        yield from looked_over(f"{what}, {attack}", changed, records, history, malicious=True)


def played(name: str, records: Records, rounds: int, seed: int) -> Iterator[Checked]:
    """All honest rounds of the federations, and attacks on the first and the last of each."""
    for how, options in FEDERATIONS.items():
        torch.manual_seed(seed)
        model, history = MODELS[name](), list[State]()
        target = Target(model, CrossEntropy())
        count = rounds if options.algorithm == "fedavg" else 3 * rounds
        options = options.model_copy(update={"rounds": count})
        some = records.take(np.arange(TRAINED))
        for reached in train_rounds(target, some, options, seed=seed, scored=False):
            now = copy.deepcopy(model)
            now.load_state_dict(reached.state)
            what = f"{name} {how} {seed}, round {reached.number}"
            if reached.number in SHOWN:
                yield from looked_over(what, now, records, history[-3:], malicious=False)
            if reached.number in (0, count):
                last = history[-3:] or [parameters(now)]
                yield from with_attacks(what, now, records, last, seed)
            history.append(parameters(now))


def parameters(model: nn.Module) -> State:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def table(checks: list[Checked]) -> None:
    groups: dict[str, list[Checked]] = defaultdict(list)
    for one in checks:
        kind = one.what.split(", ")[2] if one.malicious else "honest"
        groups[f"{one.what.split()[0]}: {kind}"].append(one)
    heading("model: what", "checks", "flagged by score", "by movement", *SIGNS)
    for name, group in groups.items():
        worst = min if group[0].malicious else max
        values = (f"{worst(one.signs[s] for one in group):.3g}" for s in SIGNS)
        flagged = sum(one.imprinted for one in group), sum(one.moved for one in group)
        line(name, len(group), *flagged, *values)


def main() -> None:
    """Play, and print the table."""
    given = arguments(__doc__)
    digits, checks = mnist(1000), list[Checked]()
    seen = replace(digits, inputs=digits.inputs.float())
    for name in given.models.split(","):
        records = load_records("diabetes") if name == "diabetes" else seen
        for seed in range(given.seeds):
            checks += played(name, records, given.rounds, seed)
    table(checks)
    for one in checks:
        if one.malicious != one.imprinted and "traps" not in one.what:
            print("missed" if one.malicious else "ALARM", one.what, dict(one.signs))
        if not one.malicious and one.moved:
            print("MOVED", one.what, one.signs["movement"])


if __name__ == "__main__":
    main()
