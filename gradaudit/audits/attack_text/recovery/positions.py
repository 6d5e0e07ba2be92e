"""Guesses of the token at each position, from the tables of tokens and of positions.

Both tables are looked up for the same sum, so that the gradient of a token's row is Σ δ over the
positions at which it stands, and that of a position's row is Σ δ over the tokens that stand there.
A token that stands once is a term of its own of one position's row: least squares of these rows on
those of the tokens shows where.
"""

import torch
from torch import Tensor

from gradaudit.audits.attack_text.recovery.candidates import TokenCandidates
from gradaudit.audits.attack_text.view import TextView

_ROUNDING = 1e-7


def likely_first(view: TextView, candidates: TokenCandidates) -> TokenCandidates:
    """The candidates with costs that rank them at each position; as they were without the tables.

    Args:
        view: whose tables of tokens and positions are shared, and the token table is not the head.
        candidates: whose costs only tell what may stand where.
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
    return TokenCandidates(candidates.tokens, costs, candidates.certain)
