"""User inference: whose records a batch is made of (Li et al. 2024, sections 3.2 and 4.1)."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.inference.deal import (
    Deal,
    IntArray,
    Parts,
    Setup,
    no_batches,
)
from gradaudit.attacks.inference.game import Answers, InferenceGame
from gradaudit.attacks.inference.prototypes import Encoder, candidate_posterior
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.families import Family
from gradaudit.families.base import Features
from gradaudit.inference.batches import Batches, draw_any, draw_batches

_FEWEST_SHADOW = 2
_SHADOW_SHARE = 2 / 3
"""Of the users with enough records (Li et al. 2024: 30 shadow users to 15 attacked ones)."""


class UserGame(InferenceGame):
    """Guess which of some candidate users a batch is of, given other records of each of them.

    Only users with at least twice a batch's records play: one batch is observed, another one of
    other records stands for the candidate. The adversary is trained on other users.
    """

    name: ClassVar[str] = "user"
    batch_size: ClassVar[int] = 8

    def deal(self, records: Records, setup: Setup, seed: np.random.SeedSequence) -> Deal:
        """Shadow users, attacked users, and the candidates of every trial."""
        codes, eligible = _users(records, setup)
        generator = np.random.default_rng(seed)
        shadow_users, targets = _dealt_users(codes, eligible, setup, generator)
        shadow = _shadow_batches(codes, shadow_users, setup, generator)
        candidates, secrets = _candidates(targets, setup, generator)
        batches, observed = _candidate_batches(codes, candidates, secrets, setup, generator)
        prior = np.full(setup.candidates, 1 / setup.candidates)
        none = np.zeros(0, dtype=np.int64)
        rest = np.isin(codes, np.concatenate([shadow_users, targets]), invert=True)
        return Deal(
            secret="user",
            values=tuple(f"candidate {i + 1}" for i in range(setup.candidates)),
            prior=prior,
            parts=Parts(
                np.flatnonzero(np.isin(codes, shadow_users)),
                none,
                np.flatnonzero(rest),
                np.flatnonzero(np.isin(codes, targets)),
            ),
            shadow=shadow,
            held=no_batches(setup.batch_size),
            observed=Batches(observed, secrets),
            clusters=candidates,
            candidates=batches,
            notes={"shadow_users": len(shadow_users), "attacked_users": len(targets)},
        )

    def answers(
        self, deal: Deal, family: Family, own: Features, released: Features, seed: int
    ) -> Answers:
        """A prototypical network; the family is of no use here."""
        cut, values = len(deal.shadow.labels), len(deal.values)
        encoder = Encoder.trained(own[:cut], deal.shadow.labels, seed)
        candidates = encoder(own[cut:])
        candidates = candidates.reshape(-1, values, candidates.shape[1])
        return Answers(candidate_posterior(encoder(released), candidates), np.zeros((0, values)))

    def permuted(self, records: Records, seed: np.random.SeedSequence) -> Records:
        """The records with their users in another order."""
        if records.users is None:
            return records
        return replace(records, users=np.random.default_rng(seed).permutation(records.users))


def _users(records: Records, setup: Setup) -> tuple[IntArray, IntArray]:
    """Each record's user, and the users with enough records.

    Raises:
        NotApplicable: the records have no users, or too few of them enough records.
    """
    if records.users is None:
        raise NotApplicable("the records name no users; name their column with user=COL")
    codes = np.unique(records.users, return_inverse=True)[1].astype(np.int64)
    needed = 2 * setup.batch_size
    eligible = np.flatnonzero(np.bincount(codes) >= needed)
    wanted = setup.candidates + _FEWEST_SHADOW
    if len(eligible) < wanted:
        raise NotApplicable(
            f"{len(eligible)} of {codes.max() + 1} users have the {needed} records that two "
            f"batches take; {wanted} such users are needed ({setup.candidates} candidates, "
            f"{_FEWEST_SHADOW} to train on): give more records or a smaller --batch-size"
        )
    return codes, eligible.astype(np.int64)


def _dealt_users(
    codes: IntArray, eligible: IntArray, setup: Setup, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Users to train on, within the adversary's number of records, and users to attack."""
    order = generator.permutation(eligible)
    most = len(order) - setup.candidates
    shadow = order[: min(max(round(len(order) * _SHADOW_SHARE), _FEWEST_SHADOW), most)]
    held = np.cumsum(np.bincount(codes)[shadow])
    kept = max(int((held <= setup.shadow).sum()), _FEWEST_SHADOW)
    return shadow[:kept], order[len(shadow) :]


def _shadow_batches(
    codes: IntArray, users: IntArray, setup: Setup, generator: np.random.Generator
) -> Batches:
    """As many batches of every shadow user, numbered from 0."""
    numbers = np.full(int(codes.max()) + 1, -1)
    numbers[users] = np.arange(len(users))
    pool = np.flatnonzero(numbers[codes] >= 0)
    each = max(setup.batches // len(users), 1)
    return draw_batches(numbers[codes], pool, setup.batch_size, each, generator, values=len(users))


def _candidates(
    targets: IntArray, setup: Setup, generator: np.random.Generator
) -> tuple[IntArray, NDArray[np.int64]]:
    """Distinct users (trials, candidates), and which of them is the true one (trials,)."""
    drawn = draw_any(targets, setup.candidates, setup.trials, generator)
    return generator.permuted(drawn, axis=1), generator.integers(0, setup.candidates, setup.trials)


def _candidate_batches(
    codes: IntArray,
    candidates: IntArray,
    secrets: IntArray,
    setup: Setup,
    generator: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """A batch of every candidate (trials · candidates, k), and of other records the observed one.

    Two batches' records are drawn of every candidate; the true one's second half is observed.
    """
    size = setup.batch_size
    flat = candidates.ravel()
    both = np.empty((len(flat), 2 * size), dtype=np.int64)
    for user in np.unique(flat):
        asked = flat == user
        both[asked] = draw_any(np.flatnonzero(codes == user), 2 * size, int(asked.sum()), generator)
    both = generator.permuted(both, axis=1)
    true = np.arange(len(candidates)) * candidates.shape[1] + secrets
    return both[:, :size], both[true, size:]
