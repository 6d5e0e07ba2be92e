import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.replay import Recorder, recorded, shortened

MATRIX = torch.arange(12.0).reshape(3, 4)


def names(module: torch.fx.GraphModule) -> list[str]:
    called = [node for node in module.graph.nodes if node.op == "call_function"]
    return [node.target.__name__.split(".")[0] for node in called]


def looking(points: Tensor) -> tuple[Tensor, Tensor]:
    """Three views of what is computed, which lie alike two by two, and a copy of it."""
    squares = points * points
    seen = squares.reshape(2, 2, 3).transpose(1, 2)[:, 1:]
    again = squares.unsqueeze(0)[0].view(2, 2, 3).mT[:, 1:]
    return (seen.flatten(1) * again.flatten(1)).sum(dim=1), squares.clone() + squares.detach()


def constant(points: Tensor) -> tuple[Tensor, Tensor]:
    return points @ (MATRIX.mT @ MATRIX).sum(dim=0), 2 * points


def changing(points: Tensor) -> tuple[Tensor, Tensor]:
    twice = 2 * points
    seen = twice.view(-1)
    seen[1] = 7
    return twice.sum(dim=1), twice


def shorter(evaluate: object, points: Tensor) -> torch.fx.GraphModule:
    recorder = Recorder(points)
    with recorder:
        results = evaluate(points)  # type: ignore[operator]
    return shortened(recorder.graph(results), recorder.constants)


def test_views_and_copies_are_views_of_what_was_computed() -> None:
    points = torch.randn(2, 6)
    module = shorter(looking, points)
    assert names(module).count("as_strided") == 1 + names(module).count("clone")
    assert not {"view", "transpose", "slice", "unsqueeze", "select", "detach"} & set(names(module))
    for found, wanted in zip(module(-2 * points), looking(-2 * points), strict=True):
        assert torch.equal(found, wanted)


def test_what_is_constant_is_computed_once() -> None:
    module = shorter(constant, torch.randn(2, 4))
    assert names(module) == ["mv", "mul"]


def test_operations_are_called_by_torchs_own_functions() -> None:
    module = shorter(constant, torch.randn(2, 4))
    called = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert called == [torch.mv, torch.mul]


def test_what_changes_its_tensors_is_left_as_it_is() -> None:
    module = shorter(changing, torch.randn(2, 3))
    assert "view" in names(module)
    points = torch.randn(2, 3)
    for found, wanted in zip(module(points), changing(points), strict=True):
        assert torch.equal(found, wanted)


def test_points_may_lie_anywhere() -> None:
    """Also where the recorded ones did not: some columns of some rows, one in reverse."""
    recording = recorded(looking, torch.randn(2, 6))
    assert recording is not None
    room = torch.randn(5, 20)
    for points in (
        room[1:3, 4:10],
        room[::3, ::3][:, :6],
        room[3:, 2:14:2],
        room.mT[3:5, :1] + room[:1, :6],
    ):
        for found, wanted in zip(recording(points), looking(points), strict=True):
            assert torch.equal(found, wanted)


def test_negative_views_are_other_numbers() -> None:
    def imaginary(points: Tensor) -> tuple[Tensor, Tensor]:
        parts = torch.complex(points, points).conj().imag
        return parts.sum(dim=1), 2 * parts

    module, points = shorter(imaginary, torch.randn(2, 3)), torch.randn(2, 3)
    for found, wanted in zip(module(points), imaginary(points), strict=True):
        torch.testing.assert_close(found, wanted)
