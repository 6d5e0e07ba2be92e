"""What the adversary knows of a batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_subject import table

from gradaudit.audits.attack_inference.adversary import Knowledge
from gradaudit.data.records import Records
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


PICTURES = replace(table(), features=(), inputs=torch.zeros(60, 1, 2, 2))


@pytest.mark.parametrize(
    ("records", "names", "error", "words"),
    [
        (table(), ["rase"], UsageError, r"no column 'rase'.*race.*there are: age, sex"),
        (table(), ["age", "sex"], UsageError, "guessed"),
        (PICTURES, ["age"], NotApplicable, "no columns"),
    ],
)
def test_what_cannot_be_known(
    records: Records, names: list[str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Knowledge.of(records, names, "sex")
    assert Knowledge.of(records, ["label"])
