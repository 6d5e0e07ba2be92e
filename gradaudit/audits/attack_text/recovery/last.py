"""The last token of each text, which no map but the head has anything of.

A next-token loss asks for a text's last token and never looks at what follows it, so no gradient of
a map within the model holds it. The head's rows do: for positions t with predictions p_t and what
came in h_t, row v is Σ_t p_tv h_t − Σ_{y_t = v} h_t, where all but the last y_t of each text are
known once the texts before are. What is left is a sum of the last h of each text, in the row of the
token that was asked for, once for every text that ends so. Where the table of tokens is the head,
rows hold what was looked up too, so that those go first that hold a whole number.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradaudit.audits.attack_text.view import TextView

_SHOWN = 0.5
"""How much of a text's last h there must be in a row."""
_EXACT = 0.02
"""How near to a whole number of them it is where nothing else is in the row."""


def last_tokens(view: TextView, texts: Sequence[Sequence[int]]) -> list[int | None]:
    """The token behind each text; None where no row holds its last h.

    Args:
        view: whose head is shared.
        texts: all of the batch, without their last tokens.
    """
    assert view.head is not None
    ids, lengths = padded(texts, view.padding, view.model.device)
    hidden = view.seen([view.head], ids, lengths)[view.head]
    filled = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    inner = torch.arange(ids.shape[1], device=ids.device) < (lengths - 1)[:, None]
    explained = _predicted(view, hidden[filled])
    asked = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)[inner]
    observed = view.gradient(view.head)
    scale = _scale(explained, observed)
    rest = explained.index_add_(0, asked, hidden[inner], alpha=-1) - scale * observed
    ends = hidden[torch.arange(len(texts), device=ids.device), lengths - 1]
    shares = rest @ torch.linalg.pinv(ends)
    exact = (shares > _SHOWN) & ((shares - shares.round()).abs() < _EXACT)
    tokens = torch.where(exact, torch.inf, shares).argmax(dim=0)
    best = shares.gather(0, tokens[None])[0]
    pairs = zip(best.tolist(), tokens.tolist(), strict=True)
    return [token if share > _SHOWN else None for share, token in pairs]


def _predicted(view: TextView, hidden: Tensor) -> Tensor:
    """Σ_t p_t h_tᵀ, (tokens, width)."""
    assert view.head is not None
    weight = view.model.parameters[view.head]
    bias = view.model.parameters.get(view.head.removesuffix("weight") + "bias")
    logits = hidden @ (weight.T if view.linear[view.head] == 1 else weight)
    logits = logits if bias is None else logits + bias
    return logits.softmax(dim=1).T @ hidden


def _scale(explained: Tensor, observed: Tensor) -> float:
    """How many positions the update is the mean of, from the rows of tokens that play no part."""
    lengths = observed.norm(dim=1)
    quiet = lengths <= lengths.median()
    one, other = explained[quiet], observed[quiet]
    return float((one * other).sum() / other.square().sum())


def padded(
    texts: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Texts as ids (texts, positions) and lengths (texts,)."""
    lengths = torch.tensor([len(text) for text in texts], device=device)
    ids = torch.full((len(texts), int(lengths.max())), padding, device=device)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text, device=device)
    return ids, lengths
