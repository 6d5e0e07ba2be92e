"""CPU seconds of training the encoder of user inference, against torch's modules and optimiser.

    OMP_NUM_THREADS=1 python benchmarks/encoder_speed.py

The same weights, order and steps; alternating, one thread, medians. Prints the ratio and by how
much the embeddings differ, relative to their size.
"""

import statistics
import time

import numpy as np
import torch
from torch import nn

from gradaudit.audits.attack_inference.user import (
    BATCH,
    DECAY,
    DIMENSIONS,
    EPOCHS,
    HIDDEN,
    RATE,
    Encoder,
)
from gradaudit.families.base import Scale
from gradaudit.randomness import torch_rng

ROUNDS = 3
USERS, BATCHES = 30, 400


def by_torch(features: np.ndarray, users: np.ndarray, seed: int) -> torch.Tensor:
    """The features' embeddings by an encoder that ``torch.optim`` trained."""
    generator = torch_rng(seed, "encoder")
    inputs = torch.from_numpy(Scale.of(features)(features)).float()
    labels = torch.from_numpy(users)
    encoder = nn.Sequential(
        nn.Linear(inputs.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIMENSIONS)
    )
    model = nn.Sequential(encoder, nn.Linear(DIMENSIONS, int(users.max()) + 1))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
        else:
            nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(inputs), generator=generator), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
    embedded: torch.Tensor = encoder(inputs).detach().double()
    return embedded


def main() -> None:
    """Print a line for each number of features."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    users = np.repeat(np.arange(USERS), BATCHES // USERS)
    for width in (200, 1000, 10_000):
        features = generator.normal(size=(USERS, width))[users]
        features = (features + 3 * generator.normal(size=features.shape)).astype(np.float32)
        took: dict[str, list[float]] = {"torch": [], "ours": []}
        for seed in range(ROUNDS):
            begun = time.process_time()
            theirs = by_torch(features, users, seed)
            between = time.process_time()
            ours = Encoder.trained(features, users, seed)(features)
            took["torch"].append(between - begun)
            took["ours"].append(time.process_time() - between)
        slow, fast = (statistics.median(seconds) for seconds in took.values())
        apart = float((ours - theirs).norm() / theirs.norm())
        print(
            f"{width:6d} features: torch {slow:.2f} s, ours {fast:.2f} s, {slow / fast:.1f} times; "
            f"embeddings {apart:.1e} apart",
            flush=True,
        )


if __name__ == "__main__":
    main()
