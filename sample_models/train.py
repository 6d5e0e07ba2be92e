"""Train the sample checkpoints again: ``python sample_models/train.py``.

Plain mini-batch SGD, one epoch a round, on four fifths of the records; the rest is for the test
accuracy that the README of this folder states. The same seed writes the same files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from models import diabetes_mlp, digits_cnn
from safetensors.torch import save_file
from torch import nn

from gradaudit.data import load_records
from gradaudit.data.records import Records

HERE = Path(__file__).parent
BATCH = 32


@dataclass(frozen=True)
class Recipe:
    """How one sample model is trained, and after which rounds it is saved."""

    name: str
    model: Callable[[], nn.Module]
    data: str
    rounds: tuple[int, ...]
    learning_rate: float
    weight_decay: float = 0.0


RECIPES = (
    Recipe("digits", digits_cnn, "digits", (1, 3, 10), learning_rate=0.05, weight_decay=1e-3),
    Recipe("diabetes", diabetes_mlp, "diabetes?scale=standard", (1, 5, 20), learning_rate=0.005),
)


def train(recipe: Recipe, seed: int = 0) -> None:
    """Train one model and write a safetensors file for each round of the recipe."""
    torch.manual_seed(seed)
    records = load_records(recipe.data)
    order = torch.randperm(len(records))
    train_rows, test_rows = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    model = recipe.model()
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.learning_rate, momentum=0.9, weight_decay=recipe.weight_decay
    )
    for round_ in range(1, recipe.rounds[-1] + 1):
        for rows in train_rows[torch.randperm(len(train_rows))].split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(records.inputs[rows]), records.labels[rows])
            loss.backward()
            optimizer.step()
        if round_ in recipe.rounds:
            path = HERE / recipe.name / f"round-{round_:02d}.safetensors"
            path.parent.mkdir(exist_ok=True)
            save_file(model.state_dict(), path)
            shares = (_accuracy(model, records, rows) for rows in (train_rows, test_rows))
            print(path.relative_to(HERE), *(f"{share:.3f}" for share in shares))


def _accuracy(model: nn.Module, records: Records, rows: torch.Tensor) -> float:
    with torch.no_grad():
        guesses = model(records.inputs[rows]).argmax(dim=1)
    return float((guesses == records.labels[rows]).double().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    for recipe in RECIPES:
        train(recipe)
