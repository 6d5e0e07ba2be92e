"""Matching what leaves with what came, by name."""

import numpy as np
import pytest
import torch
from observer.training import model, state_of, trained

from gradaudit.errors import AuditError
from gradaudit.sharing.named import named_update


def test_the_change_points_where_the_gradient_does_whatever_leaves() -> None:
    before = state_of(model())
    after = trained(before)
    exact = {name: before[name] - after[name] for name in ("0.weight", "4.bias")}
    plain = {name: tensor.numpy() for name, tensor in after.items()}
    difference = {name: after[name] - tensor for name, tensor in before.items()}
    gradient = {name: -change for name, change in difference.items()}
    for left, kind in ((after, "weights"), (plain, "weights"), (difference, "difference")):
        update = named_update(before, left)
        assert update.kind == kind
        for name, change in exact.items():
            torch.testing.assert_close(update.change(name), change)
    given = named_update(None, gradient, kind="gradient")
    torch.testing.assert_close(given.change("0.weight"), exact["0.weight"])


def test_order_does_not_matter_and_buffers_and_numbers_stand_apart() -> None:
    before = state_of(model())
    before["scale"], before["own"] = torch.tensor(2.0), torch.ones(3)
    after = {name: before[name] + 1 for name in reversed(before)}
    kept = after.pop("0.bias")
    names = [name for name, _ in model().named_parameters()]
    update = named_update(before, after, kind="weights", parameters=[*names, "scale"])
    assert dict(update.apart) == {
        "3.running_mean": "buffer",
        "3.running_var": "buffer",
        "3.num_batches_tracked": "integer",
        "scale": "0-d",
        "own": "buffer",
    }
    assert update.hidden == ("0.bias",)
    assert kept.shape == (40,)
    assert set(update.layers()) == {"0", "2", "3", "4"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"extra": torch.ones(2)}, "extra did not come"),
        ({"0.bias": torch.ones(41)}, r"0.bias: \(41,\) leaves where \(40,\) came"),
    ],
)
def test_what_did_not_come_is_refused(fault: dict[str, torch.Tensor], words: str) -> None:
    before = state_of(model())
    with pytest.raises(AuditError, match=words):
        named_update(before, {**before, **fault})


def test_weights_that_are_half_of_what_came_are_neither() -> None:
    before = {"w": torch.ones(3, 3)}
    for half in (0.5 * before["w"], torch.zeros(3, 3)):
        came = before if half.any() else {"w": torch.zeros(3, 3)}
        with pytest.raises(AuditError, match="say kind='weights' or kind='difference'"):
            named_update(came, {"w": half})


def test_arrays_that_are_read_only_or_empty_of_floats() -> None:
    array = np.ones((2, 2), dtype=np.float32)
    array.flags.writeable = False
    assert named_update(None, {"w": array}, kind="gradient").change("w").sum() == 4
    with pytest.raises(AuditError, match="no array of floating point"):
        named_update(None, {"w": np.ones(2, dtype=np.int64)}, kind="gradient")


def test_what_is_no_array_and_no_kind_is_refused() -> None:
    before = state_of(model())
    with pytest.raises(AuditError, match="a list is no array"):
        named_update(before, {"0.bias": [0.0, 1.0]})  # type: ignore[dict-item]
    with pytest.raises(AuditError, match="'weigths' is none of weights, difference, gradient"):
        named_update(before, before, kind="weigths")  # type: ignore[arg-type]
