"""The subject as a size of an audit looks at it: its precision, records and layers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from gradaudit.audits.sizes import Size
from gradaudit.models.target import Layer
from gradaudit.subject import Subject

Subjects = Mapping[bool, Subject]
"""The subject in single precision (True), and in its own."""


def sampled(subjects: Subjects, size: Size) -> Subject:
    """The subject as an audit of this size looks at it."""
    subject = subjects[size.single]
    layers = sample_of(subject.layers, size.layers or len(subject.layers))
    return replace(subject, samples=subject.samples or size.samples, layers=layers)


def looks_at_all(size: Size, layers: Sequence[Layer]) -> bool:
    """Whether an audit of this size looks at all layers."""
    return size.layers is None or size.layers >= len(layers)


def sample_of(layers: Sequence[Layer], count: int) -> tuple[Layer, ...]:
    """So many of the layers, in the model's order.

    The first, the last and the widest, then the middle one of each kind in a block, which are those
    whose names differ in numbers alone, the most frequent first, and then some at equal distances.
    """
    if count >= len(layers):
        return tuple(layers)
    places = range(len(layers))
    widest = max(places, key=lambda place: layers[place].parameters)
    blocks: dict[tuple[str, str], list[int]] = {}
    for place, layer in enumerate(layers):
        blocks.setdefault((layer.kind, re.sub(r"\d+", "#", layer.name)), []).append(place)
    frequent = sorted(blocks.values(), key=len, reverse=True)
    chosen = dict.fromkeys((0, len(layers) - 1, widest))
    chosen |= dict.fromkeys(b[len(b) // 2] for b in frequent if not chosen.keys() & {*b})
    spread = (round(n * (len(layers) - 1) / (count - 1)) for n in range(count))
    wanted = dict.fromkeys(chain(chosen, spread, places))
    return tuple(layers[place] for place in sorted([*wanted][:count]))
