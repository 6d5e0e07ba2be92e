"""The watched peak of small computations whose memory is known."""

import torch

from gradaudit.gradients.memory import peak_bytes

KILO = 4 * 250  # bytes of 250 floats


def test_what_is_freed_on_the_way_is_not_counted_twice():
    assert peak_bytes(lambda: torch.ones(250).add(1).mul(2).sub(3)) == 2 * KILO


def test_what_is_held_is_counted():
    def hold():
        first = torch.ones(250)
        second = first + 1
        return first, second, second + 1

    assert peak_bytes(hold) == 3 * KILO


def test_what_was_there_before_and_its_views_are_not_counted():
    before = torch.ones(10_000)
    assert peak_bytes(lambda: before[:250].view(25, 10)) == 0
    assert peak_bytes(lambda: before[:250] + 1) == KILO
    assert peak_bytes(lambda: before.mul_(2)) == 0


def test_what_a_backward_pass_saves_is_counted():
    weight = torch.ones(250, requires_grad=True)

    def backward():
        return torch.autograd.grad(weight.exp().exp().sum(), weight)

    assert peak_bytes(backward) >= 3 * KILO


def test_batches_under_vmap_are_counted():
    def batch(records: int) -> int:
        double = torch.func.vmap(torch.func.grad(lambda x: (x.exp() * 2).sum()))
        return peak_bytes(lambda: double(torch.ones(records, 250)))

    assert batch(8) - batch(4) == 4 * (batch(5) - batch(4)) >= 4 * 2 * KILO
