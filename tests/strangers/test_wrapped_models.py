"""Models that recompute their parts, are compiled, spread over devices or reparametrised."""

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.substitutes import recomputes
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run
from gradaudit.sharing.protocol import LocalTraining
from gradaudit.subject import Subject

RECORDS = Records(torch.rand(8, 5), torch.arange(8) % 3, classes=("a", "b", "c"))


class Blocks(nn.Module):
    """Two blocks of which the second is called by ``through``."""

    def __init__(self, through: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 6), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.first(x)
        if self.through is not None:
            return self.through(self.second, hidden)
        outputs: Tensor = self.second(hidden)
        return outputs


def by_name(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)


def reentrant(block: nn.Module, x: Tensor) -> Tensor:
    return checkpointing.checkpoint(block, x, use_reentrant=True)


def in_segments(block: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(block, nn.Sequential)
    return checkpoint_sequential(block, 2, x, use_reentrant=False)


RECOMPUTING = {
    "by name": by_name,
    "reentrant": reentrant,
    "in segments": in_segments,
    "held": functools.partial(checkpoint, use_reentrant=False),
}


def drawn(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build().eval()


def subject(model: nn.Module) -> Subject:
    return open_subject(SubjectSettings(), model=model, records=RECORDS)


def gradient(functional: FunctionalModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    data = functional.cast(RECORDS.inputs), RECORDS.labels
    return torch.func.grad(functional.batch_loss)(weights, *data)  # type: ignore[no-any-return]


def stepped(functional: FunctionalModel, weights: dict[str, Tensor], _: int) -> dict[str, Tensor]:
    return gradient(functional, weights)


@pytest.mark.parametrize("way", RECOMPUTING)
def test_parts_that_are_recomputed_have_the_gradients_of_the_weights_asked_about(way: str) -> None:
    plain = FunctionalModel.of(subject(drawn(Blocks)).target, dtype=torch.float32)
    model = drawn(lambda: Blocks(RECOMPUTING[way]))
    functional = FunctionalModel.of(subject(model).target, dtype=torch.float32)
    moved = {name: weight + 0.3 for name, weight in plain.parameters.items()}
    expected, found = gradient(plain, moved), gradient(functional, moved)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    assert recomputes(model)
    assert checkpointing.checkpoint is checkpoint
    assert model.through is RECOMPUTING[way]


@pytest.mark.parametrize("way", RECOMPUTING)
def test_steps_of_fedavg_never_recompute_with_old_weights(way: str) -> None:
    updates = []
    for model in (drawn(Blocks), drawn(lambda: Blocks(RECOMPUTING[way]))):
        functional = FunctionalModel.of(subject(model).target, dtype=torch.float32)
        training = LocalTraining(epochs=3, rate=0.5)
        start = functional.parameters
        updates.append(
            training.update(start, [None] * 3, lambda w, _, f=functional: gradient(f, w))
        )
    for name, expected in updates[0].items():
        torch.testing.assert_close(updates[1][name], expected, rtol=0, atol=0)


@pytest.mark.slow
def test_the_report_says_that_nothing_is_recomputed() -> None:
    report = run(subject(drawn(lambda: Blocks(by_name))), [])
    assert "gradient checkpointing is off while audited" in str(report.provenance["model_notes"])
    assert "model_notes" not in run(subject(drawn(Blocks)), []).provenance


def test_wrappers_are_taken_off_and_named() -> None:
    model = drawn(Blocks)
    parallel = subject(nn.DataParallel(model)).target
    assert (parallel.model, [layer.name for layer in parallel.layers]) == (
        model,
        ["first.0", "second.0", "second.2"],
    )
    assert parallel.notes == ("without DataParallel: its gradients are the same",)


@pytest.mark.slow
def test_compiled_models_are_called_as_they_were_written() -> None:
    model = drawn(Blocks)
    compiled = subject(torch.compile(nn.DataParallel(model))).target
    assert compiled.model is model
    assert [note.split(":")[0] for note in compiled.notes] == [
        "without torch.compile",
        "without DataParallel",
    ]
    calls = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        calls.append(graph)
        return graph.forward

    inside = copy.deepcopy(model)
    inside.second = torch.compile(inside.second, backend=backend)
    functional = FunctionalModel.of(subject(inside).target)
    functional.outputs({}, functional.cast(RECORDS.inputs))
    assert not calls
    inside(RECORDS.inputs)
    assert len(calls) == 1


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("kind", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_computed_by_hooks_have_the_gradients_that_torch_gives(
    kind: Callable[[nn.Module], nn.Module],
) -> None:
    model = drawn(lambda: nn.Sequential(kind(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 3)))
    loss = nn.functional.cross_entropy(model(RECORDS.inputs), RECORDS.labels)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    expected = dict(zip(dict(model.named_parameters()), slopes, strict=True))
    functional = FunctionalModel.of(subject(model).target, dtype=torch.float32)
    for _ in range(2):
        found = gradient(functional, functional.parameters)
        for name in expected:
            torch.testing.assert_close(found[name], expected[name])
    copy.deepcopy(functional.module)
