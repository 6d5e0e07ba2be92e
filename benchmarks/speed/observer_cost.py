"""What the observer takes of a round: a LeNet, a ResNet-18 and a small GPT-2.

A round is local training by SGD on a client's records, and a look at what leaves. For each model it
prints the round's processor seconds, which share of them looking at everything takes, and with the
usual allowance of 5 %: the share that it counted itself over all rounds, and how many rows of a
report were left out or read from some of a layer's rows. Observers alternate in each round; medians
are of the rounds after the first.

    python -m benchmarks.speed.observer_cost [--rounds 7] [--only '']

It needs ``gradaudit[transformers]``.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, entropy, fit, heading, line
from benchmarks.nets import of_config
from gradaudit.models.building import load_model
from gradaudit.observer import Observation, Observer
from gradaudit.observer.observer import SHARE

LENGTH, VOCABULARY, BATCH = 32, 2000, 32


class Client(NamedTuple):
    """A model and its client's records."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor

    def train(self) -> None:
        """One epoch of SGD."""
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.01)
        batches = torch.split(torch.arange(len(self.inputs)), BATCH)
        fit(self.model.train(), self.inputs, self.labels, sgd, batches, entropy)


def of_pictures(spec: str, records: int) -> Client:
    labels = torch.arange(records) % 10
    return Client(load_model(spec), torch.rand(records, 3, 32, 32), labels)


def of_texts(records: int) -> Client:
    sizes = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": LENGTH}
    sizes |= {"vocab_size": VOCABULARY, "tie_word_embeddings": False}
    ids = torch.randint(VOCABULARY, (records, LENGTH))
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = -100
    return Client(of_config("gpt2", "GPT2LMHeadModel", **sizes), ids, labels)


CLIENTS: dict[str, Callable[[], Client]] = {
    "LeNet, 500 records": lambda: of_pictures("zoo:lenet?classes=10", 500),
    "ResNet-18, 128 records": lambda: of_pictures("torchvision:resnet18?num_classes=10", 128),
    "GPT-2 (4 × 128), 128 texts": lambda: of_texts(128),
}


Round = tuple[float, float, Observation]


def measured(client: Client, observers: dict[str, Observer], rounds: int) -> dict[str, list[Round]]:
    """Of each round and observer: seconds of training, share of observing, what was seen."""
    found: dict[str, list[Round]] = {name: [] for name in observers}
    names = [name for name, _ in client.model.named_parameters()]
    for _ in range(rounds + 1):
        before = {name: t.clone() for name, t in client.model.state_dict().items()}
        wall, begun = time.perf_counter(), time.process_time()
        client.train()
        trained, seconds = time.process_time() - begun, time.perf_counter() - wall
        after = client.model.state_dict()
        for name, observer in observers.items():
            begun = time.process_time()
            seen = observer.observe(before, after, seconds=seconds, parameters=names)
            found[name].append((trained, (time.process_time() - begun) / trained, seen))
    return found


def show(name: str, rounds: int) -> None:
    observers = {"everything": Observer(share=1.0), "usual": Observer()}
    found = measured(CLIENTS[name](), observers, rounds)
    allowance = observers["usual"].allowance
    everything, usual = found["everything"][1:], found["usual"][1:]
    report = next((seen.report for *_, seen in reversed(usual) if seen.report), None)
    rows = report.measurements if report else []
    cut = sum(isinstance(row.details.get("rows_looked_at"), str) for row in rows)
    skipped = sum(seen.report is None for *_, seen in usual)
    left_out = statistics.median(s.verdict.left_out for *_, s in usual if s.report)
    line(
        name,
        f"{statistics.median(trained for trained, *_ in usual):.2f} s",
        f"{statistics.median(share for _, share, _ in everything):.1%}",
        f"{allowance.spent / allowance.worked:.1%}",
        f"{left_out:g} of {len(rows)} rows, {cut} cut; {skipped} of {rounds} rounds",
    )


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(0)
    heading("model, a client's round", "training", "all of it", f"within {SHARE:.0%}", "left out")
    for name in CLIENTS:
        if given.only in name:
            show(name, given.rounds)


if __name__ == "__main__":
    main()
