"""Which inputs the taps read, against the convolution itself."""

import pytest
import torch
from ranks.reference import HAND_MADE, Case, plain
from torch import nn

from gradaudit.ranks.observe import Geometry, geometry_of


def patches(geometry: Geometry, inputs: torch.Tensor) -> torch.Tensor:
    """im2col by the table of reads: (channels, size) to (positions, taps, channels)."""
    padded = torch.cat([inputs.T, torch.zeros(1, len(inputs), dtype=inputs.dtype)])
    return padded[geometry.sources]


@pytest.mark.parametrize("case", HAND_MADE, ids=str)
def test_reads_reproduce_the_convolution(case: Case) -> None:
    layer, geometry = case.layer, geometry_of(case.layer, case.shape)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(layer.in_channels, *case.shape, generator=generator, dtype=torch.float64)
    outputs = []
    for group, filters in zip(
        inputs.flatten(1).chunk(layer.groups), layer.weight.chunk(layer.groups), strict=True
    ):
        columns = patches(geometry, group)
        outputs.append(torch.einsum("ltc,oct->ol", columns, filters.flatten(2)))
    with torch.no_grad():
        unbiased = {"bias": torch.zeros_like(layer.bias)}
        expected = torch.func.functional_call(layer, unbiased, (inputs[None],))
        torch.testing.assert_close(torch.cat(outputs), expected[0].flatten(1))


def test_scale_is_the_norm_of_im2col() -> None:
    case = plain("overlapping", nn.Conv2d(1, 1, 3, stride=2, padding=1), 6, 5)
    geometry = geometry_of(case.layer, case.shape)
    matrix = patches(geometry, torch.eye(30, dtype=torch.float64)).flatten(0, 1)
    assert geometry.scale == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)))


def test_untouched_inputs_and_dead_taps_are_counted_out() -> None:
    geometry = geometry_of(nn.Conv2d(2, 1, 2, stride=3, padding=1), (4, 4))
    assert geometry.positions == 4
    assert geometry.touched == 2 * 9
    assert geometry_of(nn.Conv1d(1, 1, 3, padding=2), (1,)).live.tolist() == [True, True, True]
    assert geometry_of(nn.Conv1d(1, 1, 2, stride=9, padding=1), (3,)).live.tolist() == [False, True]


def test_patterns_merge_taps_that_read_the_same_input() -> None:
    geometry = geometry_of(nn.Conv1d(1, 1, 3, padding=2, padding_mode="replicate"), (4,))
    kinds, pattern = geometry.patterns
    merged = [kinds[kind].tolist() for kind in pattern]
    assert merged == [[0, 0, 0], [0, 0, 2], [0, 1, 2], [0, 1, 2], [0, 1, 1], [0, 0, 0]]


def test_patterns_drop_taps_that_read_padding() -> None:
    geometry = geometry_of(nn.Conv1d(1, 1, 3, padding=1), (3,))
    kinds, pattern = geometry.patterns
    assert [kinds[kind].tolist() for kind in pattern] == [[3, 1, 2], [0, 1, 2], [0, 1, 3]]


def test_dilation_leaves_unconnected_parts() -> None:
    inputs, positions = geometry_of(nn.Conv1d(1, 1, 3, dilation=2), (9,)).parts
    assert inputs.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert positions.tolist() == [0, 1, 0, 1, 0]
