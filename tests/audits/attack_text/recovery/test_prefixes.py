"""Continuations of a prefix in one run, against each continuation run by itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from audits.attack_text.sentences import view
from torch import Tensor, nn

from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.decoder import Continuations
from gradaudit.audits.attack_text.view import TextView
from gradaudit.core.huggingface import library
from gradaudit.data.common.packing import InputPart
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import mean_gradient
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

WORDS, LENGTH = 40, 8
_SHAPE = {"vocab_size": WORDS, "bos_token_id": None, "eos_token_id": None}


def language_model(architecture: str) -> nn.Module:
    library_of = library("transformers")
    if architecture == "GPT2":
        config = library_of.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=16, **_SHAPE)
    else:
        config = library_of.LlamaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            num_key_value_heads=1, max_position_embeddings=16, **_SHAPE
        )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: nn.Module = library_of.AutoModelForCausalLM.from_config(config)
        return made.eval()


def observed(model: nn.Module) -> tuple[TextView, Tensor]:
    """A view of two texts' gradient, and the texts."""
    ids = torch.randint(WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    parts = (
        InputPart("input_ids", (LENGTH,), "tokens"),
        InputPart("attention_mask", (LENGTH,), "tokens"),
    )
    functional = FunctionalModel.of(Target(model, CrossEntropy(), parts=parts), dtype=torch.float32)
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], dim=1)
    inputs = torch.cat([ids, torch.ones_like(ids)], dim=1)
    update = mean_gradient(functional, list(functional.parameters), inputs, labels)
    return TextView(functional, update, (LENGTH, LENGTH), LENGTH, "next-token", WORDS), ids


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["GPT2", "Llama"])
@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_tree_attention_gives_what_each_continuation_gives_alone(
    architecture: str, prefix: int
) -> None:
    made, ids = observed(language_model(architecture))
    places = Structure.of(made).mixed
    continuations = Continuations.at(made, places)
    assert continuations.together
    words = torch.tensor([3, 17, 5, 30])
    found = continuations._together(ids[:, :prefix], words)
    alone = torch.stack([torch.cat([row[:prefix], w[None]]) for row in ids for w in words])
    seen = made.seen([place.names[0] for place in places], alone)
    for place, x in zip(places, found, strict=True):
        expected = seen[place.names[0]][:, -1].reshape(2, 4, -1)
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)
    apart = replace(continuations, together=False).misfit(ids[:, :prefix], words)
    together = continuations.misfit(ids[:, :prefix], words)
    torch.testing.assert_close(together, apart, rtol=0.1, atol=5)  # small ones are of rounding


def test_a_model_that_takes_no_mask_is_run_on_each_by_itself() -> None:
    made, truth = view(2)
    continuations = Continuations.at(made, Structure.of(made).mixed)
    assert not continuations.together
    misfits = continuations.misfit(torch.tensor(truth)[:, :2], torch.arange(5))
    assert misfits.shape[1:] == (2, 5)


class Deaf(nn.Module):
    """Takes a mask and positions, and heeds neither."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, **_other: Any) -> Tensor:
        """(texts, positions) to scores."""
        scores: Tensor = self.inner(input_ids)
        return scores


def test_a_model_that_heeds_no_mask_is_found_by_trying() -> None:
    made, _ = view(2)
    module = Deaf(made.model.module)
    parameters = {f"inner.{name}": part for name, part in made.model.parameters.items()}
    update = {f"inner.{name}": part for name, part in made.update.items()}
    parts = (InputPart("input_ids", (made.length,), "tokens"),)
    model = replace(made.model, module=module, parameters=parameters, parts=parts)
    deaf = replace(made, model=model, update=update)
    assert not Continuations.at(deaf, Structure.of(deaf).mixed).together
