"""What the adversary knows of a batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_subject import table

from gradaudit.audits.attack_inference.adversary import Knowledge
from gradaudit.errors import NotApplicable, UsageError


def test_columns_are_averaged_over_the_batch() -> None:
    records = table()
    known = Knowledge.of(records, ["race", "age"], "sex")
    batches = np.array([[0, 3, 5], [7, 7, 8]])
    inputs = records.inputs.double().numpy()[:, [4, 5, 6, 0]]
    np.testing.assert_allclose(known.of_batches(batches), inputs[batches].mean(axis=1))
    assert known.names == ("race", "age")


def test_the_label_is_known_by_its_classes() -> None:
    records = table()
    known = Knowledge.of(records, ["label"]).of_batches(np.arange(60).reshape(20, 3))
    ones = records.labels.numpy().reshape(20, 3).mean(axis=1)
    np.testing.assert_allclose(known, np.stack([1 - ones, ones], axis=1))


def test_nothing_known_is_no_columns() -> None:
    known = Knowledge.of(table(), [])
    assert not known
    assert known.of_batches(np.zeros((4, 2), dtype=np.int64)).shape == (4, 0)


def test_an_unknown_column_is_told_with_its_neighbours() -> None:
    with pytest.raises(UsageError, match=r"no column 'rase'.*race.*there are: age, sex"):
        Knowledge.of(table(), ["rase"])


def test_the_secret_itself_cannot_be_known() -> None:
    with pytest.raises(UsageError, match="guessed"):
        Knowledge.of(table(), ["age", "sex"], "sex")


def test_pictures_have_no_columns() -> None:
    pictures = replace(table(), features=(), inputs=torch.zeros(60, 1, 2, 2))
    with pytest.raises(NotApplicable, match="no columns"):
        Knowledge.of(pictures, ["age"])
    assert Knowledge.of(pictures, ["label"])
