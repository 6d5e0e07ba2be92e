"""That torch computes the same with its compiler unloaded, and has it back where it is used."""

import subprocess
import sys

import pytest
from command_line import HANGS

SAME = """
import sys
import torch
from torch import nn
from gradaudit.gradients.eager import EagerMode, jvp

HEAVY = {"torch._dynamo", "torch._inductor", "torch._decomp.decompositions_for_jvp"}

class Adding(EagerMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) + 0

def norm(x):
    return nn.functional.batch_norm(x, None, None, training=True).square().sum()

def results():
    torch.manual_seed(0)
    x, w = torch.randn(4, 3), torch.randn(3, 3)
    slope = torch.func.grad(lambda a: (a @ w + torch.ones(3)).tanh().pow(3).sum())
    with Adding():
        yield x * 2
    yield torch.func.vmap(slope)(x)
    yield torch.func.vmap(lambda direction: jvp(slope, (x[0],), (direction,))[1])(torch.eye(3))
    yield torch.func.jacrev(slope)(x[0])
    yield torch.func.vjp(slope, x[0])[1](x[1])[0]

def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

alone = list(results())
assert not HEAVY & set(sys.modules), HEAVY & set(sys.modules)

moved = jvp(torch.func.grad(norm), (alone[0],), (alone[1],))[1]

import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"]
assert same(alone, results())
assert torch.equal(moved, torch.func.jvp(torch.func.grad(norm), (alone[0],), (alone[1],))[1])
compiled = torch.compile(lambda a: a.sin() + 1, backend="eager")
assert torch.equal(compiled(alone[0]), alone[0].sin() + 1)
assert same(alone, results())
"""


@pytest.mark.slow
def test_the_compiler_changes_no_number_whether_it_is_loaded_or_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAME], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert done.returncode == 0, done.stderr
