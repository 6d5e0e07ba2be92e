"""The elements of a layer's gradient as a matrix of one row an output."""

import numpy as np
import pytest
import torch
from cases import Conv1D
from torch import nn

from gradaudit.audits.subspace.means import MatrixForm
from gradaudit.errors import NotApplicable
from gradaudit.models.target import layers_of


def form_of(model: nn.Module, name: str = "0") -> tuple[MatrixForm, np.ndarray]:
    """The form of a layer, and its parameters as the elements of a gradient lie."""
    (layer,) = [layer for layer in layers_of(model) if layer.name == name]
    parameters = dict(model.named_parameters())
    elements = torch.cat([parameters[each].detach().flatten() for each in layer.parameter_names])
    return MatrixForm.of(layer, model), elements.numpy()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 3), (3, 4)),
        (nn.Conv2d(2, 5, 3), (5, 18)),
        (nn.Conv1d(4, 6, 2, groups=2), (6, 4)),
        (nn.BatchNorm1d(3), (3, 1)),
    ],
)
def test_outputs_come_first(layer: nn.Module, shape: tuple[int, int]) -> None:
    form, elements = form_of(nn.Sequential(layer))
    assert (form.rows, form.columns) == shape
    weight = layer.weight.detach().numpy()  # type: ignore[operator, union-attr]
    np.testing.assert_array_equal(form.matrix(elements), weight.reshape(shape))
    np.testing.assert_array_equal(form.matrix(np.stack([elements] * 2))[1], weight.reshape(shape))


def test_transposed_convolutions_have_outputs_second() -> None:
    layer = nn.ConvTranspose2d(3, 4, (2, 1))
    form, elements = form_of(nn.Sequential(layer))
    assert (form.rows, form.columns) == (4, 6)
    expected = layer.weight.detach().transpose(0, 1).reshape(4, 6)
    np.testing.assert_array_equal(form.matrix(elements), expected)


def test_linear_layers_of_transformers_have_outputs_second() -> None:
    form, elements = form_of(nn.Sequential(layer := Conv1D(2, 3)))
    np.testing.assert_array_equal(form.matrix(elements), layer.weight.detach().T)


def test_weights_of_a_recurrent_cell_lie_side_by_side() -> None:
    layer = nn.LSTM(2, 3)
    form, elements = form_of(nn.Sequential(layer))
    assert (form.rows, form.columns) == (12, 5)
    expected = torch.cat([layer.weight_ih_l0, layer.weight_hh_l0], dim=1).detach()
    np.testing.assert_array_equal(form.matrix(elements), expected)


class Mixed(nn.Module):
    """Parameters of its own with different numbers of rows, and one that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))
        self.mixing = nn.Parameter(torch.rand(2, 2))


def test_parameters_that_make_no_matrix() -> None:
    with pytest.raises(NotApplicable, match="make no matrix; use --reading samples"):
        form_of(nn.Sequential(Mixed()))
