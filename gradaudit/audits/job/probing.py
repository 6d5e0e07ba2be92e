"""Measures a chain's clipping and noise by running it on simulated updates.

With common random numbers two releases share their noise, which cancels in their difference: two
calls give the exact distance of a pair of updates. No training is run; updates are random.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise, reproducible
from gradaudit.audits.dp_audit.middleware.array_changes import LOOKS, ArrayChange, array_changes
from gradaudit.audits.dp_audit.middleware.distance import Distance, draw_differences
from gradaudit.audits.dp_audit.middleware.payload import (
    LENGTHS,
    LONG,
    Layout,
    Outgoing,
    as_array,
    simulated,
)
from gradaudit.audits.job.loading.chains import Carry, JobChain, plain_text
from gradaudit.core.randomness import Seed, sequence
from gradaudit.errors import AuditError

LONGER = (1e5, 1e6)
"""Further lengths, tried where the distance still grows at the last of ``LENGTHS``."""
_ALIKE = 1e-6
"""Relative spread of norms that rounding makes; noise on d numbers spreads them by √(1/2d)."""
_SAME = 0.02
"""Relative distance below which two norms count as equal: rounding of float32 weights."""
_PAIRS, _MANY_PAIRS = 16, 128
"""Pairs of releases that a distance is estimated from, where no seed holds the noise fast, and
those of the longest update, which the sensitivity is estimated from."""
_FOLLOWS = 0.05
"""Share of what is added to the received weights beyond which the release depends on them."""
_NUMBERS = 4_000_000
"""Numbers of all releases of one update, which are held in memory at once."""
_TINY = 2.0**-13
"""Relative change of a number of float16 that float16 rounds away and float32 keeps."""
_FACTORS = (7.0, 3.0)
"""Factors of a reply's numbers, behind which it shows what varies with them."""
_DRAWS, _FEW_NUMBERS = 64, 1 << 18
"""Draws of the noise behind which such a change is looked for, and the numbers of all together."""


@dataclass(frozen=True)
class LeftNumbers:
    """Names of the numbers and texts that leave beside a result's arrays, by what they vary with.

    Attributes:
        clear: with the update or with a declared number, and without noise.
        noisy: from message to message, so that their noise is not known.
        assumed: only with numbers that the reply is assumed to hold.
        constant: those that vary with nothing and that the training did not send, NAME=VALUE.
        declared: those of these that somebody declared to be constants, NAME=VALUE.
    """

    clear: tuple[str, ...] = ()
    noisy: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    def __add__(self, other: "LeftNumbers") -> "LeftNumbers":
        """Join what leaves in two rounds."""
        both = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return LeftNumbers(*(tuple(dict.fromkeys([*here, *there])) for here, there in both))


@dataclass(frozen=True)
class Probe:
    """The measured behaviour of a chain: clipping, noise, and the arrays that leave.

    Attributes:
        array_changes: array by array, of an update of norm ``LENGTHS[LONG]``.
        spans: distance of what leaves of u and of -u, for each of ``LENGTHS``; without noise.
        alone: the same where the update lies in one array alone, at ``LENGTHS[LONG]``.
        noise: root mean square of the noise on the elements that leave, for each of ``LENGTHS``.
        repeats: whether two rounds get the same noise.
        steady: whether the same seed gives the same release, so that distances are exact.
        on_weights: whether what leaves depends on the weights that were received.
        fixed_length: whether what leaves has the same norm in every round, noise and all.
        halved: whether what leaves is of half precision.
        halved_first: whether it is rounded to half precision before the noise is added.
        numbers: that leave beside the arrays, and what they vary with.
    """

    array_changes: tuple[ArrayChange, ...]
    spans: tuple[Distance, ...]
    alone: Mapping[str, Distance]
    noise: tuple[float, ...]
    repeats: bool
    steady: bool
    on_weights: bool
    fixed_length: bool
    halved: bool
    halved_first: bool
    numbers: LeftNumbers

    @cached_property
    def clipped(self) -> bool:
        """Whether the chain clips: no longer update is shown to leave at a larger distance."""
        return not self.spans[-1].exceeds(self.spans[-2], 1 + _SAME)

    @property
    def largest(self) -> Distance:
        """The largest distance at which two updates leave; that of the longest, if estimated."""
        return max(self.spans, key=lambda span: span.squared) if self.steady else self.spans[-1]

    @property
    def sensitivity(self) -> float:
        """The largest distance at which two updates leave; infinite without clipping."""
        return self.largest.value if self.clipped else np.inf

    @property
    def by_parts(self) -> bool:
        """Whether arrays are clipped one by one, and not the update as a whole."""
        parts = [span for span in self.alone.values() if span.squared > 0]
        whole = self.clipped and len(parts) > 1
        return whole and all(self.largest.exceeds(part, 1 + 5 * _SAME) for part in parts)

    @property
    def own_clip(self) -> bool:
        """Whether the update is scaled by a factor that follows from the update itself."""
        spans = zip(self.spans, LENGTHS, strict=False)
        factors = [s.value / (2 * length) for s, length in spans if s.error < _SAME / 2 * s.squared]
        steady = len(factors) > 1 and max(factors) - min(factors) <= _SAME * max(factors)
        grows = len(set(self.noise)) > 1 and self.noise[-1] > 10 * self.noise[LONG] > 0
        return not self.clipped and (grows or (steady and factors[-1] < 1 - 5 * _SAME))

    @property
    def noisy(self) -> bool:
        """Whether any element gets noise that changes from round to round."""
        return max(self.noise) > 0

    @property
    def carrying(self) -> list[ArrayChange]:
        """The arrays that leave and were changed by training."""
        return [change for change in self.array_changes if change.sent and change.before > 0]

    @property
    def untouched(self) -> list[str]:
        """Arrays that leave bit for bit as training made them."""
        return [change.key for change in self.array_changes if change.carries_on]

    @property
    def counts(self) -> list[str]:
        """Arrays of whole numbers that leave as they are, such as BatchNorm's count of batches."""
        whole = (
            change
            for change in self.array_changes
            if change.kind.startswith(("int", "uint", "bool"))
        )
        return [change.key for change in whole if change.sent and change.untouched]

    @property
    def bare(self) -> list[str]:
        """Arrays that leave changed but without noise, though other arrays get noise."""
        touched = [f for f in self.carrying if not f.untouched and f.after > 0]
        return [f.key for f in touched if f.noise == 0] if self.noisy else []


def probe(chain: JobChain, seed: Seed) -> Probe:
    """Run a chain on simulated updates.

    Raises:
        AuditError: a filter or mod fails, or blocks the result.
    """
    layout = chain.layout
    unit = simulated(layout, seed)
    looked = tuple(array_changes(chain, unit * LENGTHS[LONG], seed, _looks(layout, LOOKS)))
    untouched = layout.where([change.key for change in looked if change.carries_on])
    if untouched.any() and not untouched[unit != 0].all():
        unit = torch.where(untouched, 0.0, unit)  # what is untouched is no part of any clip
        unit = unit / unit.norm()
    common, long = CommonNoise(chain, sequence(seed, "common")), unit * LENGTHS[LONG]
    steady = common.repeats(long[None])
    draws = 1 if steady else _looks(layout, _PAIRS)
    noise = []
    for i, length in enumerate(LENGTHS):
        drawn = _draws(chain, unit * length, sequence(seed, i))
        noise.append(_noise(drawn))
        if i == LONG:
            repeats, fixed_length = _repeats(chain, long, drawn), _fixed_length(drawn)
        del drawn
    halved = _halved(layout, chain.sent(long.float()).arrays)
    return Probe(
        array_changes=looked,
        spans=_spans(common, unit, draws, draws if steady else _looks(layout, _MANY_PAIRS)),
        alone={k: _span_alone(common, part, long, draws) for k, part in _parts(layout, long)},
        noise=tuple(noise),
        repeats=repeats,
        steady=steady,
        on_weights=_on_weights(chain, unit, seed, draws),
        fixed_length=fixed_length,
        halved=halved,
        halved_first=halved and _rounds_first(chain, long, seed),
        numbers=left_numbers(chain, (long, -long, unit), seed),
    )


def untouched_in_other_formats(chain: JobChain, seed: Seed) -> dict[str, list[str]]:
    """List the arrays that leave as training made them, by each format that is not the chain's.

    A chain that fails on a format lets nothing leave in it.
    """
    update = simulated(chain.layout, seed) * LENGTHS[LONG]
    found: dict[str, list[str]] = {}
    for exchange in chain.exchanges:
        if exchange != chain.exchange:
            try:
                looked = array_changes(chain.exchanging(exchange), update, seed, looks=2)
            except AuditError:
                continue
            found[exchange] = [change.key for change in looked if change.carries_on]
    return found


def left_numbers(chain: JobChain, updates: Sequence[Tensor], seed: Seed) -> LeftNumbers:
    """Find what leaves beside a result's arrays, and what it varies with under common noise.

    Args:
        chain: of a task.
        updates: results to compare, (elements,) each; none for a result without arrays.
        seed: of the chain's randomness.
    """

    def result(update: Tensor) -> Outgoing:
        arrays = chain.layout.payload(update.float(), chain.form).arrays
        return Outgoing(arrays, chain.form, chain.numbers)

    given = result(updates[0]) if updates else Outgoing({}, chain.form, chain.numbers)

    def left(given: Outgoing, *key: int | str) -> dict[str, Hashable]:
        with reproducible(sequence(seed, "numbers", *key), torch.device("cpu")):
            return _values(chain.leaves(given))

    def multiplied(names: Collection[str], factor: float) -> Outgoing:
        numbers = {k: v * factor if k in names else v for k, v in chain.numbers.items()}
        return replace(given, numbers=numbers)

    def varying(others: Iterable[Outgoing], *key: int | str) -> set[str]:
        seen = [first, *(left(other, *key) for other in others)]
        names = {name for values in seen for name in values}
        return {name for name in names if len({values.get(name) for values in seen}) > 1}

    first = left(given)
    noisy = varying([given]) | varying([given], 1)
    seen = {name for name in chain.declared if name not in chain.constants}
    follows = varying(map(result, updates[1:]))
    follows |= varying(multiplied(seen, factor) for factor in _FACTORS)
    assumed = varying(multiplied(chain.assumed, factor) for factor in _FACTORS)
    trained = {name: v for name, v in chain.numbers.items() if name not in chain.constants}
    own = _values(chain.bare(chain.layout.received, replace(given, numbers=trained)))
    sent = chain.leaves(replace(given, numbers=trained))
    texts = {k: plain_text(v) for k, v in {**sent.numbers, **sent.extras}.items()}
    varies = follows | noisy | assumed
    added = {k for k, v in _values(sent).items() if k not in varies and v != own.get(k)}
    names = dict.fromkeys([*first, *sorted(varies)])
    known = {k for k in added if chain.constants.get(k) == texts[k]}
    return LeftNumbers(
        clear=tuple(name for name in names if name in follows - noisy),
        noisy=tuple(name for name in names if name in noisy),
        assumed=tuple(name for name in names if name in assumed - follows - noisy),
        constant=tuple(f"{name}={texts[name]}" for name in names if name in added - known),
        declared=tuple(f"{name}={texts[name]}" for name in names if name in known),
    )


def _values(sent: Outgoing) -> dict[str, Hashable]:
    return {name: as_hashable(value) for name, value in {**sent.numbers, **sent.extras}.items()}


def as_hashable(value: Any) -> Hashable:
    """Convert a value of a message into one that is equal only where every number in it is."""
    value = as_array(value) if isinstance(value, Tensor) else value
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple((key, as_hashable(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(as_hashable, value))
    return repr(value)


def _looks(layout: Layout, most: int) -> int:
    """Choose how many releases of one update to draw: fewer for larger updates."""
    return max(2, min(most, _NUMBERS // max(1, layout.elements)))


def _draws(chain: JobChain, update: Tensor, seed: Seed) -> Tensor:
    """Draw releases of the same update, (count, elements)."""
    count = _looks(chain.layout, 8)
    with reproducible(seed, update.device):
        sent = [chain.layout.update(chain.sent(update.float())) for _ in range(count)]
    return torch.stack(sent).double()


def _noise(releases: Tensor) -> float:
    """Estimate the noise: the deviation's root mean square over noisy elements; 0 without any."""
    variance = releases.var(dim=0)
    noisy = variance > 0
    return float(variance[noisy].mean().sqrt()) if noisy.any() else 0.0


def _span(common: CommonNoise, update: Tensor, draws: int) -> Distance:
    return Distance.from_draws(draw_differences(common, update, -update, draws))


def _span_alone(common: CommonNoise, part: Tensor, long: Tensor, draws: int) -> Distance:
    """Measure the distance when one array alone changes, or the others change very little."""
    try:
        return _span(common, part, draws)
    except AuditError:
        return _span(common, torch.where(part == 0, long * _TINY, part), draws)


def _spans(common: CommonNoise, unit: Tensor, draws: int, last: int) -> tuple[Distance, ...]:
    """Measure distances for each of ``LENGTHS``, and for ``LONGER`` where they still grow."""
    counts = [*[draws] * (len(LENGTHS) - 1), last]
    spans = [_span(common, unit * x, count) for x, count in zip(LENGTHS, counts, strict=True)]
    for length in LONGER if spans[-1].exceeds(spans[-2], 1 + _SAME) else ():
        try:
            spans.append(_span(common, unit * length, draws))
        except AuditError:  # as of half precision, in which so long an update is infinite
            break
    return tuple(spans)


def _parts(layout: Layout, update: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Make an update in which one of the largest arrays alone has the whole norm."""
    largest = sorted(layout.real, key=lambda key: -layout.received[key].size)
    for key in largest[: 4 if layout.elements > _NUMBERS // 4 else 32]:
        part = torch.zeros_like(update)
        part[layout.places[key]] = update[layout.places[key]]
        if part.any():
            yield key, part.mul_(update.norm() / part.norm())


def _repeats(chain: JobChain, update: Tensor, releases: Tensor) -> bool:
    """Whether noise repeats: all rounds are equal, but not a function of the update alone.

    A chain without noise is odd: what leaves of u and of -u adds up to nothing.
    """
    if _noise(releases) > 0:
        return False
    back = chain.layout.update(chain.sent(-update.float())).double()
    return bool((releases[0] + back).norm() > 1e-3 * releases[0].norm())


def _on_weights(chain: JobChain, unit: Tensor, seed: Seed, draws: int) -> bool:
    """Whether other received weights, far from these, change the release of the same update."""
    layout, seed, far = chain.layout, sequence(seed, "weights"), LENGTHS[-1]
    elsewhere = layout.payload(simulated(layout, seed) * far, "weights").arrays
    chains = [CommonNoise(each, seed) for each in (chain, chain.receiving(Layout(elsewhere)))]
    update = unit * LENGTHS[1]
    pairs = [[each(update, update[None][:0]) for each in chains] for _ in range(draws)]
    moved = Distance.from_draws(torch.stack([here - there for here, there in pairs]))
    return moved.exceeds(Distance((_FOLLOWS * far) ** 2))


def _fixed_length(releases: Tensor) -> bool:
    lengths = releases.norm(dim=1)
    spread = float(lengths.std()) if len(lengths) > 1 else 0.0
    elements = (releases.var(dim=0) > 0).sum()
    return bool(elements > 0 and float(lengths.mean()) > 0 and spread < _ALIKE * lengths.mean())


def _halved(layout: Layout, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether every array of single precision leaves on the grid of half precision."""
    keys = [k for k in layout.real if k in arrays and layout.received[k].dtype.itemsize >= 4]
    with np.errstate(over="ignore"):
        return bool(keys) and all(
            np.array_equal(arrays[k], np.asarray(arrays[k]).astype(np.float16)) for k in keys
        )


def _rounds_first(chain: JobChain, update: Tensor, seed: Seed) -> bool:
    """Whether the chain rounds to half precision first: smaller changes never leave.

    Where the noise is rounded with the update, such a change of an update that leaves with norm C
    shows in about C√n/8σ of its n elements behind noise of deviation σ, so several draws are tried.
    """
    update = update.half().to(update)
    change = torch.full_like(update, _TINY)
    change[::2] *= -1  # a common factor is what a clip takes back
    pair = torch.stack([update, update * (1 + change)])
    for draw in range(max(1, min(_DRAWS, _FEW_NUMBERS // len(update)))):
        here, there = CommonNoise(chain, sequence(seed, "rounding", draw))(pair, update[None][:0])
        if not torch.equal(here, there):
            return False
    return True


def idle(chain: JobChain, alone: Carry, seed: Seed) -> bool:
    """Whether one filter or mod alone leaves a long update unchanged."""
    payload = chain.layout.payload(simulated(chain.layout, seed).float() * LENGTHS[-1], chain.form)
    given = Outgoing(payload.arrays, chain.form, chain.numbers, chain.exchange)
    copies = replace(given, arrays={key: np.array(a) for key, a in given.arrays.items()})
    try:
        left = alone(chain.layout.received, copies)
    except Exception:  # whatever the user's code raises
        return False
    same = (left.form, left.numbers, left.arrays.keys())
    return same == (given.form, given.numbers, given.arrays.keys()) and all(
        np.array_equal(left.arrays[key], array) for key, array in given.arrays.items()
    )
