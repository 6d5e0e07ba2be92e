"""Texts by the span of gradients against texts by gradient matching, in one run.

    python -m benchmarks.speed.text_matching FOLDER [--texts 3] [--length 16] [--steps 2000]

FOLDER is a BERT classifier that ``text_models.py`` made. Matching is LAMP's continuous part
(Balunović et al. 2022): Adam on embeddings for the cosine distance of gradients plus the distance
of their mean length from the vocabulary's, the label known, two starts of which the better counts,
and at the end the nearest token at each position. Printed: processor seconds and the share of
tokens named, both one text at a time, on one thread.
"""

import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.coverage.text_sequences import opened
from benchmarks.harness import arguments
from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.text_scores import scores_of
from gradaudit.audits.attack_text.text_threat import texts_of
from gradaudit.audits.attack_text.view import TextView
from gradaudit.progress import Silent

_LENGTHS = 0.1
"""Weight of the term that keeps embeddings as long as the vocabulary's."""


def matched(model: Any, view: TextView, label: Tensor, steps: int, seed: int) -> list[int]:
    """The tokens that gradient matching ends at."""
    names, weights = zip(*model.named_parameters(), strict=True)
    wanted = [view.update[name] for name in names]
    table = model.get_input_embeddings().weight.detach()
    length = table.norm(dim=1).mean()
    found: list[tuple[float, Tensor]] = []
    for start in range(2):
        draws = torch.Generator().manual_seed(seed * 2 + start)
        x = torch.randn(1, view.length, table.shape[1], generator=draws)
        x = (x / x.norm(dim=2, keepdim=True) * length).requires_grad_()
        optimiser = torch.optim.Adam([x], lr=0.01)
        for _ in range(steps):
            loss = F.cross_entropy(model(inputs_embeds=x).logits, label)
            gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
            pairs = [(g, w) for g, w in zip(gradients, wanted, strict=True) if g is not None]
            along = sum((g * w).sum() for g, w in pairs)
            sizes = [
                sum(part.square().sum() for part in parts) for parts in zip(*pairs, strict=True)
            ]
            distance = 1 - along / (sizes[0] * sizes[1]).sqrt()
            distance = distance + _LENGTHS * (x.norm(dim=2).mean() - length).square()
            optimiser.zero_grad()
            (x.grad,) = torch.autograd.grad(distance, [x])
            optimiser.step()
        found.append((float(distance.detach()), x.detach()[0]))
    best = min(found, key=lambda one: one[0])[1]
    alike = F.normalize(best, dim=1) @ F.normalize(table, dim=1).T
    return alike.argmax(dim=1).tolist()


def main() -> None:
    given = arguments(__doc__)
    threat, records = opened(given.folder, given.length)
    seconds, shares = np.zeros(2), np.zeros(2)
    for number in range(given.texts):
        batch = records.take(np.array([number * 11]))
        view = threat.view(batch, torch.Generator().manual_seed(number))
        truth = texts_of(batch).ids[0, : view.lengths[0]].tolist()
        begun = time.process_time()
        answer = recover(view, Structure.of(view), number, Silent())
        between = time.process_time()
        tokens = matched(threat.target.model.eval(), view, batch.labels, given.steps, number)
        seconds += between - begun, time.process_time() - between
        for way, texts in enumerate((answer.texts, [tuple(tokens)])):
            score = scores_of(texts, [token for text in texts for token in text], [truth])
            shares[way] += score.tokens[0] / score.tokens[1] / given.texts
    print(f"span: tokens {shares[0]:.2f}, {seconds[0] / given.texts:.2f} CPU s a text")
    print(f"matching: tokens {shares[1]:.2f}, {seconds[1] / given.texts:.2f} CPU s a text")
    print(f"ratio: {seconds[1] / seconds[0]:.0f}")


if __name__ == "__main__":
    main()
