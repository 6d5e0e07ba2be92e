"""Texts of a model in which every token sees all others, found by exchanging tokens.

No part of such a text can be tested alone (Petrov et al. 2024, DAGER, section 4.3). What attention
adds up is nearly linear in the tokens that it sees, so that the energy outside its span falls with
every token that is right: a text is first brought near by exchanging one token after the other for
the one of least energy there, and then made exact behind the block, where no mixture of texts fits.
Texts are sought from the shortest on, from several starting points side by side; what one text
holds is left out for the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradaudit.attacks.text.candidates import Candidates
from gradaudit.attacks.text.decoder import Grown
from gradaudit.attacks.text.structure import Place, Structure
from gradaudit.attacks.text.threshold import limit_of
from gradaudit.attacks.text.view import TextView
from gradaudit.progress import Advance

STARTS = 8
ROUNDS = 3
_SWEEPS = 4
_LIKELY = 3
"""Candidates that half of the starting points are drawn from."""
_CHUNK = 256
_NULL = 16


@dataclass
class Search:
    """The search for the texts of one update.

    Attributes:
        view: the attacker's.
        structure: with two maps at least that see the context.
        candidates: what may stand where, likely ones first.
        lengths: of the texts.
        generator: of starting points and of the order of positions.
    """

    view: TextView
    structure: Structure
    candidates: Candidates
    lengths: Sequence[int]
    generator: torch.Generator
    used: set[tuple[int, int]] = field(default_factory=set)

    def texts(self, advance: Advance) -> list[Grown]:
        """One text of each length, best first; the score of a text that fits is about zero."""
        found: dict[int, Grown] = {}
        limit = self._limit()
        order = sorted(range(len(self.lengths)), key=lambda number: self.lengths[number])
        for _ in range(ROUNDS):
            for number in order:
                if number in found and found[number].score < limit:
                    continue
                grown = self._one(self.lengths[number])
                if number not in found or grown.score < found[number].score:
                    found[number] = grown
                if grown.score < limit:
                    self.used |= set(enumerate(grown.tokens))
            advance(1)
        return sorted(found.values(), key=lambda grown: grown.score)

    def _limit(self) -> float:
        """The mean logarithm of misfits, below which a text fits."""
        wrong = torch.stack([self._drawn(self.view.length, 1 << 30) for _ in range(_NULL)])
        misfits = self.structure.mixed[-1].misfit(wrong.to(self.view.model.device))
        return float(torch.tensor(limit_of(misfits.flatten().cpu())).log())

    def _drawn(self, length: int, likely: int) -> Tensor:
        tokens = [self._choices(position)[:likely] for position in range(length)]
        return torch.stack([t[torch.randint(len(t), (), generator=self.generator)] for t in tokens])

    def _choices(self, position: int) -> Tensor:
        """The candidates that no text holds yet, or all where none is left."""
        every = self.candidates.at(position)
        left = [(position, token) not in self.used for token in every.tolist()]
        return every[torch.tensor(left)] if any(left) else every

    def _one(self, length: int) -> Grown:
        likely = [_LIKELY if number % 2 else 1 << 30 for number in range(STARTS)]
        texts = torch.stack([self._drawn(length, most) for most in likely])
        near, exact = self.structure.mixed[0], self.structure.mixed[-1]
        for place in (near, exact):
            for _sweep in range(_SWEEPS):
                before = texts.clone()
                texts = self._swept(texts, place)
                if torch.equal(before, texts):
                    break
        misfits = exact.misfit(texts.to(self.view.model.device)).clamp(min=1e-30).log().mean(dim=1)
        best = int(misfits.argmin())
        return Grown(tuple(texts[best].tolist()), float(misfits[best]))

    def _swept(self, texts: Tensor, place: Place) -> Tensor:
        """Each token of each text exchanged for the best at its position, in random order."""
        texts = texts.clone()
        for position in torch.randperm(texts.shape[1], generator=self.generator).tolist():
            choices = self._choices(position)
            if len(choices) < 2:
                continue
            tried = texts.repeat_interleave(len(choices), dim=0)
            tried[:, position] = choices.repeat(len(texts))
            blocks = torch.split(tried.to(self.view.model.device), _CHUNK)
            energies = torch.cat([place.energy(block).mean(dim=1).cpu() for block in blocks])
            texts[:, position] = choices[energies.reshape(len(texts), -1).argmin(dim=1)]
        return texts
