"""Texts that were not in the batch, alike in length and in how frequent their tokens are."""

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.attack_text.presence import Texts

_POOL = 8
"""Texts of the length that decoys are chosen from, over how many are wanted."""


def decoys_of(batch: Texts, pool: Texts, count: int, generator: np.random.Generator) -> Texts:
    """A number of decoys for each text, (texts · count, …), those of one text together.

    A decoy is another text at least as long, cut to the length; of several drawn at random those
    are taken whose tokens are as frequent, by the mean logarithm, as the text's, and that begin no
    text of the batch. A last token that ends most texts of the pool ends the decoys too.

    Args:
        batch: the texts.
        pool: other texts of the same kind, one at least.
        count: decoys for each text.
        generator: draws them.
    """
    frequencies = _log_frequencies(pool, 1 + int(max(pool.ids.max(), batch.ids.max())))
    last = _common_end(pool)
    rows: list[Tensor] = []
    for ids, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
        drawn = _drawn(pool, length, count * _POOL, generator)
        if last is not None and int(ids[length - 1]) == last:
            drawn[:, length - 1] = last
        far = (frequencies[drawn[:, :length]].mean(1) - frequencies[ids[:length]].mean()).abs()
        far[(drawn[:, None, :length] == batch.ids[:, :length]).all(dim=2).any(dim=1)] = torch.inf
        rows.append(drawn[far.argsort(stable=True)[:count]])
    return Texts(torch.cat(rows), batch.lengths.repeat_interleave(count))


def _drawn(pool: Texts, length: int, count: int, generator: np.random.Generator) -> Tensor:
    """So many texts of this length, none twice but where there are too few.

    Where none is as long, others go on with tokens that are drawn from all.
    """
    long = (pool.lengths >= length).nonzero()[:, 0].numpy()
    if not len(long):
        long = pool.lengths.argsort(descending=True)[:count].numpy()
    chosen = torch.from_numpy(generator.choice(long, count, replace=count > len(long)))
    tokens = pool.ids[_filled(pool)]
    more = tokens[torch.from_numpy(generator.integers(len(tokens), size=(count, length)))]
    ids = pool.ids[chosen].clone()
    ids[:, :length] = torch.where(_filled(pool)[chosen, :length], ids[:, :length], more)
    ids[:, length:] = 0
    return ids


def _common_end(pool: Texts) -> int | None:
    """The token that ends more than half of the texts."""
    ends = pool.ids[torch.arange(len(pool)), pool.lengths - 1]
    last = int(ends.mode().values)
    return last if 2 * int((ends == last).sum()) > len(ends) else None


def _filled(pool: Texts) -> Tensor:
    return torch.arange(pool.ids.shape[1]) < pool.lengths[:, None]


def _log_frequencies(pool: Texts, vocabulary: int) -> Tensor:
    """Logarithms of how often each token occurs, and once more, (vocabulary,)."""
    counts = torch.bincount(pool.ids[_filled(pool)], minlength=vocabulary)
    return (counts + 1).double().log()
