"""Decoys are texts of the same length and frequency that are not in the batch."""

import numpy as np
import torch

from gradaudit.audits.attack_text.presence import Texts, decoys_of

WORDS, LENGTH, COUNT = 200, 12, 16


def texts(count: int, seed: int, *, lengths: tuple[int, int] = (4, LENGTH)) -> Texts:
    """Of words as frequent as in language, each text more or less rare ones."""
    draws = np.random.default_rng(seed)
    ids = np.zeros((count, LENGTH), dtype=np.int64)
    ends = draws.integers(lengths[0], lengths[1] + 1, count)
    for row, end in zip(ids, ends, strict=True):
        weights = np.arange(1, WORDS + 1.0) ** -draws.uniform(0.2, 1.6)
        row[:end] = draws.choice(WORDS, end, p=weights / weights.sum())
    return Texts(torch.from_numpy(ids), torch.from_numpy(ends))


def frequency(pool: Texts, of: Texts) -> torch.Tensor:
    """The mean logarithm of how often each text's tokens occur in the pool."""
    tokens = [pool.ids[k, :n] for k, n in enumerate(pool.lengths)]
    counts = torch.bincount(torch.cat(tokens), minlength=WORDS) + 1
    pairs = zip(of.ids, of.lengths, strict=True)
    return torch.stack([counts[ids[:n]].double().log().mean() for ids, n in pairs])


def test_decoys_are_as_long_and_their_tokens_as_frequent() -> None:
    batch, pool = texts(6, 0), texts(600, 1)
    decoys = decoys_of(batch, pool, COUNT, np.random.default_rng(2))
    assert decoys.lengths.tolist() == batch.lengths.repeat_interleave(COUNT).tolist()
    for ids, length in zip(decoys.ids, decoys.lengths, strict=True):
        assert (pool.ids[:, :length] == ids[:length]).all(dim=1).any()  # it begins one of the pool
    beyond = torch.arange(LENGTH) >= decoys.lengths[:, None]
    assert not decoys.ids[beyond].any()
    own = frequency(pool, batch)[:, None]
    chosen = (frequency(pool, decoys).reshape(6, COUNT) - own).abs().mean(1)
    whichever = (frequency(pool, pool)[None] - own).abs().mean(1)
    assert (chosen < whichever / 2).all()


def test_no_decoy_is_the_beginning_of_another_that_the_batch_holds() -> None:
    """Most texts of the pool begin as one of the batch does."""
    batch, pool = texts(1, 0, lengths=(5, 5)), texts(100, 1, lengths=(8, LENGTH))
    pool.ids[:80, :5] = batch.ids[0, :5]
    decoys = decoys_of(batch, pool, 8, np.random.default_rng(2))
    assert not (decoys.ids[:, :5] == batch.ids[:, :5]).all(dim=1).any()


def test_a_last_token_that_ends_most_texts_ends_the_decoys() -> None:
    batch, pool = texts(4, 0), texts(100, 1)
    for some in (batch, pool):
        some.ids[torch.arange(len(some)), some.lengths - 1] = 199
    decoys = decoys_of(batch, pool, COUNT, np.random.default_rng(2))
    assert (decoys.ids[torch.arange(len(decoys)), decoys.lengths - 1] == 199).all()


def test_where_no_text_is_as_long_others_go_on_with_tokens_of_the_pool() -> None:
    batch, pool = texts(1, 0, lengths=(LENGTH, LENGTH)), texts(3, 1, lengths=(2, 4))
    batch.ids[0, 0] = WORDS + 7  # and a token that is in no other text
    decoys = decoys_of(batch, pool, 8, np.random.default_rng(2))
    known = {int(t) for ids, n in zip(pool.ids, pool.lengths, strict=True) for t in ids[:n]}
    assert decoys.lengths.tolist() == [LENGTH] * 8
    assert set(decoys.ids.flatten().tolist()) <= known
