"""Memory is written again once nothing holds it, and not before."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from gradaudit.gradients import per_sample
from gradaudit.gradients.per_sample import Buffers

LIKE = torch.zeros(0)


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_sample, "_WORTH", 0)


def place(tensor: Tensor) -> int:
    return tensor.data_ptr()


def test_what_is_let_go_is_written_again() -> None:
    held = Buffers()
    first = place(held.empty((4, 25), LIKE))
    assert [place(held.empty(shape, LIKE)) for shape in ((4, 25), (10, 10), (51,))] == [first] * 3


@pytest.mark.parametrize(
    "kept",
    [lambda x: x, lambda x: x[3:], lambda x: x.view(-1), lambda x: x.numpy(), lambda x: {"x": x}],
)
def test_what_is_held_is_left_alone(kept) -> None:
    held = Buffers()
    tensor = held.empty((100,), LIKE)
    before, keeping = place(tensor), kept(tensor)
    del tensor
    assert place(held.empty((100,), LIKE)) != before
    del keeping
    assert place(held.empty((100,), LIKE)) == before


@pytest.mark.parametrize("shape", [(101,), (49,)], ids=["larger", "less than half"])
def test_memory_of_another_size_is_not_taken(shape) -> None:
    held = Buffers()
    before = place(held.empty((100,), LIKE))
    assert place(held.empty(shape, LIKE)) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_shape_and_type(dtype) -> None:
    held = Buffers()
    held.empty((4, 5), LIKE)
    tensor = held.empty((4, 5), torch.zeros(0, dtype=dtype))
    assert tensor.shape == (4, 5)
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()


def test_small_tensors_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_sample, "_WORTH", 1 << 20)
    held = Buffers()
    held.empty((1000,), LIKE)
    assert not held._arrays


def test_what_is_given_back_stays_with_who_holds_it() -> None:
    held = Buffers()
    tensor = held.empty((100,), LIKE).fill_(7)
    held.clear()
    others = [held.empty((100,), LIKE).fill_(0) for _ in range(3)]
    assert place(tensor) not in map(place, others)
    assert (tensor == 7).all()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_begins_with_none(copied) -> None:
    held = Buffers()
    tensor = held.empty((100,), LIKE)
    before = place(tensor)
    del tensor
    assert place(copied(held).empty((100,), LIKE)) != before
