"""How much memory the tangents of a model's gradients take, from the sizes at its sites.

These are estimates: a forward and backward pass with tangents is taken to hold ``_COPIES`` tensors
of the size of each that comes in or out at a site.
"""

import math

from gradaudit.gradients.trace import Trace

_ELEMENT = 8
_COPIES = 8


def pair_bytes(trace: Trace) -> int:
    """Bytes of one record's tangents in one direction, and of the largest weight's tangent."""
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in trace.sites)
    return _ELEMENT * (_COPIES * moving + 2 * _largest(trace) + 4 * _whole(trace))


def record_bytes(trace: Trace) -> int:
    """Bytes of one record's factors, and of its gradient by the largest weight."""
    factors = sum(
        use.groups * use.positions * (use.inputs + use.outputs)
        for uses in trace.uses.values()
        for _, use in uses
    )
    return _ELEMENT * 2 * (factors + _largest(trace) + _whole(trace))


def linear_bytes(trace: Trace, outputs: int) -> int:
    """Bytes of one record's gradients of every output, for piecewise linear networks."""
    deltas = sum(math.prod(site.shape) for site in trace.sites)
    uses = [use for (_, use), *_ in trace.uses.values()]
    gradients = sum(math.prod(use.block) for use in uses if use.positions > outputs)
    return _ELEMENT * outputs * (_COPIES * deltas + gradients)


def _largest(trace: Trace) -> int:
    """Elements of the largest gradient that is formed; one of a single position is not."""
    uses = [use for (_, use), *_ in trace.uses.values()]
    return max((math.prod(use.block) for use in uses if use.positions > 1), default=0)


def _whole(trace: Trace) -> int:
    return sum(trace.view.parameters[name].numel() for name in trace.whole)
