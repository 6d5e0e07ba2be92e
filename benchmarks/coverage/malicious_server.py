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
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, mnist
from benchmarks.malicious_servers import (
    Imprint,
    bin_rows,
    fish_for_class,
    fish_for_feature,
    inputs_of,
    trap_rows,
)
from benchmarks.nets import Residual, group_norm
from gradaudit.audits.attack_malicious_server.check import LIMITS, Signs, State, check
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.federation.federated_training import train_rounds
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.zoo.architectures import lenet, mlp

SHOWN = (0, 1, 2, 3, 5, 10, 20, 40, 60)
RECORDS = (32, 128)
TRAINED = 300
MOVED = 8.0
SIGNS = (*LIMITS, "movement")


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
        algorithm="fedavg",
        clients=5,
        rate=0.05,
        batch_size=4,
        epochs=4,
        partition="dirichlet:0.3",
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
        signs = {name: strongest(found, name) for name in SIGNS}
        yield Checked(f"{what}, {count} records", malicious, signs)


def strongest(found: Mapping[str, Signs], name: str) -> float:
    values = [getattr(signs, name) for signs in found.values()]
    return max((float(value) for value in values if value is not None), default=0.0)


def with_attacks(
    what: str, model: nn.Module, records: Records, history: list[State], seed: int
) -> Iterator[Checked]:
    linear = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    classes = int(records.labels.max()) + 1
    *_, head = (name for name, layer in linear.items() if layer.out_features == classes)
    inner = [name for name in linear if name != head]
    for bins in (8, 16, 64, 256):
        imprinted = nn.Sequential(Imprint(records.inputs, bins), copy.deepcopy(model))
        yield from looked_over(
            f"{what}, {bins} bins before it", imprinted, records, [], malicious=True
        )
    target = {"transformer": "blocks.0.up"}.get(what.split()[0], (inner or [None])[0])
    if target is not None:
        seen = inputs_of(model, linear[target], records.inputs[:200])
        changed = copy.deepcopy(model)
        bin_rows(layer_of(changed, target), seen)
        yield from looked_over(f"{what}, rows as bins", changed, records, history, malicious=True)
    wanted = int(records.labels[0])
    changed = copy.deepcopy(model)
    fish_for_class(layer_of(changed, head), wanted)
    yield from looked_over(f"{what}, class fished", changed, records, history, malicious=True)
    of_class = records.inputs[:300][records.labels[:300] == wanted]
    changed = copy.deepcopy(model)
    fish_for_feature(layer_of(changed, head), wanted, inputs_of(model, linear[head], of_class))
    yield from looked_over(f"{what}, feature fished", changed, records, history, malicious=True)


def with_traps(
    what: str, model: nn.Module, records: Records, history: list[State], seed: int
) -> Iterator[Checked]:
    linear = [name for name, m in model.named_modules() if type(m) is nn.Linear]
    for scale in (0.9, 0.7, 0.5):
        changed = copy.deepcopy(model)
        trap_rows(layer_of(changed, linear[0]), scale, torch.Generator().manual_seed(seed))
        yield from looked_over(f"{what}, traps {scale}", changed, records, history, malicious=True)


def layer_of(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer


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
                if name in ("mlp", "wide"):
                    yield from with_traps(what, now, records, last, seed)
            history.append(parameters(now))


def parameters(model: nn.Module) -> State:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def table(checks: list[Checked]) -> Iterator[str]:
    groups: dict[str, list[Checked]] = defaultdict(list)
    for one in checks:
        kind = one.what.split(", ")[2] if one.malicious else "honest"
        groups[f"{one.what.split()[0]}: {kind}"].append(one)
    signs = " | ".join(SIGNS)
    yield f"| model: what | checks | flagged by score | by movement | {signs} |"
    yield "|---" * (4 + len(SIGNS)) + "|"
    for name, group in groups.items():
        worst = min if group[0].malicious else max
        values = " | ".join(f"{worst(one.signs[s] for one in group):.3g}" for s in SIGNS)
        flagged = sum(one.imprinted for one in group), sum(one.moved for one in group)
        yield f"| {name} | {len(group)} | {flagged[0]} | {flagged[1]} | {values} |"


def main() -> None:
    """Play, and print the table."""
    given = arguments(__doc__)
    digits, checks = mnist(1000), list[Checked]()
    seen = replace(digits, inputs=digits.inputs.float())
    for name in given.models.split(","):
        records = load_records("diabetes") if name == "diabetes" else seen
        for seed in range(given.seeds):
            checks += played(name, records, given.rounds, seed)
            print(f"{name} {seed} done", flush=True)
    print("\n".join(table(checks)))
    for one in checks:
        if one.malicious != one.imprinted and "traps" not in one.what:
            print("missed" if one.malicious else "ALARM", one.what, dict(one.signs))
        if not one.malicious and one.moved:
            print("MOVED", one.what, one.signs["movement"])
    assert not math.isnan(sum(sum(one.signs.values()) for one in checks))


if __name__ == "__main__":
    main()
