"""Recovers the texts behind an update: candidate tokens, whole texts, last tokens.

The last token of each text, which no map but the head has anything of.

A next-token loss asks for a text's last token and never looks at what follows it, so no gradient of
a map within the model holds it. The head's rows do: for positions t with predictions p_t and what
came in h_t, row v is Σ_t p_tv h_t − Σ_{y_t = v} h_t, where all but the last y_t of each text are
known once the texts before are. What is left is a sum of the last h of each text, in the row of the
token that was asked for, once for every text that ends so. Where the table of tokens is the head,
rows hold what was looked up too, so that those go first that hold a whole number.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.candidates import (
    TokenCandidates,
    candidates,
    likely_first,
)
from gradaudit.audits.attack_text.recovery.decoder import Continuations, search_prefixes
from gradaudit.audits.attack_text.recovery.encoder import ROUNDS, TextSearch
from gradaudit.audits.attack_text.view import TextView
from gradaudit.core.randomness import torch_rng
from gradaudit.progress import Progress

_SHOWN = 0.5
"""Share of a text's last h that a row must hold."""
_EXACT = 0.02
"""Distance from a whole number of them up to which nothing else is in the row."""


def last_tokens(view: TextView, texts: Sequence[Sequence[int]]) -> list[int | None]:
    """Recover the label after each text's end; None where no row contains the last state.

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
    """Compute Σ_t p_t h_tᵀ, the part of the gradient that predictions make, (tokens, width)."""
    assert view.head is not None
    weight = view.model.parameters[view.head]
    bias = view.model.parameters.get(view.head.removesuffix("weight") + "bias")
    logits = hidden @ (weight.T if view.linear[view.head] == 1 else weight)
    logits = logits if bias is None else logits + bias
    return logits.softmax(dim=1).T @ hidden


def _scale(explained: Tensor, observed: Tensor) -> float:
    """Estimate how many positions the update averages, from rows of tokens that do not occur."""
    lengths = observed.norm(dim=1)
    quiet = lengths <= lengths.median()
    one, other = explained[quiet], observed[quiet]
    return float((one * other).sum() / other.square().sum())


def padded(
    texts: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pad texts to ids (texts, positions) and lengths (texts,)."""
    lengths = torch.tensor([len(text) for text in texts], device=device)
    ids = torch.full((len(texts), int(lengths.max())), padding, device=device)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text, device=device)
    return ids, lengths


Text = tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """An attacker's recovered tokens and texts for one update.

    Attributes:
        texts: at most as many as made the update.
        tokens: at most as many as there are, each as often as it is named.
        facts: how it was found.
    """

    texts: tuple[Text, ...] = ()
    tokens: Text = ()
    facts: dict[str, JsonValue] = field(default_factory=dict)


def recover(view: TextView, structure: Structure, seed: int, progress: Progress) -> Answer:
    """Recover the texts behind an update by the spans of its linear maps' inputs.

    Where no span behind attention is whole, as there are too many tokens, what came in has still
    most of its energy in the strongest directions; among tokens that were read off rows that and
    the model's own predictions rank texts. How an answer was found is among its facts.

    Args:
        view: what the attacker has.
        structure: of the model.
        seed: of starting points and of the texts that measure chance.
        progress: shows every position that is done.
    """
    structure = structure if structure.mixed else structure.strongest
    found = candidates(view, structure)
    if found is None:
        return Answer(facts={"search": "none: no span and no table of tokens is shared"})
    facts: dict[str, JsonValue] = {"candidates": len(found.tokens), "certain": found.certain}
    facts["read"] = len(found.read)
    whole = any(place.whole for place in structure.mixed)
    growing = bool(structure.mixed) and structure.causal and (whole or bool(found.read))
    with progress.task("attack text", view.length if growing else ROUNDS) as advance:
        if growing:
            continuations = Continuations.at(view, structure.deciding)
            decoded = search_prefixes(continuations, found, seed=seed, advance=advance)
            texts = [text.tokens for text in decoded[: view.sequences]]
            facts["search"] = "prefixes grown token by token"
        elif len(structure.mixed) > 1 and found.certain:
            generator = torch_rng(seed, "text", "search")
            search = TextSearch(view, structure, likely_first(view, found), generator)
            texts = [text.tokens for text in search.texts(advance)]
            facts["search"] = "whole texts by exchanging tokens"
        else:
            texts = _by_position(view, structure, found)
            facts["search"] = "single positions: nothing joins them to texts"
    if texts and structure.mixed and not whole:
        facts["spans"] = "none is whole: the strongest directions of each stand in for one"
    if view.task == "next-token" and view.head in view.update and texts:
        # Append the token behind each text, which only the head was asked for.
        pairs = zip(texts, last_tokens(view, texts), strict=True)
        texts = [text if token is None else (*text, token) for text, token in pairs]
    facts["texts"] = len(texts)
    return Answer(tuple(texts), _bag(view, texts, found), facts)


def _by_position(view: TextView, structure: Structure, found: TokenCandidates) -> list[Text]:
    """List the best tokens at each position where nothing connects positions to texts."""
    longest = sorted(view.inner, reverse=True)
    texts: list[list[int]] = [[] for _ in longest]
    start = 0
    for position in range(view.length):
        alive = [text for text, length in zip(texts, longest, strict=True) if length > position]
        tokens = found.at(position)[start : start + len(alive)].tolist()
        start += 0 if structure.positional else len(alive)  # the same tokens everywhere, in turns
        for text, token in zip(alive, tokens, strict=False):
            text.append(token)
    return [tuple(text) for text in texts if text]


def _bag(view: TextView, texts: Sequence[Text], found: TokenCandidates) -> Text:
    """Count tokens: each certain token once, then further ones of the texts while room is left.

    More tokens than there are positions cannot all be there, and stand behind those of the texts.
    """
    named = Counter(token for text in texts for token in text)
    known = Counter(found.read or (found.tokens.tolist() if found.certain else ()))
    one, other = (known, named) if known.total() <= view.tokens else (named, known)
    return tuple([*one.elements(), *(other - one).elements()][: view.tokens])
