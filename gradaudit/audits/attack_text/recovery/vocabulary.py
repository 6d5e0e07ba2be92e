"""Tokens of a batch from table rows: those that were looked up, and those that were labels.

The gradient of an embedding is nothing but at the rows that were looked up. Where the same table is
the head (tied), each row v also holds Σ_t (p_tv − [y_t = v]) h_t, which lies in the span of the T
hidden states h_t; a token that was looked up adds δ, which does not. So the rows of tokens that
were looked up are those with energy outside the span of most rows.
"""

import torch
from torch import Tensor

from gradaudit.audits.attack_text.recovery.threshold import above
from gradaudit.audits.attack_text.span import Span
from gradaudit.audits.attack_text.view import TextView

_TINY = 1e-30
_NOISY = 1e-2
"""The energy of most rows outside their own span, from which on noise may hide what was read."""
_ROUNDED = 1e-8
"""The energy outside that rounding leaves at most of long rows that are in it (measured: 4e-11)."""
_SAMPLE = 4
"""Rows that the span of the head is taken from, over its width."""


def tokens_read(view: TextView) -> Tensor | None:
    """The tokens that were looked up, ascending; None where the table is not shared, or noisy."""
    if view.table is None or view.table not in view.update:
        return None
    rows = view.update[view.table]
    if view.table == view.head:
        return _outside_the_head(rows, view.tokens)
    moved = rows.any(dim=1)
    return None if bool(moved.all()) else moved.nonzero()[:, 0]


def row_strengths(view: TextView) -> Tensor | None:
    """How much each token's row moved by being looked up, logarithms (tokens,); None if unknown."""
    if view.table is None or view.table not in view.update:
        return None
    rows = view.update[view.table]
    strengths = rows.square().sum(dim=1)
    if view.table == view.head:
        head = _head(rows, view.tokens)
        if head is None:
            return None
        strengths = strengths * head[0].energy(rows)
    return strengths.double().clamp(min=_TINY).log().cpu()


def _outside_the_head(rows: Tensor, tokens: int) -> Tensor | None:
    head = _head(rows, tokens)
    if head is None:
        return None
    span, others = head
    null, energies = span.energy(others), span.energy(rows)
    if null.median() >= _NOISY:
        return None
    return above(torch.where(energies > _ROUNDED, energies, 0), null, len(rows))


def _head(rows: Tensor, tokens: int) -> tuple[Span, Tensor] | None:
    """The span of most rows, from some that moved little, and others of these."""
    quiet = rows.norm(dim=1).argsort()[: len(rows) // 2]
    order = torch.randperm(len(quiet), generator=torch.Generator().manual_seed(0))
    count = min(_SAMPLE * rows.shape[1], len(quiet) // 2)
    span = Span.of([rows[quiet[order[:count]]]], tokens)
    return None if span is None else (span, rows[quiet[order[count:]]])


def labels_asked(view: TextView) -> Tensor | None:
    """The tokens that were labels at the head, ascending; None where the head shows none.

    A row v of the head has the gradient Σ_t p_tv h_t − Σ_{y_t = v} h_t over the positions, so the
    rows of labels point against the others (Zhao et al. 2020, iDLG, section 3.1).
    """
    if view.head is None or view.head not in view.update:
        return None
    rows = view.gradient(view.head)
    _, _, axes = torch.svd_lowrank(rows, q=min(6, *rows.shape))
    along = rows @ axes[:, 0]
    along = along * -along.median().sign()
    null = along[along < 0].abs()
    return above(along, null, len(rows)) if len(null) else None
