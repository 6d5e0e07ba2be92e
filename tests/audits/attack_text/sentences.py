"""Small transformers of plain torch, and texts of random words, as subjects of attacks on text."""

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.audits.attack_text.text_threat import TextThreat
from gradaudit.audits.attack_text.view import TextView
from gradaudit.data.records import IGNORED, Records
from gradaudit.defenses.base import Defense
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject

WORDS, LENGTH, WIDTH = 120, 7, 96


class Block(nn.Module):
    """Attention of two heads and a network, behind norms."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(texts, positions, width) to the same."""
        heads = self.qkv(self.before(x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = heads[0] @ heads[1].mT / heads.shape[-1] ** 0.5
        if self.causal:
            later = scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        x = x + self.out((scores.softmax(-1) @ heads[2]).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class Transformer(nn.Module):
    """Two blocks; a causal one scores the next word, the other a class of the whole text."""

    def __init__(self, *, causal: bool, tied: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(2 * LENGTH, width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.1)  # about as language models begin
        self.blocks = nn.Sequential(*(Block(width, causal=causal) for _ in range(2)))
        self.head = nn.Linear(width, WORDS if causal else 2, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        """(texts, positions) to scores (texts, [positions,] outputs)."""
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.blocks(x)
        return cast("Tensor", self.head(x if self.causal else x.mean(dim=1)))


def transformer(*, causal: bool = True, tied: bool = False, width: int = WIDTH) -> nn.Module:
    """A model with the same weights every time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        return Transformer(causal=causal, tied=tied, width=width).eval()


def texts(count: int, *, causal: bool = True, seed: int = 0) -> Records:
    """Random words, frequent ones more often; next words, or classes, as labels."""
    draws = torch.Generator().manual_seed(seed)
    frequent = 1 / torch.arange(1, WORDS + 1).double()
    ids = torch.multinomial(frequent, count * LENGTH, replacement=True, generator=draws)
    return labelled(ids.reshape(count, LENGTH), causal=causal)


def labelled(ids: Tensor, *, causal: bool) -> Records:
    """These texts (texts, positions) with their next words, or classes, as labels."""
    if not causal:
        return Records(ids, torch.arange(len(ids)) % 2, ("no", "yes"))
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = IGNORED
    return Records(ids, labels, tuple(map(str, range(WORDS))))


def subject(
    *,
    causal: bool = True,
    tied: bool = False,
    records: int = 24,
    width: int = WIDTH,
    seed: int = 0,
) -> Subject:
    """A model with some texts."""
    target = Target(transformer(causal=causal, tied=tied, width=width), CrossEntropy())
    return Subject((target,), texts(records, causal=causal, seed=seed), target.layers)


class LowRank(nn.Module):
    """A frozen linear map with an adapter of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lower = nn.Linear(base.in_features, rank, bias=False)
        self.upper = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """As the map, and the adapter's share."""
        return cast("Tensor", self.base(x) + self.upper(self.lower(x)))


def adapted(rank: int) -> nn.Module:
    """A transformer of which adapters at the attention alone are trained."""
    model = transformer().requires_grad_(False)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(4)
        for block in cast("nn.Sequential", model.blocks):
            block.qkv = LowRank(block.qkv, rank)
    return model.eval()


def low_rank_view(
    count: int, *, rank: int | None, seed: int = 0
) -> tuple[TextView, list[tuple[int, ...]]]:
    """What an attacker has of adapters alone; of the whole model without a rank."""
    if rank is None:
        return view(count, seed=seed)
    target = Target(adapted(rank), CrossEntropy())
    batch = texts(count, seed=seed)
    threat = TextThreat(target, SharingProtocol(), target.layers)
    made = threat.view(batch, torch.Generator().manual_seed(seed))
    return made, [tuple(row) for row in batch.inputs.tolist()]


def view(
    count: int,
    *,
    causal: bool = True,
    tied: bool = False,
    hide: tuple[str, ...] = (),
    defenses: tuple[Defense, ...] = (),
    lengths: tuple[int, ...] | None = None,
    shared: int = 0,
    records: int = 24,
    width: int = WIDTH,
    seed: int = 0,
    **training: Any,
) -> tuple[TextView, list[tuple[int, ...]]]:
    """What an attacker has of the first texts, cut to these lengths, and the texts.

    All begin with the same so many shared words.
    """
    whole = subject(causal=causal, tied=tied, records=records, width=width, seed=seed)
    target = whole.target
    layers = tuple(layer for layer in target.layers if layer.name not in hide)
    ids = whole.records.inputs[:count].clone()
    ids[:, :shared] = ids[:1, :shared]
    batch = labelled(ids, causal=causal)
    ends = lengths or (LENGTH,) * count
    for row, end in zip(batch.labels, ends, strict=True):
        if causal:
            row[end - 1 :] = IGNORED
    sharing = SharingProtocol(defenses=defenses, hidden=hide, **training)
    made = TextThreat(target, sharing, layers).view(batch, torch.Generator().manual_seed(seed))
    rows = zip(ids.tolist(), ends, strict=True)
    return replace(made, lengths=ends), [tuple(row[:end]) for row, end in rows]
