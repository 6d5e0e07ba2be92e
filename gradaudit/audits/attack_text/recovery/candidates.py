"""Candidate tokens at each position, from maps that see each token by itself.

Tokens of a batch from table rows: those that were looked up, and those that were labels.

The gradient of an embedding is nothing but at the rows that were looked up. Where the same table is
the head (tied), each row v also holds Σ_t (p_tv − [y_t = v]) h_t, which lies in the span of the T
hidden states h_t; a token that was looked up adds δ, which does not. So the rows of tokens that
were looked up are those with energy outside the span of most rows.

Guesses of the token at each position, from the tables of tokens and of positions.

Both tables are looked up for the same sum, so that the gradient of a token's row is Σ δ over the
positions at which it stands, and that of a position's row is Σ δ over the tokens that stand there.
A token that stands once is a term of its own of one position's row: least squares of these rows on
those of the tokens shows where.
"""

import math
from dataclasses import dataclass, replace

import torch
from scipy.special import ndtri
from torch import Tensor

from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.span import Span
from gradaudit.audits.attack_text.view import TextView

_FALSE = 0.01
"""False tokens that all tests together may let through, on average."""
SEPARATE = 3.0
"""The misfit between what came in and chance, from which on the two are taken for apart."""
_QUANTILE = 0.1
"""Share of the null that its spread to one side is measured by; the rest may not be null."""
_LOWEST = 0.01
_TINY = 1e-30
_NOISY = 1e-2
"""The energy of most rows outside their own span, from which on noise may hide what was read."""
_ROUNDED = 1e-8
"""The energy outside that rounding leaves at most of long rows that are in it (measured: 4e-11)."""
_DECAYED = 0.1
"""Least movement of a row that was looked up, over what weight decay moves it (measured: 5,000)."""
_SAMPLE = 4
"""Rows that the span of the head is taken from, over its width."""
_CHUNK = 512
"""Tokens whose vectors are held at a time."""
_RANKED = 64
"""Tokens that are kept at each position where noise may hide one of what came in."""
_NULL = 512
"""Tokens drawn at random, whose misfits are what chance makes."""
_ROUNDING = 1e-7


def limit_of(null: Tensor) -> float:
    """Set the limit halfway, on a log scale, between misfits of inputs and of chance.

    Halfway to the lowest hundredth of the null, which is taken to lie as far below its median as
    the highest lies above it: what came in may be among the lower half.

    Args:
        null: misfits of what did not come in, but for less than half of them.
    """
    logs = null.double().clamp(min=_TINY).log()
    middle, high = torch.quantile(logs, logs.new_tensor([0.5, 1 - _LOWEST])).tolist()
    return math.exp((2 * middle - high) / 2)


def above(values: Tensor, null: Tensor, tests: int) -> Tensor:
    """Find values above the null distribution, with one false find in a hundred runs.

    The null's logarithms are taken for normal above their median, of the spread that their highest
    tenth shows.
    """
    logs = null.double().clamp(min=_TINY).log()
    ends = torch.quantile(logs, logs.new_tensor([0.5, 1 - _QUANTILE]))
    spread = float(ends[1] - ends[0]) / -float(ndtri(_QUANTILE))
    limit = float(ends[0]) - float(ndtri(_FALSE / max(tests, 1))) * spread
    return (values.double() > math.exp(limit)).nonzero()[:, 0]


def tokens_read(view: TextView) -> Tensor | None:
    """The tokens that were looked up, ascending; None where the table is not shared, or noisy."""
    if view.table is None or view.table not in view.update:
        return None
    rows = view.update[view.table]
    if view.table == view.head:
        return _outside_the_head(rows, view.tokens)
    weights = view.model.parameters[view.table]
    shares = (rows * weights).sum(dim=1) / weights.square().sum(dim=1).clamp(min=_TINY)
    decay = shares.median() * weights  # of AdamW, which moves every row
    moved = (rows - decay).norm(dim=1) > _DECAYED * decay.norm(dim=1)
    return None if bool(moved.all()) else moved.nonzero()[:, 0]


def row_strengths(view: TextView) -> Tensor | None:
    """Compute the log energy of each token row's gradient, (tokens,); None if unknown."""
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
    """Estimate the span of rows with little gradient from some; return it and the others."""
    quiet = rows.norm(dim=1).argsort()[: len(rows) // 2]
    order = torch.randperm(len(quiet), generator=torch.Generator().manual_seed(0))
    count = min(_SAMPLE * rows.shape[1], len(quiet) // 2)
    span = Span.of([rows[quiet[order[:count]]]], tokens)
    return None if span is None else (span, rows[quiet[order[count:]]])


def labels_asked(view: TextView) -> Tensor | None:
    """Find the tokens that were labels at the output layer, ascending; None without any.

    A row v of the head has the gradient Σ_t p_tv h_t − Σ_{y_t = v} h_t over the positions, so the
    rows of labels point against the others (Zhao et al. 2020, iDLG, section 3.1), and do so behind
    steps of Adam too. Where noise turns more rows than there are positions, the long ones count.
    """
    if view.head is None or view.head not in view.update:
        return None
    rows = view.gradient(view.head)
    along: Tensor = rows @ torch.linalg.eigh(rows.T @ rows)[1][:, -1]
    along = along * -along.median().sign()
    against = along > 0
    if int(against.sum()) <= view.tokens:
        return against.nonzero()[:, 0]
    null = along[~against].abs()
    return above(along, null, len(rows)) if len(null) else None


@dataclass(frozen=True)
class TokenCandidates:
    """The tokens that may stand at each position.

    Attributes:
        tokens: (tokens,) ascending, that may stand anywhere.
        costs: (tokens, positions) how little each fits there; infinite where it does not.
        certain: whether noise leaves none of what came in beyond the limit.
        read: those that were read off rows, so that each occurs.
    """

    tokens: Tensor
    costs: Tensor
    certain: bool = True
    read: tuple[int, ...] = ()

    def at(self, position: int) -> Tensor:
        """The tokens that may stand at a position, likely ones first."""
        costs = self.costs[:, position]
        order = costs.argsort(stable=True)
        return self.tokens[order[: int(costs.isfinite().sum())]]


def candidates(view: TextView, structure: Structure) -> TokenCandidates | None:
    """Candidates from rows of tables and the first span; None where neither has any.

    The rows are those of the table of tokens or, where neither they nor a span distinguish tokens,
    of the head, which was asked for all tokens of texts but the first.
    """
    read, asked = tokens_read(view), False
    if (
        (read is None or not len(read))
        and view.task == "next-token"
        and _tokens_look_alike(view, structure)
    ):
        read, asked = labels_asked(view), True
    if read is None or not len(read):  # a defense may leave rows all alike
        return None if structure.first is None else _fitting(view, structure)
    known = read.cpu()
    if not asked or not structure.mixed:
        return _fitting(view, structure, known)
    first = torch.arange(view.vocabulary)
    later = torch.zeros(view.vocabulary, dtype=torch.bool)
    later[known] = True
    return replace(_fitting(view, structure, first, later), read=tuple(known.tolist()))


def _fitting(
    view: TextView,
    structure: Structure,
    tokens: Tensor | None = None,
    later: Tensor | None = None,
) -> TokenCandidates:
    """Candidates among some tokens, which were read, or all: where each fits the first span.

    Where most of what was read fits nowhere, as behind dropout, all of it may stand anywhere.

    Args:
        view: the attacker's.
        structure: of the model.
        tokens: ascending.
        later: (tokens,) which of them may stand behind a text's first position; None is all.
    """
    every = torch.arange(view.vocabulary) if tokens is None else tokens
    read = () if tokens is None else tuple(tokens.tolist())
    costs = torch.zeros(len(every), view.length)
    if structure.first is not None:
        costs = _costs(view, structure, every).expand(-1, view.length).clone()
    if later is not None:
        costs[~later, 1:] = torch.inf
    if structure.first is None:
        return TokenCandidates(every, costs, read=read)
    limit = _limit(view, structure)
    certain = structure.first.clear and limit > SEPARATE
    allowed = costs < (limit if structure.first.whole and limit > SEPARATE else -torch.inf)
    if tokens is not None and 2 * int(allowed.any(dim=1).sum()) < len(tokens):
        certain = False
    best = costs.argsort(dim=0)[: 1 if certain else _RANKED]
    allowed.scatter_(0, best, value=True)
    costs = torch.where(allowed, costs, torch.inf)
    some = costs.isfinite().any(dim=1)
    return TokenCandidates(every[some], costs[some], certain, read)


def _limit(view: TextView, structure: Structure) -> float:
    """Compute the limit between the costs of tokens that came in and those of other tokens."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(view.vocabulary, generator=generator)[:_NULL]
    return limit_of(_costs(view, structure, drawn).flatten())


def _tokens_look_alike(view: TextView, structure: Structure) -> bool:
    """Whether no span of maps that see each token by itself distinguishes tokens."""
    first = structure.first
    return first is None or not first.whole or _limit(view, structure) <= SEPARATE


def _costs(view: TextView, structure: Structure, tokens: Tensor) -> Tensor:
    """(tokens, positions) costs at the first span; one position where all are alike."""
    assert structure.first is not None
    positions = view.length if structure.positional else 1
    texts = tokens.to(view.model.device)[:, None].expand(-1, positions)
    return torch.cat([structure.first.cost(block) for block in torch.split(texts, _CHUNK)]).cpu()


def likely_first(view: TextView, candidates: TokenCandidates) -> TokenCandidates:
    """Rank the candidates at each position by their costs; unchanged without the tables.

    Args:
        view: whose tables of tokens and positions are shared, and the token table is not the head.
        candidates: whose costs say no more than what may stand where.
    """
    tables = view.table, view.places
    if any(name is None or name not in view.update for name in tables) or view.table == view.head:
        return candidates
    rows, places = (view.update[str(name)] for name in tables)
    tokens = rows[candidates.tokens.to(rows.device)].double()
    if len(tokens) > tokens.shape[1]:
        return candidates
    start = view.first_place
    sums = places[start : start + view.length].double()
    shares: Tensor = (sums @ torch.linalg.pinv(tokens, rtol=_ROUNDING)).T.cpu()
    costs = torch.where(candidates.costs.isfinite(), -shares, torch.inf)
    return replace(candidates, costs=costs)
