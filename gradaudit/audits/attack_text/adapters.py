"""How much low-rank adapters give away, predicted from their ranks before anything is observed.

An adapter's first matrix A (r, width) has the gradient Σ_t (Bᵀδ_t) a_tᵀ of rank r at most. Adapters
that share what comes in are taken together, so that their ranks add up: above the number of tokens
the span holds all that came in; below it a share of its energy, which is still more than a decoy's.
The prediction is what the attacker itself meets with tokens as frequent as in other texts, and
random numbers in place of the Bᵀδ_t. Tokens that are frequent stand in a batch several times, and
are named several times: of a GPT-2 of 192 dimensions and texts of Zipf's law with rank 4, .25 was
predicted of 6 batches and .29 measured (.08 predicted if each token of the vocabulary were as
likely; ``benchmarks/coverage/lora_prediction.py``).
"""

from collections import Counter

import torch
from torch import Tensor

from gradaudit.audits.attack_text.span import Span
from gradaudit.audits.attack_text.structure import MapsOfOneInput, Structure
from gradaudit.audits.attack_text.view import TextView
from gradaudit.randomness import torch_rng

_CHUNK = 512


def adapters(structure: Structure) -> MapsOfOneInput | None:
    """The first low-rank maps that see each token by itself; None where there are none."""
    local = (place for place in structure.places if place.local)
    return next((place for place in local if place.outputs < place.width), None)


def predicted(
    view: TextView, structure: Structure, place: MapsOfOneInput, pool: Tensor, seed: int
) -> float:
    """The share of a batch's tokens that an attack on such adapters names, expected.

    Args:
        view: of which only the texts' lengths are looked at.
        structure: of the model.
        place: the adapters.
        pool: (tokens,) of other texts, each as often as it is there.
        seed: of tokens and gradients.
    """
    generator = torch_rng(seed, "text", "adapters")
    count = sum(view.inner)
    tokens = pool[torch.randint(len(pool), (count,), generator=generator)]
    positions = torch.cat([torch.arange(length) for length in view.inner])
    if not structure.positional:
        positions = torch.zeros_like(positions)
    came_in = _vectors(view, place, tokens, int(positions.max()) + 1)[range(count), positions]
    drawn = torch.randn(place.outputs, count, generator=generator)
    span = Span.of([drawn @ came_in], count)
    if span is None:
        return 0.0
    every = torch.arange(view.vocabulary)
    blocks = torch.split(every, _CHUNK)
    width = int(positions.max()) + 1
    costs = torch.cat([span.energy(_vectors(view, place, block, width)) for block in blocks])
    room = torch.bincount(positions, minlength=width)
    ranked = costs.argsort(dim=0)
    named = Counter(token for at, some in enumerate(room) for token in ranked[:some, at].tolist())
    return (named & Counter(tokens.tolist())).total() / view.tokens


def _vectors(view: TextView, place: MapsOfOneInput, tokens: Tensor, positions: int) -> Tensor:
    """What tokens bring in at each position, (tokens, positions, width)."""
    ids = tokens.to(view.model.device)[:, None].expand(-1, positions)
    return view.seen(place.names[:1], ids)[place.names[0]].cpu()
