"""Candidate tokens at each position, from maps that see each token by itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.audits.attack_text.recovery.threshold import SEPARATE, limit_of
from gradaudit.audits.attack_text.recovery.vocabulary import labels_asked, tokens_read
from gradaudit.audits.attack_text.structure import Structure
from gradaudit.audits.attack_text.view import TextView

_CHUNK = 512
"""Tokens whose vectors are held at a time."""
_RANKED = 64
"""Tokens that are kept at each position where noise may hide one of what came in."""
_NULL = 512
"""Tokens drawn at random, whose misfits are what chance makes."""


@dataclass(frozen=True)
class TokenCandidates:
    """The tokens that may stand at each position.

    Attributes:
        tokens: (tokens,) ascending, that may stand anywhere.
        costs: (tokens, positions) how little each fits there; infinite where it does not.
        certain: whether noise leaves none of what came in beyond the limit.
    """

    tokens: Tensor
    costs: Tensor
    certain: bool = True

    def at(self, position: int) -> Tensor:
        """The tokens that may stand at a position, likely ones first."""
        costs = self.costs[:, position]
        order = costs.argsort(stable=True)
        return self.tokens[order[: int(costs.isfinite().sum())]]


def candidates(view: TextView, structure: Structure) -> TokenCandidates | None:
    """Candidates from the token table's rows and the first span; None where neither has any.

    Without both, the tokens that the head was asked for, which are those of texts.
    """
    read = tokens_read(view)
    read = None if read is None or not len(read) else read  # a defense may leave rows all alike
    if read is None and structure.first is None and view.task == "next-token":
        read = labels_asked(view)
    tokens = torch.arange(view.vocabulary) if read is None else read.cpu()
    if structure.first is None:
        if read is None:
            return None
        return TokenCandidates(tokens, torch.zeros(len(tokens), view.length))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(view.vocabulary, generator=generator)[:_NULL]
    null, costs = _costs(view, structure, drawn), _costs(view, structure, tokens)
    limit = limit_of(null.flatten())
    certain = structure.first.clear and limit > SEPARATE
    separate = structure.first.whole and limit > SEPARATE
    allowed = costs < limit if separate else torch.zeros_like(costs, dtype=torch.bool)
    best = costs.argsort(dim=0)[: 1 if certain else _RANKED]
    allowed.scatter_(0, best, value=True)
    costs = torch.where(allowed, costs, torch.inf)
    some = allowed.any(dim=1)
    return TokenCandidates(tokens[some], costs[some].expand(-1, view.length), certain)


def _costs(view: TextView, structure: Structure, tokens: Tensor) -> Tensor:
    """(tokens, positions) costs at the first span; one position where all are alike."""
    assert structure.first is not None
    positions = view.length if structure.positional else 1
    texts = tokens.to(view.model.device)[:, None].expand(-1, positions)
    return torch.cat([structure.first.cost(block) for block in torch.split(texts, _CHUNK)]).cpu()
