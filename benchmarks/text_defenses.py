"""What each layer tells of a text under defenses and local training, and what comes back.

    python benchmarks/text_defenses.py SHARED FOLDER [--updates 8] [--batch 2] [--length 16]
        [--decoys 32] [--noise 0.01,0.1,1] [--only Adam]

FOLDER is one that ``text_models.py`` made. For each setting, over so many updates of real reviews:
the share of tokens and of texts that are named, and for some kinds of layers the AUROC of texts of
the batch against decoys, and (in brackets) of texts of another batch on the same update, which
should be one half. Noise is relative: its standard deviation over the root mean square of each
layer's gradient.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from text_sequences import opened
from torch import Tensor

from gradaudit.audits.attack_text.observing import TextThreat, texts_of
from gradaudit.audits.attack_text.presence import Presence, Texts, decoys_of, wins
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.scores import TextScores, scores_of
from gradaudit.audits.attack_text.structure import Structure
from gradaudit.audits.attack_text.view import TextView
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer
from gradaudit.progress import Silent
from gradaudit.randomness import rng
from gradaudit.sharing.protocol import SharingProtocol

KINDS = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "query", "dense", "word", "wte")
Noise = Callable[[TextView], TextView]


def noisy(scale: float) -> Noise:
    """Gaussian noise on every layer, over its gradient's root mean square."""

    def add(view: TextView) -> TextView:
        draws = torch.Generator().manual_seed(1)
        update: dict[str, Tensor] = {}
        for name, part in view.update.items():
            noise = torch.randn(part.shape, generator=draws)
            update[name] = part + scale * part.square().mean().sqrt() * noise
        return replace(view, update=update)

    return add


def trained_by_adam(threat: TextThreat, batch: Records, epochs: int, rate: float) -> TextView:
    """What is seen of local training by Adam, one text a step."""
    model = FunctionalModel.of(threat.target, dtype=torch.float32)
    weights = {name: p.clone().requires_grad_() for name, p in model.parameters.items()}
    optimiser = torch.optim.Adam(weights.values(), lr=rate)
    inputs, labels = model.cast(batch.inputs), model.cast(batch.labels)
    for _ in range(epochs):
        for row in range(len(batch)):
            optimiser.zero_grad()
            model.batch_loss(weights, inputs[row : row + 1], labels[row : row + 1]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    before = model.parameters
    moved = {name: ((before[name] - w) / rate).detach() for name, w in weights.items()}
    return threat.view_of(batch, moved)


def settings(noise: list[float]) -> Mapping[str, tuple[SharingProtocol, Noise]]:
    """Every setting by its name."""
    plain: Noise = lambda view: view  # noqa: E731
    found = {"none": (SharingProtocol(), plain)}
    found |= {f"noise {scale:g}": (SharingProtocol(), noisy(scale)) for scale in noise}
    for spec in ("prune:0.5", "prune:0.9", "prune:0.99", "sign", "selective:0.05"):
        found[spec] = (SharingProtocol(defenses=(parse_defense(spec),)), plain)
    for epochs, rate in ((2, 0.01), (5, 0.01), (5, 0.3)):
        made = SharingProtocol(algorithm="fedavg", epochs=epochs, rate=rate, local_batch=1)
        found[f"FedAvg {epochs} epochs, rate {rate:g}"] = (made, plain)
    return found


ADAM = {f"Adam {epochs} epochs": epochs for epochs in (1, 5)}
"""Local training by another optimizer, at a rate of 0.001."""


def defended(threat: TextThreat, noise: Noise, batch: Records, number: int) -> TextView:
    """What is seen of an update under defenses and noise."""
    return noise(threat.view(batch, torch.Generator().manual_seed(number)))


def locally(threat: TextThreat, epochs: int, batch: Records, number: int) -> TextView:
    """What is seen of local training by Adam."""
    return trained_by_adam(threat, batch, epochs, 0.001)


def texts_and_decoys(records: Records, batch: Records, decoys: int, seed: int) -> list[Texts]:
    """The batch's texts, and decoys for each."""
    pool, texts = texts_of(records), texts_of(batch)
    same = (pool.ids[:, None] == texts.ids).all(dim=2).any(dim=1)
    others = Texts(pool.ids[~same], pool.lengths[~same])
    return [texts, decoys_of(texts, others, decoys, rng(seed, "decoys"))]


def measured(
    seen: Callable[[Records, int], TextView],
    layers: tuple[Layer, ...],
    records: Records,
    updates: int,
    batch: int,
    decoys: int,
) -> tuple[list[TextScores], dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Scores of answers; shares of decoys that the texts, and other texts, are likelier than."""
    order = np.random.default_rng(0).permutation(len(records))
    batches = [
        records.take(np.sort(order[n * batch : (n + 1) * batch])) for n in range(updates + 1)
    ]
    scores: list[TextScores] = []
    there: dict[str, list[Tensor]] = defaultdict(list)
    absent: dict[str, list[Tensor]] = defaultdict(list)
    for number in range(updates):
        view = seen(batches[number], number)
        answer = recover(view, Structure.of(view), number, Silent())
        texts = texts_of(batches[number])
        pairs = zip(texts.ids.tolist(), texts.lengths.tolist(), strict=True)
        scores.append(scores_of(answer.texts, answer.tokens, [i[:n] for i, n in pairs]))
        presence = Presence(view, layers)
        for told, chosen in ((there, batches[number]), (absent, batches[number + 1])):
            true, other = map(presence.evidence, texts_and_decoys(records, chosen, decoys, number))
            for layer, found in true.items():
                kind = next((kind for kind in KINDS if kind in layer), None)
                if kind is not None:
                    told[kind].append(wins(found, other[layer].reshape(len(found), -1)))
    return scores, there, absent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--decoys", type=int, default=32)
    parser.add_argument("--only", default="", help="settings whose names hold this")
    parser.add_argument("--noise", default="0.01,0.1,1")
    given = parser.parse_args()
    torch.set_num_threads(1)
    threat, records = opened(given.shared, given.folder, given.length)
    rows: dict[str, Callable[[Records, int], TextView]] = {
        name: partial(defended, replace(threat, sharing=sharing), noise)
        for name, (sharing, noise) in settings([float(s) for s in given.noise.split(",")]).items()
    }
    for name, epochs in ADAM.items():
        rows[name] = partial(locally, threat, epochs)
    for name, seen in rows.items():
        if given.only not in name:
            continue
        scores, there, absent = measured(
            seen, threat.layers, records, given.updates, given.batch, given.decoys
        )
        tokens = sum(s.tokens[0] for s in scores) / sum(s.tokens[1] for s in scores)
        whole = sum(s.sequences[0] for s in scores) / sum(s.sequences[1] for s in scores)
        told = "  ".join(
            f"{kind} {torch.cat(there[kind]).mean():.2f} ({torch.cat(absent[kind]).mean():.2f})"
            for kind in there
        )
        print(f"{name}: tokens {tokens:.2f} texts {whole:.2f}  {told}", flush=True)
