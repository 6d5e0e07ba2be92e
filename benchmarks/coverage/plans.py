"""What a policy costs: plans beside hiding the first or the last layers, and uniform noise.

    python -m benchmarks.coverage.plans [--models lenet,vgg9,resnet18,mlp,transformer]
        [--budget 240.0] [--cost parameters]

One policy for five fresh models, as they are in the first round of a federation: nobody reads the
labels off an update, no layer's gradient tells a private attribute with an AUROC above .75, and
none follows its record (bounded sensitivity) by more than 0.3. LeNet and VGG9 of Mo et al. 2022 and
a ResNet-18 for small inputs tell whether faces at 32 × 32 (UTKFace) are
white, with the gender as the attribute; a multilayer perceptron of two hidden layers tells Adult's
income, with the sex; a transformer of two blocks tells the sentiment of reviews (IMDB), with their
length. Half of 1,200 records serve the search, and the plan is measured on others.

Printed: every model's plan, its cost and what it costs at least, that of each simple strategy (1 is
to share nothing), trials, and whether every rule passed on fresh records.
"""

import gzip
import re
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, data_file, scaled, stored
from benchmarks.nets import resnet18
from gradaudit.audits import audits
from gradaudit.cli.perform import time_left
from gradaudit.cli.scanning import presets_of
from gradaudit.cli.terminal import Lines
from gradaudit.config import SubjectSettings
from gradaudit.data import load_records
from gradaudit.data.records import Attribute, Records
from gradaudit.judging import Policy
from gradaudit.protection.asking import fitting, needed
from gradaudit.protection.guards import OPEN
from gradaudit.protection.planner import Planner
from gradaudit.protection.protection_plan import Plan
from gradaudit.run.opening import open_subject
from gradaudit.zoo import build

RECORDS, WORDS, LENGTH = 1200, 500, 32
POLICY = Policy.model_validate(
    {
        "name": "labels, attribute, records",
        "rules": [
            {"metric": "attack.membership_distance", "min": 0.5},
            {"metric": "vinfo.auroc", "layers": "?*", "max": 0.75},
            {"metric": "sensitivity.input_f_bounded", "layers": "?*", "max": 0.3},
        ],
    }
)
GIVEN: dict[str, dict[str, object]] = {
    "vinfo": {"reduce": "subset:1000"},
    "attack labels": {"batches": 40},
}
SAMPLES = {"sensitivity": 16}
"""Of records, as the interval over them is narrow."""


def faces() -> Records:
    """Of UTKFace, at 32 × 32."""
    file = stored("utkface_32.npz")
    pictures = scaled(file["images"][:RECORDS]).float()
    white = (file["race"][:RECORDS] == 0).astype(np.int64)
    gender = Attribute(file["gender"][:RECORDS].astype(np.int64), ("male", "female"))
    return Records(pictures, torch.from_numpy(white), ("no", "yes"), {"private": gender})


def adult() -> Records:
    """The first records of Adult, all columns encoded."""
    records = load_records(
        f"csv:{data_file('adult.csv')}?label=income&scale=standard", attributes=("sex",)
    )
    private = {"private": records.attributes["sex"]}
    return replace(records, attributes=private, features=()).take(np.arange(RECORDS))


def reviews() -> Records:
    """The beginnings of reviews, as numbers of their words: the commonest, and 0 for the others."""
    with gzip.open(data_file("imdb_16k.csv.gz"), "rt", encoding="utf-8") as stream:
        table = pd.read_csv(stream).sample(RECORDS, random_state=0)
    texts = [re.findall(r"[a-z']+", text.lower())[:LENGTH] for text in table["text"]]
    common = pd.Series([word for text in texts for word in text]).value_counts().index[: WORDS - 1]
    number = {word: n for n, word in enumerate(common, start=1)}
    tokens = np.zeros((RECORDS, LENGTH), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = [number.get(word, 0) for word in text]
    labels = torch.from_numpy(pd.factorize(table["sentiment"], sort=True)[0].astype(np.int64))
    long = (table["n_words"] > table["n_words"].median()).to_numpy().astype(np.int64)
    private = {"private": Attribute(long, ("short", "long"))}
    return Records(torch.from_numpy(tokens), labels, ("negative", "positive"), private)


class Block(nn.Module):
    """Self-attention and a network of two layers, each after a norm (Xiong et al. 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(records, length, width) to the same."""
        seen = self.norm1(x)
        scores = self.query(seen) @ self.key(seen).transpose(1, 2) / seen.shape[2] ** 0.5
        x = x + self.out(scores.softmax(dim=2) @ self.value(seen))
        out: Tensor = x + self.fc2(torch.relu(self.fc1(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """Embedded words, two blocks, the mean over positions, two classes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, width), nn.Linear(LENGTH, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.output = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """(records, length) to (records, 2)."""
        places = self.position(torch.eye(LENGTH, device=tokens.device))
        out: Tensor = self.output(self.blocks(self.embedding(tokens) + places).mean(dim=1))
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Records]]] = {
    "lenet": (lambda: build("lenet", classes=2), faces),
    "vgg9": (lambda: build("vgg9", classes=2), faces),
    "resnet18": (lambda: resnet18(classes=2), faces),
    "mlp": (
        lambda: build("mlp", inputs=(adult().inputs.shape[1],), hidden=(64, 32), classes=2),
        adult,
    ),
    "transformer": (Transformer, reviews),
}


def planned(name: str, cost: str, budget: float) -> Plan:
    """The plan for one of the models."""
    torch.manual_seed(0)
    make, read = MODELS[name]
    settings = SubjectSettings(attribute=("private",), data=name)
    subject = open_subject(settings, model=make(), records=read())
    left, ladders = time_left(budget), []
    for key, audit in audits().items():
        sizes = presets_of(audit, "quick", GIVEN.get(key, {}))
        ladders.append([replace(s, samples=s.samples or SAMPLES.get(key)) for s in sizes])
    fitted = fitting(needed(POLICY, ladders), subject, budget)
    return Planner(subject, fitted, POLICY, cost=cost, left=left, progress=Lines()).plan()


def main() -> None:
    """Print a block for each model."""
    given = arguments(__doc__)
    for name in given.models.split(","):
        begun = time.perf_counter()
        plan = planned(name, given.cost, given.budget)
        seconds = time.perf_counter() - begun
        guards = [f"{n} {g.kind} {g.amount or ''}".strip() for n, g in plan.protection if g != OPEN]
        naive = ", ".join(f"{key} {cost:.4f}" for key, (_, cost) in plan.naive.items())
        print(f"{name}: {'passed' if plan.verdict.passed else 'FAILED'} on fresh records")
        print(f"  cost {plan.cost:.4f}, at least {plan.least:.4f}; {naive}")
        print(f"  {len(plan.trials)} trials, {plan.rounds} rounds, {seconds:.0f} s")
        print(f"  of {len(plan.prices)} layers: {'; '.join(guards)}")
        print(*(f"  {words}" for words in plan.verdict.failed[:5]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
