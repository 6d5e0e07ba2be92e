"""User inference: whose records a batch is made of (Li et al. 2024, sections 3.2 and 4.1).

Users who are attacked are never among those that the adversary could train on, so no classifier of
users serves. An encoder is trained together with a classifier of the shadow users; the classifier
is thrown away, and a candidate's probability is by distance in the encoder's space,

    P(a|g̃) = exp(−‖f(g_a) − f(g̃)‖₂) / Σ_i exp(−‖f(g_i) − f(g̃)‖₂).

The encoder of gradients that separates users, and its training.

Source: J. Snell et al., "Prototypical networks for few-shot learning" (2017), as Li et al. 2024,
section 4.1, use it: a fully connected encoder with one hidden layer, 50 dimensions.

A game trains one for each layer, round and repetition, thousands of small steps each. So gradients
are written out, and all weights lie in one vector that Adam moves:
``benchmarks/speed/fast_paths.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn

from gradaudit.audits.attack_inference.game import Answers, InferenceGame
from gradaudit.audits.attack_inference.split import Design, GameSplit, IntArray, Parts, no_batches
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.families.base import Features, Scale
from gradaudit.games.splits import Batches, draw_any, draw_batches

DIMENSIONS = 50
HIDDEN = 128
EPOCHS = 60
BATCH = 64
RATE = 1e-3
DECAY = 1e-4
_MOMENTS = 0.9, 0.999
_EPSILON = 1e-8
_FEWEST_SHADOW = 2
_SHADOW_SHARE = 2 / 3
"""Share of the users with enough records that are shadows (Li et al. 2024: 30 to 15 attacked)."""


@dataclass(frozen=True)
class Encoder:
    """A trained encoder of gradients.

    Attributes:
        scale: of the features, of which it keeps those that vary.
        layers: weights (out, in) and biases (out,) of two, from the kept features to
            ``DIMENSIONS``.
    """

    scale: Scale
    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    @classmethod
    def trained(
        cls, features: NDArray[np.floating], users: NDArray[np.int64], seed: int
    ) -> Encoder:
        """Train the encoder to name the user behind each shadow gradient, by cross-entropy.

        Args:
            features: (batches, features).
            users: (batches,) in 0..users-1.
            seed: of the weights and of the order.
        """
        generator = torch_rng(seed, "encoder")
        scale = Scale.of(features)
        inputs = torch.from_numpy(scale(features)).to(torch.float32)
        labels = torch.from_numpy(users)
        sizes = (inputs.shape[1], HIDDEN, DIMENSIONS, int(users.max()) + 1)
        weights = _drawn(sizes, generator)
        _train(weights, sizes, inputs, labels, generator)
        hidden, last, _ = _layers(weights, sizes)
        return cls(scale, (hidden, last))

    def __call__(self, features: NDArray[np.floating]) -> Tensor:
        """Embeddings (batches, ``DIMENSIONS``)."""
        inputs = torch.from_numpy(self.scale(features)).float()
        (first, first_bias), (second, second_bias) = self.layers
        hidden = torch.addmm(first_bias, inputs, first.T).relu_()
        return torch.addmm(second_bias, hidden, second.T).double()

    @staticmethod
    def seconds(batches: int, features: int) -> float:
        """About how long training on so many batches of so many features takes."""
        return EPOCHS * math.ceil(batches / BATCH) * (5e-4 + 1e-6 * features)


Layers = list[tuple[Tensor, Tensor]]


def _layers(vector: Tensor, sizes: Sequence[int]) -> Layers:
    """View a vector of weights as the layers' weights (out, in) and biases (out,)."""
    shapes = list(pairwise(sizes))
    lengths = [length for before, after in shapes for length in (before * after, after)]
    parts = torch.split(vector, lengths)
    return [
        (weight.view(after, before), bias)
        for (before, after), weight, bias in zip(shapes, parts[::2], parts[1::2], strict=True)
    ]


def _drawn(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """The weights of an untrained network in one vector."""
    weights = torch.zeros(sum((before + 1) * after for before, after in pairwise(sizes)))
    for weight, _ in _layers(weights, sizes):
        nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    return weights


@torch.no_grad()
def _train(
    weights: Tensor,
    sizes: Sequence[int],
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
) -> None:
    """Train the weights by AdamW, in place."""
    gradient = torch.empty_like(weights)
    network, slopes, adam = _layers(weights, sizes), _layers(gradient, sizes), _AdamW(weights)
    for rows in _batches(len(inputs), generator):
        _differentiate(network, inputs[rows], labels[rows], slopes)
        adam.step(gradient)


def _batches(rows: int, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(EPOCHS):
        yield from torch.split(torch.randperm(rows, generator=generator), BATCH)


def _differentiate(network: Layers, inputs: Tensor, labels: Tensor, slopes: Layers) -> None:
    """Write the mean cross-entropy's gradient into ``slopes``."""
    (first, first_bias), (second, second_bias), (third, third_bias) = network
    hidden = torch.addmm(first_bias, inputs, first.T).relu_()
    embedded = torch.addmm(second_bias, hidden, second.T)
    logits = torch.addmm(third_bias, embedded, third.T)
    by_logits = logits.softmax(dim=1)
    by_logits[torch.arange(len(labels)), labels] -= 1
    by_logits /= len(labels)
    by_embedded = by_logits @ third
    by_hidden = (by_embedded @ second).masked_fill_(hidden == 0, 0)
    inside, outside = (inputs, hidden, embedded), (by_hidden, by_embedded, by_logits)
    for before, after, (weight, bias) in zip(inside, outside, slopes, strict=True):
        torch.mm(after.T, before, out=weight)
        torch.sum(after, dim=0, out=bias)


class _AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019) of one vector of weights."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.steps = weights, 0
        self.mean, self.square, self.scale = torch.zeros(3, len(weights))

    def step(self, gradient: Tensor) -> None:
        """Move the weights once."""
        self.steps += 1
        slow, slower = _MOMENTS
        unbiased = math.sqrt(1 - slower**self.steps)
        rate = RATE * unbiased / (1 - slow**self.steps)
        self.mean.lerp_(gradient, 1 - slow)
        self.square.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        torch.sqrt(self.square, out=self.scale).add_(_EPSILON * unbiased)
        self.weights.mul_(1 - RATE * DECAY).addcdiv_(self.mean, self.scale, value=-rate)


class UserGame(InferenceGame):
    """Guess which of some candidate users a batch is of, given other records of each of them.

    Only users with at least twice a batch's records play: one batch is observed, another one of
    other records stands for the candidate. The adversary is trained on other users.
    """

    name: ClassVar[str] = "user"
    batch_size: ClassVar[int] = 8
    families: ClassVar[tuple[str, ...]] = ("encoder",)

    def split(self, records: Records, design: Design, seed: np.random.SeedSequence) -> GameSplit:
        """Shadow users, attacked users, and the candidates of every trial."""
        codes, eligible = _users(records, design)
        generator = rng(seed, "batches")
        shadow_users, targets = _dealt_users(codes, eligible, design, generator)
        shadow = _shadow_batches(codes, shadow_users, design, generator)
        drawn = draw_any(targets, design.candidates, design.trials, generator)
        candidates = generator.permuted(drawn, axis=1)
        secrets = generator.integers(0, design.candidates, design.trials)
        batches, observed = _candidate_batches(codes, candidates, secrets, design, generator)
        shadow_records, private = (np.isin(codes, users) for users in (shadow_users, targets))
        return GameSplit(
            secret="user",
            values=tuple(f"candidate {i + 1}" for i in range(design.candidates)),
            prior=np.full(design.candidates, 1 / design.candidates),
            parts=Parts(
                shadow=np.flatnonzero(shadow_records),
                held=np.zeros(0, dtype=np.int64),
                test=np.flatnonzero(~(shadow_records | private)),
                private=np.flatnonzero(private),
            ),
            shadow=shadow,
            held=no_batches(design.batch_size),
            observed=Batches(observed, secrets),
            clusters=candidates,
            candidates=batches,
            notes={"shadow_users": len(shadow_users), "attacked_users": len(targets)},
        )

    def learners(self, families: Sequence[str]) -> dict[str, JsonValue]:
        """Return the encoder alone, since user inference uses no predictive family."""
        return {"encoder": f"{HIDDEN} hidden units"}

    def answers(
        self, split: GameSplit, name: str, own: Features, released: Features, seed: int
    ) -> Answers:
        """Guess by a prototypical network, whatever family is named."""
        cut, values = len(split.shadow.labels), len(split.values)
        encoder = Encoder.trained(own[:cut], split.shadow.labels, seed)
        candidates = encoder(own[cut:])
        candidates = candidates.reshape(-1, values, candidates.shape[1])
        return Answers(candidate_posterior(encoder(released), candidates), np.zeros((0, values)))

    def permuted(self, records: Records, seed: np.random.SeedSequence) -> Records:
        """Shuffle the users among the records."""
        if records.users is None:
            return records
        users = rng(seed, "permutation").permutation(records.users)
        return replace(records, users=users)


def _users(records: Records, design: Design) -> tuple[IntArray, IntArray]:
    """Each record's user, and the users with enough records.

    Raises:
        NotApplicable: the records have no users, or too few of them enough records.
    """
    if records.users is None:
        raise NotApplicable("the records name no users; name their column with user=COL")
    codes = np.unique(records.users, return_inverse=True)[1].astype(np.int64)
    needed = 2 * design.batch_size
    eligible = np.flatnonzero(np.bincount(codes) >= needed)
    wanted = design.candidates + _FEWEST_SHADOW
    if len(eligible) < wanted:
        raise NotApplicable(
            f"{len(eligible)} of {codes.max() + 1} users have the {needed} records that two "
            f"batches take; {wanted} such users are needed ({design.candidates} candidates, "
            f"{_FEWEST_SHADOW} to train on): give more records or a smaller --batch-size"
        )
    return codes, eligible.astype(np.int64)


def _dealt_users(
    codes: IntArray, eligible: IntArray, design: Design, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Choose users to train on, within the adversary's number of records, and to attack."""
    order = generator.permutation(eligible)
    most = len(order) - design.candidates
    shadow = order[: min(max(round(len(order) * _SHADOW_SHARE), _FEWEST_SHADOW), most)]
    held = np.cumsum(np.bincount(codes)[shadow])
    kept = max(int((held <= design.shadow).sum()), _FEWEST_SHADOW)
    return shadow[:kept], order[len(shadow) :]


def _shadow_batches(
    codes: IntArray, users: IntArray, design: Design, generator: np.random.Generator
) -> Batches:
    """Draw as many batches of every shadow user, who are numbered from 0."""
    numbers = np.full(int(codes.max()) + 1, -1)
    numbers[users] = np.arange(len(users))
    pool = np.flatnonzero(numbers[codes] >= 0)
    per_user = max(design.batches // len(users), 1)
    return draw_batches(
        numbers[codes], pool, design.batch_size, per_user, generator, values=len(users)
    )


def _candidate_batches(
    codes: IntArray,
    candidates: IntArray,
    secrets: IntArray,
    design: Design,
    generator: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Draw each candidate's batch (trials · candidates, k), and the observed batches.

    Two batches' records are drawn of every candidate; the true one's second half is observed.
    """
    size = design.batch_size
    flat = candidates.ravel()
    both = np.empty((len(flat), 2 * size), dtype=np.int64)
    for user in np.unique(flat):
        asked = flat == user
        both[asked] = draw_any(np.flatnonzero(codes == user), 2 * size, int(asked.sum()), generator)
    both = generator.permuted(both, axis=1)
    true = np.arange(len(candidates)) * candidates.shape[1] + secrets
    return both[:, :size], both[true, size:]


def candidate_posterior(observed: Tensor, candidates: Tensor) -> NDArray[np.float64]:
    """Log-probabilities of the candidates, each being as likely before.

    Args:
        observed: (trials, dimensions) embeddings of what was seen.
        candidates: (trials, candidates, dimensions) embeddings of the candidates' own batches.

    Returns:
        (trials, candidates).
    """
    distances = (candidates - observed[:, None, :]).norm(dim=2)
    return np.asarray(torch.log_softmax(-distances, dim=1).cpu().numpy(), dtype=np.float64)
