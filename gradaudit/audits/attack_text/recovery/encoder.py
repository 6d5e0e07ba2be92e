"""Texts of a model in which every token sees all others, found by exchanging tokens.

No part of such a text can be tested alone (Petrov et al. 2024, DAGER, section 4.3). But what
attention adds up, and so what of it lies outside the span there, is nearly a sum of what each token
brings: from some text it is measured what every exchange of a single token changes, and for all
exchanges together the energy outside is then a quadratic form in which tokens are chosen, whose
least values are sought from many starting points without running the model again. The best text
is where the next exchanges are measured from, at last behind the block, where no mixture of texts
fits, nor one with its tokens in another order. Texts are sought from the shortest on; what one
holds is left out for the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.attack_text.linear_maps import MapsOfOneInput, Structure
from gradaudit.audits.attack_text.recovery.candidates import TokenCandidates, limit_of
from gradaudit.audits.attack_text.recovery.decoder import DecodedText
from gradaudit.audits.attack_text.view import TextView
from gradaudit.progress import Advance

ROUNDS = 3
_STEPS = 4
"""Texts from which exchanges are measured, one after the other; first without what others hold."""
_FALLING = 0.5
"""The energy over the lowest so far, from which on a text is as near as it will come."""
_STARTS = 512
"""Starting points of each quadratic form."""
_SWEEPS = 12
_BEST = 32
"""Texts that are tried of those that a quadratic form gives."""
_CHUNK = 256
_NULL = 16


@dataclass
class TextSearch:
    """The search for the texts of one update.

    Attributes:
        view: the attacker's.
        structure: with two maps at least that see the context.
        candidates: what may stand where, likely ones first.
        generator: of starting points.
        held: the texts that were found to fit.
    """

    view: TextView
    structure: Structure
    candidates: TokenCandidates
    generator: torch.Generator
    held: set[tuple[int, ...]] = field(default_factory=set)

    def texts(self, advance: Advance) -> list[DecodedText]:
        """Search one text of each length, the best first; a fitting text scores about zero."""
        best: dict[int, DecodedText] = {}
        limit, lengths = self._limit(), self.view.lengths
        order = sorted(range(len(lengths)), key=lambda number: lengths[number])
        for _ in range(ROUNDS):
            for number in order:
                if number in best and best[number].score < limit:
                    continue
                text = self._one(lengths[number], limit)
                if number not in best or text.score < best[number].score:
                    best[number] = text
                if text.score < limit:
                    self.held.add(text.tokens)
            advance(1)
        return sorted(best.values(), key=lambda text: text.score)

    def _limit(self) -> float:
        choices = [self.candidates.at(position) for position in range(self.view.length)]
        # Random texts (count, positions) of the choices at each position.
        drawn = [torch.randint(len(c), (_NULL,), generator=self.generator) for c in choices]
        wrong = torch.stack([c[d] for c, d in zip(choices, drawn, strict=True)], dim=1)
        misfits = self.structure.deciding[-1].misfit(wrong.to(self.view.model.device))
        return float(torch.tensor(limit_of(misfits.flatten().cpu())).log())

    def _one(self, length: int, limit: float) -> DecodedText:
        left = [self._left(position) for position in range(length)]
        every = [self.candidates.at(position) for position in range(length)]
        text = torch.stack([tokens[0] for tokens in left])
        near, exact = self.structure.mixed[0], self.structure.deciding[-1]
        best, lowest = DecodedText((), torch.inf), torch.inf
        for choices in (*[left] * _STEPS, *[every] * _STEPS):
            tried = self._tried(near, text, choices)
            # The text of least energy at attention's output is gone on with.
            place, device = self.structure.mixed[0], self.view.model.device
            energies = place.energy(tried.to(device)).mean(dim=1).cpu()
            text, energy = tried[int(energies.argmin())], float(energies.min())
            if energy > _FALLING * lowest:
                tried = torch.cat([tried, self._tried(exact, text, every)])
            lowest = min(lowest, energy)
            best = min(best, self._best(tried), key=lambda text: text.score)
            if best.score < limit:
                break
        return best

    def _tried(self, place: MapsOfOneInput, text: Tensor, choices: Sequence[Tensor]) -> Tensor:
        """Find texts of least energy, but those found before, by exchanging single tokens."""
        exchanges = Exchanges.from_text(place, text, choices, self.view)
        texts = exchanges.least(self.generator)
        other = [tuple(text) not in self.held for text in texts.tolist()]
        return texts[torch.tensor(other)] if any(other) else texts

    def _best(self, texts: Tensor) -> DecodedText:
        """Choose the text that fits best behind the block, of those not found before."""
        # Logarithmic misfits behind the block, (texts, positions).
        place, device = self.structure.deciding[-1], self.view.model.device
        parts = [place.misfit(block.to(device)).cpu() for block in torch.split(texts, _CHUNK)]
        scores = torch.cat(parts).clamp(min=1e-30).log().mean(dim=1)
        for row, text in enumerate(texts.tolist()):
            if tuple(text) in self.held:
                scores[row] = torch.inf
        return DecodedText(tuple(texts[int(scores.argmin())].tolist()), float(scores.min()))

    def _left(self, position: int) -> Tensor:
        """List the candidates that no found text contains, or all where none is left."""
        every = self.candidates.at(position)
        held = {text[position] for text in self.held if len(text) > position}
        left = [token not in held for token in every.tolist()]
        return every[torch.tensor(left)] if any(left) else every


@dataclass(frozen=True)
class Exchanges:
    """The energy outside a span as a quadratic form in the tokens that are exchanged.

    Attributes:
        choices: the tokens that may stand at each position.
        starts: where the choices of each position begin in the form.
        form: (1 + choices, 1 + choices) inner products of what the text itself, and then each
            single exchange, brings outside.
    """

    choices: Sequence[Tensor]
    starts: Sequence[int]
    form: Tensor

    @classmethod
    def from_text(
        cls, place: MapsOfOneInput, text: Tensor, choices: Sequence[Tensor], view: TextView
    ) -> Self:
        """Measure the form from a text (positions,), by running each exchange of one token once."""
        assert place.span is not None
        counts = [len(tokens) for tokens in choices]
        texts = torch.cat([text[None], *_exchanged(text, choices)]).to(view.model.device)
        outside = torch.cat([place.outside(block) for block in torch.split(texts, _CHUNK)])
        outside = outside.flatten(1)
        outside[1:] -= outside[:1].clone()
        starts = [1 + sum(counts[:position]) for position in range(len(counts))]
        return cls(choices, starts, (outside @ outside.T).cpu())

    def least(self, generator: torch.Generator) -> Tensor:
        """Find different texts (texts, positions) of least energy, the best first."""
        counts = [len(tokens) for tokens in self.choices]
        state = torch.stack(
            [torch.randint(count, (_STARTS,), generator=generator) for count in counts], dim=1
        )
        state[0] = 0
        offsets = torch.tensor(self.starts)
        sums = self.form[0] + self.form[state + offsets].sum(dim=1)
        for _ in range(_SWEEPS):
            before = state.clone()
            for position in torch.randperm(len(counts), generator=generator).tolist():
                self._best_at(position, state, sums)
            if torch.equal(before, state):
                break
        energies = sums[:, 0] + sums.gather(1, state + offsets).sum(dim=1)
        order = energies.argsort()
        _, first = torch.unique(state[order], dim=0, return_inverse=True)
        seen: dict[int, int] = {}
        for rank, number in enumerate(first.tolist()):
            seen.setdefault(number, rank)
        rows = state[order][sorted(seen.values())[:_BEST]]
        return torch.stack(
            [tokens[rows[:, position]] for position, tokens in enumerate(self.choices)], dim=1
        )

    def _best_at(self, position: int, state: Tensor, sums: Tensor) -> None:
        """Exchange the token of each start at a position for the best, and the sums with it.

        ``sums`` (starts, 1 + choices) are of the form's columns over what each start has chosen.
        """
        first, count = self.starts[position], len(self.choices[position])
        here = slice(first, first + count)
        now = first + state[:, position]
        others = sums[:, here] - self.form[now, here]
        best = (2 * others + self.form[here, here].diagonal()).argmin(dim=1)
        sums += self.form[first + best] - self.form[now]
        state[:, position] = best


def _exchanged(text: Tensor, choices: Sequence[Tensor]) -> Iterator[Tensor]:
    for position, tokens in enumerate(choices):
        texts = text.repeat(len(tokens), 1)
        texts[:, position] = tokens
        yield texts
