"""Measures a chain's clipping and noise by running it on simulated updates.

With common random numbers two releases share their noise, which cancels in their difference: two
calls give the exact distance of a pair of updates. No training is run; updates are random.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise, reproducible
from gradaudit.audits.dp_audit.middleware.array_changes import LOOKS, ArrayChange, array_changes
from gradaudit.audits.dp_audit.middleware.payload import LENGTHS, LONG, Layout, Outgoing, simulated
from gradaudit.audits.job.loading.chains import Carry, JobChain
from gradaudit.core.randomness import Seed, sequence
from gradaudit.errors import AuditError

LONGER = (1e5, 1e6)
"""Further lengths, tried where the distance still grows at the last of ``LENGTHS``."""
_ALIKE = 1e-6
"""Relative spread of norms that rounding makes; noise on d numbers spreads them by √(1/2d)."""
_SAME = 0.02
"""Relative distance below which two norms count as equal: rounding of float32 weights."""
_NUMBERS = 4_000_000
"""Numbers of all releases of one update, which are held in memory at once."""
_TINY = 2.0**-13
"""Relative change of a number of float16 that float16 rounds away and float32 keeps."""
_DRAWS, _FEW_NUMBERS = 64, 1 << 18
"""Draws of the noise behind which such a change is looked for, and the numbers of all together."""


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
        numbers: of the result, those that leave as they are.
    """

    array_changes: tuple[ArrayChange, ...]
    spans: tuple[float, ...]
    alone: Mapping[str, float]
    noise: tuple[float, ...]
    repeats: bool
    steady: bool
    on_weights: bool
    fixed_length: bool
    halved: bool
    halved_first: bool
    numbers: tuple[str, ...]

    @cached_property
    def clipped(self) -> bool:
        """Whether the chain clips: longer updates leave at no larger distance."""
        return self.spans[-1] <= self.spans[-2] * (1 + _SAME)

    @property
    def sensitivity(self) -> float:
        """The largest distance at which two updates leave; infinite without clipping."""
        return max(self.spans) if self.clipped else np.inf

    @property
    def by_parts(self) -> bool:
        """Whether arrays are clipped one by one, and not the update as a whole."""
        parts = [span for span in self.alone.values() if span > 0]
        return self.clipped and len(parts) > 1 and max(self.spans) > max(parts) * (1 + 5 * _SAME)

    @property
    def own_clip(self) -> bool:
        """Whether the update is scaled by a factor that follows from the update itself."""
        factors = [s / (2 * length) for s, length in zip(self.spans, LENGTHS, strict=False)]
        steady = max(factors) - min(factors) <= _SAME * max(factors)
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
    noise = []
    for i, length in enumerate(LENGTHS):
        drawn = _draws(chain, unit * length, sequence(seed, i))
        noise.append(_noise(drawn))
        if i == LONG:
            repeats, fixed_length = _repeats(chain, long, drawn), _fixed_length(drawn)
        del drawn
    halved = _halved(layout, chain.sent(long.float()).arrays)
    given = Outgoing(layout.payload(long.float(), chain.form).arrays, chain.form, chain.numbers)
    numbers = left_numbers(chain, given)
    del given
    return Probe(
        array_changes=looked,
        spans=_spans(common, unit),
        alone={key: _span_alone(common, part, long) for key, part in _parts(layout, long)},
        noise=tuple(noise),
        repeats=repeats,
        steady=common.repeats(long[None]),
        on_weights=_on_weights(chain, unit, seed),
        fixed_length=fixed_length,
        halved=halved,
        halved_first=halved and _rounds_first(chain, long, seed),
        numbers=numbers,
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


def left_numbers(chain: JobChain, given: Outgoing) -> tuple[str, ...]:
    """Find the numbers beside a result, without constants, that leave whatever their value is."""
    others = replace(given, numbers={key: 7 * value for key, value in given.numbers.items()})
    first, second = (chain.leaves(each).numbers for each in (given, others))
    return tuple(
        key
        for key in given.numbers
        if key not in chain.constants
        and key in first
        and first[key] == given.numbers[key]
        and second[key] == others.numbers[key]
    )


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


def _span(common: CommonNoise, update: Tensor) -> float:
    there, back = common(torch.stack([update, -update]), update[None][:0])
    return float((there - back).norm())


def _span_alone(common: CommonNoise, part: Tensor, long: Tensor) -> float:
    """Measure the distance when one array alone changes, or the others change very little."""
    try:
        return _span(common, part)
    except AuditError:
        return _span(common, torch.where(part == 0, long * _TINY, part))


def _spans(common: CommonNoise, unit: Tensor) -> tuple[float, ...]:
    """Measure distances for each of ``LENGTHS``, and for ``LONGER`` where they still grow."""
    spans = [_span(common, unit * length) for length in LENGTHS]
    for length in LONGER if spans[-1] > spans[-2] * (1 + _SAME) else ():
        try:
            spans.append(_span(common, unit * length))
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


def _on_weights(chain: JobChain, unit: Tensor, seed: Seed) -> bool:
    """Whether the received weights change the release of the same update."""
    layout = chain.layout
    larger = Layout({k: a * 3 if k in layout.real else a for k, a in layout.received.items()})
    update = unit * LENGTHS[1]
    common = sequence(seed, "weights")
    here, there = (
        CommonNoise(other, common)(update, update[None][:0])
        for other in (chain, chain.receiving(larger))
    )
    return bool((here - there).norm() > 0.05 * max(float(here.norm()), 1e-12))


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
