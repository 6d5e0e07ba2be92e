"""Plays a chain through the rounds of its job, with the state that its client keeps."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
import torch

from gradaudit.audits.dp_audit.game.hypotheses import reproducible
from gradaudit.audits.dp_audit.middleware.payload import LENGTHS, LONG, Arrays, Outgoing, simulated
from gradaudit.audits.job.loading.chains import JobChain, State
from gradaudit.audits.job.probing import as_hashable
from gradaudit.core.randomness import Seed, sequence
from gradaudit.core.text import listed
from gradaudit.errors import one_line

_NUMBERS, _FEWEST, _MOST = 200_000_000, 10, 200
"""Numbers of all messages of the rounds that are played, and how many rounds that is at least and
at most."""
PROBED = 4
"""Kinds of rounds that are looked at in full."""


@dataclass(frozen=True)
class Message:
    """What leaves of a long update with seeded generators.

    Attributes:
        arrays: digest of the arrays; the error where the chain fails, so that nothing leaves.
        values: the numbers, lists and texts by name.
        untouched: keys of the arrays that leave bit for bit as training made them.
    """

    arrays: str
    values: Mapping[str, Hashable] = field(default_factory=dict)
    untouched: tuple[str, ...] = ()

    def without(self, names: Collection[str]) -> "Message":
        """Drop some of the values."""
        return replace(self, values={k: v for k, v in self.values.items() if k not in names})


@dataclass(frozen=True)
class RoundKind:
    """Rounds in which the same message leaves of the same update, generators and weights.

    Attributes:
        chain: as it runs in the first of them, each time from the state before that round.
        message: what leaves in them.
        again: what leaves where the first of them is played again from the same state.
        numbers: of these rounds.
    """

    chain: JobChain
    message: Message = Message("")
    again: Message = Message("")
    numbers: tuple[int, ...] = (1,)


def chosen_rounds(total: int, elements: int) -> list[int]:
    """Choose the rounds to play: all if they are few enough, else the first two and evenly more."""
    most = min(max(_NUMBERS // max(1, elements), _FEWEST), _MOST)
    spread = np.linspace(1, total, min(total, most) - (total > most)).round().astype(int).tolist()
    return sorted({*spread, min(2, total)})


def played_rounds(chain: JobChain, total: int, seed: Seed) -> list[RoundKind]:
    """Play one message a round, and sort the rounds by what leaves; the first round's kind first.

    The state of the client is carried over from each round that is played to the next. Values that
    differ where the first round is played again are in every message and tell no rounds apart.
    """
    played: dict[int, tuple[State, Message]] = {}
    state: State = {}
    for number in chosen_rounds(total, 1 if chain.carries == "numbers" else chain.layout.elements):
        before = deepcopy(state)
        if (running := chain.of_round(number, state)) is not None:
            played[number] = before, message_of(running, seed)
    kinds: list[RoundKind] = []
    noisy: set[str] = set()
    for number, (before, message) in played.items():
        same = [k for k in kinds if k.message == message.without(noisy)]
        if same:
            kinds[kinds.index(same[0])] = replace(same[0], numbers=(*same[0].numbers, number))
            continue
        start = _from_state(chain, number, before)
        again = message_of(start, seed)
        if not kinds:
            both = {*message.values, *again.values}
            noisy = {n for n in both if message.values.get(n) != again.values.get(n)}
        elif message.arrays != kinds[0].message.arrays:
            start.known = None  # the law was found in the first round
        kinds.append(RoundKind(start, message.without(noisy), again.without(noisy), (number,)))
    return kinds


def _from_state(chain: JobChain, number: int, before: State) -> JobChain:
    """Copy the chain as it runs in a round, each time from this state."""

    def carry(received: Arrays, given: Outgoing) -> Outgoing:
        running = chain.of_round(number, deepcopy(before))
        return (running or chain).carry(received, given)

    return replace(chain, carry=carry).receiving(chain.layout)


def message_of(chain: JobChain, seed: Seed) -> Message:
    """Compute what leaves of a long update with seeded generators."""
    given = Outgoing({}, chain.form, chain.numbers)
    if chain.carries != "numbers":
        update = simulated(chain.layout, seed).float() * LENGTHS[LONG]
        given = replace(given, arrays=chain.layout.payload(update, chain.form).arrays)
    try:
        with reproducible(sequence(seed, "round"), torch.device("cpu")):
            left = chain.leaves(given)
    except (Exception, SystemExit) as error:  # whatever the user's filters and mods raise
        return Message(one_line(error))
    before = given.arrays if left.form == given.form else {}
    both = (key for key in chain.layout.real if key in left.arrays and key in before)
    untouched = tuple(key for key in both if np.array_equal(left.arrays[key], before[key]))
    digest = sha256(left.form.encode())
    for key, array in left.arrays.items():
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    values = {key: as_hashable(value) for key, value in {**left.numbers, **left.extras}.items()}
    return Message(digest.hexdigest(), values, untouched)


def representatives(kinds: Sequence[RoundKind]) -> list[RoundKind]:
    """Choose the kinds of rounds that are looked at in full: the first two, and evenly more."""
    if len(kinds) <= PROBED:
        return list(kinds)
    places = {0, 1, *np.linspace(0, len(kinds) - 1, PROBED - 1).round().astype(int).tolist()}
    return [kinds[place] for place in sorted(places)]


def rounds_text(numbers: Sequence[int]) -> str:
    """Name rounds, ranges of them by their ends."""
    ends: list[list[int]] = []
    for number in sorted(numbers):
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    texts = [str(a) if a == b else f"{a}{' to ' if b > a + 1 else ', '}{b}" for a, b in ends]
    return f"round{'s' if len(numbers) > 1 else ''} {listed(texts, 8)}"
