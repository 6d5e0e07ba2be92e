"""Frozen weights beside the published ones: honest models pass, every alteration is found."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from gradaudit.audits.attack_malicious_server.published import compare
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import LoadedCheckpoint, load_checkpoint
from tests.command_line import run

State = dict[str, Tensor]


class Adapted(nn.Module):
    """A linear map with an adapter, named as PEFT names both."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(6, 5)
        self.lora_A = nn.Linear(6, 2, bias=False)
        self.lora_B = nn.Linear(2, 5, bias=False)


def sent(seed: int) -> tuple[nn.Module, State]:
    """A model with frozen weights below an adapter, and the weights that were published."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({"embed": nn.Embedding(7, 6), "first": Adapted(), "last": Adapted()})
    published = {}
    for name, parameter in model.named_parameters():
        if "lora" not in name:
            parameter.requires_grad_(requires_grad=False)
            published[name.replace(".base_layer", "")] = parameter.detach().clone()
    return model, published


def loaded(state: State, folder: Path) -> LoadedCheckpoint:
    save_file(state, folder / "published.safetensors")
    return load_checkpoint(str(folder / "published.safetensors"))


def trained_adapters(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_()


def in_half_precision(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)


@pytest.mark.parametrize("honestly", [trained_adapters, in_half_precision])
def test_honest_models_are_never_flagged(
    honestly: Callable[[nn.Module], None], tmp_path: Path
) -> None:
    for seed in range(20):
        model, published = sent(seed)
        honestly(model)
        found = compare(model, loaded(published, tmp_path))
        assert found.altered == {}
        assert found.share == 0
        assert found.compared == 5
        assert found.elements == 42 + 2 * 35


def one_element(model: nn.Module) -> None:
    model.get_parameter("first.base_layer.weight").data[2, 3] *= 1.02


def equal_rows(model: nn.Module) -> None:
    """Rows of an imprint: the same weights at other thresholds (Fowl et al. 2022)."""
    weight = model.get_parameter("last.base_layer.weight").data
    weight[:] = weight[0].clone()
    model.get_parameter("last.base_layer.bias").data.copy_(torch.linspace(-1, 1, 5))


def swapped_tokens(model: nn.Module) -> None:
    table = model.get_parameter("embed.weight").data
    table[[0, 1]] = table[[1, 0]]


def scaled(model: nn.Module) -> None:
    model.get_parameter("first.base_layer.weight").data *= 100


def planted(model: nn.Module) -> None:
    extra = nn.Linear(6, 6, bias=False)
    extra.weight.requires_grad_(requires_grad=False)
    model["decoder"] = extra  # type: ignore[operator]


@pytest.mark.parametrize(
    ("alter", "elements"),
    [(one_element, 1), (equal_rows, 24 + 5), (swapped_tokens, 12), (scaled, 30), (planted, 36)],
)
def test_every_alteration_is_found_and_counted(
    alter: Callable[[nn.Module], None], elements: int, tmp_path: Path
) -> None:
    for seed in range(5):
        model, published = sent(seed)
        trained_adapters(model)
        alter(model)
        found = compare(model, loaded(published, tmp_path))
        assert sum(found.altered.values()) == elements
        assert found.share == elements / found.elements


def test_a_model_without_frozen_weights_is_compared_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    published = loaded({n: p.detach().clone() for n, p in model.named_parameters()}, tmp_path)
    assert compare(model, published).share == 0
    model.bias.data += 1
    assert compare(model, published).altered == {"bias": 2}


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing in it fits the model"):
        compare(nn.Linear(3, 2), loaded({"other": torch.zeros(4)}, tmp_path))


def test_the_command_fails_on_an_altered_model_and_passes_the_published_one() -> None:
    rounds = [f"sample_models/digits/round-{number}.safetensors" for number in ("01", "10")]
    model = ("-m", "sample_models/models.py:digits_cnn", "-d", "digits", "-c", rounds[1])
    for published, share in ((rounds[1], 0), (rounds[0], 1)):
        command = ("attack", "malicious-server", *model, "--published", published)
        done = run(*command, "--samples", 32, "-f", "json", "-q")
        assert done.status == 0, done.err
        rows = json.loads(done.out)["measurements"]
        row = next(row for row in rows if row["metric"] == "altered_weights")
        assert row["value"] == pytest.approx(share, abs=0.01)
        assert len(row["details"]["published"]["sha256"]) == 64
