"""From an update to the texts behind it: what may stand where, whole texts, their last tokens."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from gradaudit.audits.attack_text.recovery.candidates import TokenCandidates, candidates
from gradaudit.audits.attack_text.recovery.decoder import search_prefixes
from gradaudit.audits.attack_text.recovery.encoder import ROUNDS, TextSearch
from gradaudit.audits.attack_text.recovery.last import last_tokens
from gradaudit.audits.attack_text.recovery.positions import likely_first
from gradaudit.audits.attack_text.recovery.prefixes import Continuations
from gradaudit.audits.attack_text.structure import Structure
from gradaudit.audits.attack_text.view import TextView
from gradaudit.progress import Progress
from gradaudit.randomness import torch_rng

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
    """The texts behind an update, by the span of what came in at its maps.

    Args:
        view: what the attacker has.
        structure: of the model.
        seed: of starting points and of what chance is told by.
        progress: told of every position.
    """
    tokens = candidates(view, structure)
    if tokens is None:
        return Answer(facts={"search": "none: no span and no table of tokens is shared"})
    facts: dict[str, JsonValue] = {"candidates": len(tokens.tokens), "certain": tokens.certain}
    search = _search_for(structure, tokens)
    with progress.task("attack text", view.length if search is _grown else ROUNDS) as advance:
        texts, method = search(view, structure, tokens, seed, advance)
    if view.task == "next-token" and view.head in view.update and texts:
        texts = _completed(view, texts)
    facts |= {"search": method, "texts": len(texts)}
    return Answer(tuple(texts), _bag(view, texts, tokens), facts)


Searching = Callable[
    [TextView, Structure, TokenCandidates, int, Callable[[int], None]], tuple[list[Text], str]
]


def _search_for(structure: Structure, found: TokenCandidates) -> Searching:
    if structure.mixed and structure.causal:
        return _grown
    if len(structure.mixed) > 1 and found.certain:
        return _exchanged
    return _by_position


def _grown(
    view: TextView,
    structure: Structure,
    found: TokenCandidates,
    seed: int,
    advance: Callable[[int], None],
) -> tuple[list[Text], str]:
    continuations = Continuations.at(view, structure.deciding)
    texts = search_prefixes(continuations, found, seed=seed, advance=advance)
    return [grown.tokens for grown in texts[: view.sequences]], "prefixes grown token by token"


def _exchanged(
    view: TextView,
    structure: Structure,
    found: TokenCandidates,
    seed: int,
    advance: Callable[[int], None],
) -> tuple[list[Text], str]:
    ranked, generator = likely_first(view, found), torch_rng(seed, "text", "search")
    search = TextSearch(view, structure, ranked, generator)
    return [grown.tokens for grown in search.texts(advance)], "whole texts by exchanging tokens"


def _by_position(
    view: TextView,
    structure: Structure,
    found: TokenCandidates,
    seed: int,
    advance: Callable[[int], None],
) -> tuple[list[Text], str]:
    """The best tokens at each position, which nothing joins to texts."""
    longest = sorted(view.inner, reverse=True)
    texts: list[list[int]] = [[] for _ in longest]
    start = 0
    for position in range(view.length):
        alive = [text for text, length in zip(texts, longest, strict=True) if length > position]
        tokens = found.at(position)[start : start + len(alive)].tolist()
        start += 0 if structure.positional else len(alive)  # the same tokens everywhere, in turns
        for text, token in zip(alive, tokens, strict=False):
            text.append(token)
    return [tuple(text) for text in texts if text], "single positions: nothing joins them to texts"


def _completed(view: TextView, texts: Sequence[Text]) -> list[Text]:
    """With the token behind each, which only the head was asked for."""
    pairs = zip(texts, last_tokens(view, texts), strict=True)
    return [text if token is None else (*text, token) for text, token in pairs]


def _bag(view: TextView, texts: Sequence[Text], found: TokenCandidates) -> Text:
    """What is certain to be there once, then what the texts hold beyond it, while there is room.

    More tokens than there are positions cannot all be there, and stand behind those of the texts.
    """
    named = Counter(token for text in texts for token in text)
    known = Counter(found.tokens.tolist() if found.certain else [])
    one, other = (known, named) if known.total() <= view.tokens else (named, known)
    return tuple([*one.elements(), *(other - one).elements()][: view.tokens])
