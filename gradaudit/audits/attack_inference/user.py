"""User inference: whose records a batch is made of (Li et al. 2024, sections 3.2 and 4.1).

Users who are attacked are never among those that the adversary could train on, so no classifier of
users serves. An encoder is trained together with a classifier of the shadow users; the classifier
is thrown away, and a candidate's probability is by distance in the encoder's space,

    P(a|g̃) = exp(−‖f(g_a) − f(g̃)‖₂) / Σ_i exp(−‖f(g_i) − f(g̃)‖₂).

Source: J. Snell et al., "Prototypical networks for few-shot learning" (2017), as Li et al. 2024,
section 4.1, use it: a fully connected encoder with one hidden layer, 50 dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn import functional

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
    layers: Sequence[tuple[Tensor, Tensor]]

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
        inputs, labels = torch.from_numpy(scale(features)).float(), torch.from_numpy(users)
        sizes = (inputs.shape[1], HIDDEN, DIMENSIONS, int(users.max()) + 1)
        layers = [
            (torch.zeros(after, before), torch.zeros(after)) for before, after in pairwise(sizes)
        ]
        for weight, _ in layers:
            nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
        parameters = [part.requires_grad_() for layer in layers for part in layer]
        optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=DECAY)
        for _ in range(EPOCHS):
            for rows in torch.split(torch.randperm(len(inputs), generator=generator), BATCH):
                logits = functional.linear(_embedded(inputs[rows], layers[:2]), *layers[2])
                optimizer.zero_grad()
                torch.autograd.backward(functional.cross_entropy(logits, labels[rows]))
                optimizer.step()
        return cls(scale, [(weight.detach(), bias.detach()) for weight, bias in layers[:2]])

    def __call__(self, features: NDArray[np.floating]) -> Tensor:
        """Embeddings (batches, ``DIMENSIONS``)."""
        return _embedded(torch.from_numpy(self.scale(features)).float(), self.layers).double()


def _embedded(inputs: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    hidden, last = layers
    return functional.linear(functional.linear(inputs, *hidden).relu(), *last)


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
        assert records.users is not None
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
