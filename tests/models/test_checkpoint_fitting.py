"""A checkpoint goes into a model whole or not at all, and says why not in one line."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint import (
    Fit,
    LoadedCheckpoint,
    apply_checkpoint,
    fit_state,
    load_checkpoint,
    parse_rename,
)
from gradaudit.models.checkpoint.fitting import WHOLE
from gradaudit.report import CheckpointRecord


def network() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 2, 3), norm=nn.BatchNorm2d(2), flat=nn.Flatten(), fc=nn.Linear(8, 3)
        )
    )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


def state_of(model: nn.Module, seed: int = 1) -> dict[str, torch.Tensor]:
    """Weights that the model does not have yet."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator)
        if tensor.is_floating_point()
        else tensor + 7
        for name, tensor in model.state_dict().items()
    }


def loaded(state, notes=()) -> LoadedCheckpoint:
    return LoadedCheckpoint(dict(state), CheckpointRecord(file="c.pt", sha256="0" * 64), notes)


def notes_of(model: nn.Module, checkpoint: LoadedCheckpoint, how: Fit = WHOLE) -> tuple[str, ...]:
    """Apply a checkpoint, and what is to be said of it."""
    return tuple(apply_checkpoint(model, checkpoint, how).notes)


def holds(model: nn.Module, state) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[k], state[k]) for k in own)


def refusal(model: nn.Module, state) -> str:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        apply_checkpoint(model, loaded(state))
    assert holds(model, before), "a refused checkpoint leaves the model as it was"
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith("c.pt: ")
    return message


def renamed(state, prefix: str):
    return {prefix + name: tensor for name, tensor in state.items()}


def test_weights_and_buffers_are_applied():
    model = network()
    state = state_of(model)
    parameters = list(model.parameters())
    assert notes_of(model, loaded(state, ("a note",))) == ("a note",)
    assert holds(model, state)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in model.parameters())


PREFIXES = [
    "_module.",
    "module.",
    "model.",
    "net.",
    "_orig_mod.",
    "module._orig_mod.",
    "_orig_mod.module.",
    "model._orig_mod.",
    "model.model.",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_are_stripped_where_that_makes_keys_fit(prefix):
    model = network()
    state = state_of(model)
    notes = notes_of(model, loaded(renamed(state, prefix)))
    assert holds(model, state)
    told = "".join(notes)
    assert prefix.replace("_orig_mod.", "") in told
    assert ("'_orig_mod.' of torch.compile" in told) == ("_orig_mod." in prefix)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_are_kept_where_the_model_has_them(prefix):
    model = network()
    for part in reversed(prefix.rstrip(".").split(".")):
        model = nn.ModuleDict({part: model})
    state = state_of(model)
    assert notes_of(model, loaded(state)) == ()
    assert holds(model, state)


def test_the_shortest_prefix_that_fits_is_stripped():
    model = nn.ModuleDict({"model": network()})
    state = state_of(model)
    assert notes_of(model, loaded(renamed(state, "model."))) == (
        "prefix 'model.' stripped from the keys",
    )
    assert holds(model, state)


def test_compiled_submodules_are_seen_through():
    model = network()
    state = state_of(model)
    compiled = {name.replace("conv.", "conv._orig_mod."): t for name, t in state.items()}
    apply_checkpoint(model, loaded(compiled))
    assert holds(model, state)


def test_two_keys_for_one_parameter_are_refused():
    state = state_of(network())
    message = refusal(network(), {**state, "_orig_mod.fc.bias": torch.zeros(3)})
    assert "unexpected" in message


def test_keys_beside_a_prefix_are_left_aside_with_a_note():
    model = network()
    state = state_of(model)
    extra = {"criterion.weight": torch.ones(3), "metric.total": torch.tensor(1)}
    given = {**renamed(state, "model."), **extra}
    assert "say --prefix OLD=NEW where its keys begin otherwise" in refusal(model, given)
    notes = notes_of(model, loaded(given), Fit(parse_rename("model.=")))
    assert holds(model, state)
    assert notes[1] == "left aside, without the prefix: criterion.weight, metric.total"


def test_missing_unexpected_and_misshapen_keys_are_told_together():
    state = state_of(network())
    del state["fc.bias"]
    state |= {"extra": torch.ones(1), "conv.weight": torch.ones(2, 3, 3, 3)}
    assert refusal(network(), state) == (
        "c.pt: does not fit the model: missing fc.bias; unexpected extra; misshapen conv.weight "
        "((2, 3, 3, 3) in the file, (2, 1, 3, 3) in the model); check that --model names the "
        "architecture, with its options, that it was saved from, and say --prefix OLD=NEW where "
        "its keys begin otherwise"
    )


@pytest.mark.parametrize(("shape", "said"), [((3,), True), ((4,), False)])
def test_how_to_take_a_part_is_said_where_some_of_it_fits(shape: tuple[int, ...], *, said: bool):
    how = Fit(or_in_part="take what fits with --partial")
    with pytest.raises(CheckpointError) as caught:
        apply_checkpoint(network(), loaded({"fc.bias": torch.ones(shape)}), how)
    assert ("; take what fits with --partial, or check that" in str(caught.value)) is said


def test_a_misfit_under_a_prefix_is_told_in_the_models_terms():
    state = renamed(state_of(network()), "module.")
    del state["module.fc.bias"]
    message = refusal(network(), state)
    assert "missing fc.bias;" in message
    assert "unexpected" not in message


def test_long_lists_are_capped():
    model = nn.ModuleList(nn.Linear(1, 1) for _ in range(8))
    message = refusal(model, {f"k{i}": torch.ones(1) for i in range(40)})
    assert "missing 0.weight, 0.bias, 1.weight, 1.bias and 12 more" in message
    assert "unexpected k0, k1, k2, k3 and 36 more" in message


def test_hostile_names_are_made_printable_and_short():
    names = ["a\x1b[31m\n::error::b", "\u202egnp", "x" * 10_000, "[link=http://e]"]
    message = refusal(network(), {**state_of(network()), **{n: torch.ones(1) for n in names}})
    assert len(message) < 900
    assert "a�[31m�:�error:�b, �gnp" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_are_cast_to_the_models_with_a_note(dtype):
    model = network()
    state = state_of(model)
    stored = {k: t.to(dtype) if t.is_floating_point() else t for k, t in state.items()}
    notes = notes_of(model, loaded(stored))
    assert notes == (f"cast from {str(dtype)[6:]} to float32",)
    assert holds(model, {k: t.to(state[k].dtype) for k, t in stored.items()})


def test_integers_are_widened():
    model = network()
    state = state_of(model)
    narrow = {**state, "norm.num_batches_tracked": torch.tensor(7, dtype=torch.int32)}
    assert notes_of(model, loaded(narrow)) == ("cast from int32 to int64",)
    assert holds(model, state)


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("fc.bias", torch.ones(3, dtype=torch.complex64), "complex64 in the file, float32"),
        ("fc.bias", torch.ones(3, dtype=torch.int64), "int64 in the file, float32"),
        ("fc.bias", torch.ones(3, dtype=torch.bool), "bool in the file, float32"),
        ("fc.bias", torch.zeros(3).to(torch.float8_e4m3fn), "float8_e4m3fn in the file"),
        ("fc.bias", torch.ones(3).to_sparse(), "sparse_coo float32 in the file"),
        ("fc.bias", torch.ones(3, device="meta"), "float32 without data in the file"),
        ("norm.num_batches_tracked", torch.tensor(-1.0), "float32 in the file, int64"),
    ],
)
def test_kinds_that_cannot_be_cast_are_refused(name, tensor, told):
    message = refusal(network(), {**state_of(network()), name: tensor})
    assert "cannot be cast" in message
    assert f"{name} ({told}" in message


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_weights_are_refused():
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    message = refusal(network(), {**state_of(network()), "fc.bias": quantised})
    assert "fc.bias (qint8 in the file" in message


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.0, torch.nan, 0.0]),
        torch.tensor([0.0, torch.inf, 0.0]),
        torch.tensor([0.0, 1e300, 0.0], dtype=torch.float64),
    ],
)
def test_values_that_are_not_finite_in_the_models_dtype_are_refused(tensor):
    message = refusal(network(), {**state_of(network()), "fc.bias": tensor})
    assert "not finite in fc.bias;" in message


def test_a_buffer_that_is_not_finite_is_refused():
    bad = {"norm.running_var": torch.full((2,), torch.inf)}
    assert "norm.running_var" in refusal(network(), {**state_of(network()), **bad})


def test_only_the_batch_counter_may_be_missing():
    model = network()
    state = state_of(model)
    del state["norm.num_batches_tracked"]
    assert notes_of(model, loaded(state)) == (
        "not in the file, left as built: norm.num_batches_tracked",
    )
    assert holds(model, {**state, "norm.num_batches_tracked": torch.tensor(0)})
    del state["norm.running_mean"]
    assert "missing norm.running_mean" in refusal(network(), state)


def test_tied_weights_that_safetensors_dropped_are_shared(tmp_path):
    source, model = Tied(), Tied()
    save_model(source, tmp_path / "tied.safetensors")
    checkpoint = load_checkpoint(tmp_path / "tied.safetensors")
    assert len(checkpoint.state) == 1
    (note,) = notes_of(model, checkpoint)
    assert note.startswith("not in the file, tied to a tensor that is: ")
    assert torch.equal(model.head.weight, source.embed.weight)
    assert model.head.weight is model.embed.weight


def test_tied_weights_may_be_missing_only_together():
    assert "missing embed.weight" in refusal(Tied(), {})


def test_tied_weights_that_differ_in_the_file_are_refused():
    state = {"embed.weight": torch.ones(5, 4), "head.weight": torch.zeros(5, 4)}
    assert "embed.weight, head.weight are one tensor" in refusal(Tied(), state)


def test_tied_weights_that_agree_in_the_file_are_applied():
    model = Tied()
    state = {"embed.weight": torch.ones(5, 4), "head.weight": torch.ones(5, 4)}
    assert notes_of(model, loaded(state)) == ()
    assert holds(model, state)


def test_no_value_is_read_before_shapes_fit():
    huge = torch.ones(1).expand(1 << 40)
    assert "misshapen fc.bias" in refusal(network(), {**state_of(network()), "fc.bias": huge})


def test_an_update_is_fitted_to_parameters_alone():
    model = network()
    gradients = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    fitted = fit_state(dict(model.named_parameters()), loaded(renamed(gradients, "module.")))
    assert list(fitted.state) == list(gradients)
    assert fitted.notes == ("prefix 'module.' stripped from the keys",)
    with pytest.raises(CheckpointError, match=r"unexpected norm\.running_mean"):
        fit_state(dict(model.named_parameters()), loaded(model.state_dict()))


def test_a_file_goes_all_the_way_into_a_model(tmp_path):
    source, model = network(), network()
    torch.save({"epoch": 1, "state_dict": renamed(source.state_dict(), "module.")}, tmp_path / "c")
    notes = notes_of(model, load_checkpoint(tmp_path / "c"))
    assert notes == (
        "state dict taken from 'state_dict'",
        "left aside: epoch",
        "prefix 'module.' stripped from the keys",
    )
    assert holds(model, source.state_dict())


@pytest.mark.parametrize("prefix", ["backbone.", "m.", "_module.", "encoder.model.", "a.b.c."])
def test_any_prefix_of_the_file_is_stripped_and_one_of_the_model_is_asked_for(prefix):
    model = network()
    state = state_of(model)
    (note,) = notes_of(model, loaded(renamed(state, prefix)))
    assert holds(model, state)
    assert note == f"prefix {prefix!r} stripped from the keys"
    wrapped = network()
    outer = wrapped
    for part in reversed(prefix.rstrip(".").split(".")):
        outer = nn.ModuleDict({part: outer})
    assert "say --prefix OLD=NEW" in refusal(outer, state)
    how = Fit(parse_rename(f"={prefix}"))
    assert notes_of(outer, loaded(state), how) == (f"prefix {prefix!r} added",)
    assert holds(wrapped, state)


def test_a_prefix_is_asked_for_where_two_fit():
    state = state_of(network())
    both = {**renamed(state, "teacher."), **renamed(state_of(network(), 2), "student.")}
    assert "say --prefix OLD=NEW" in refusal(network(), both)
    model = network()
    notes = notes_of(model, loaded(both), Fit(("teacher.", "")))
    assert holds(model, state)
    assert notes[1].startswith("left aside, without the prefix: student.conv.weight")


def test_a_prefix_in_place_of_another_is_named():
    inner = network()
    model = nn.ModuleDict({"encoder": inner})
    state = state_of(inner)
    how = Fit(parse_rename("_module.=encoder."))
    (note,) = notes_of(model, loaded(renamed(state, "_module.")), how)
    assert note == "prefix '_module.' of the keys replaced by 'encoder.'"
    assert holds(inner, state)


def test_a_layer_that_fits_by_its_name_alone_is_not_taken_for_the_model():
    state = {"fc.weight": torch.ones(9, 9), "block.fc.weight": torch.ones(2, 3), "x": torch.ones(1)}
    model = nn.ModuleDict({"fc": nn.Linear(3, 2, bias=False)})
    assert "misshapen fc.weight" in refusal(model, state)


@pytest.mark.parametrize("text", ["backbone.", "=", ""])
def test_a_prefix_is_written_with_an_equals_sign(text):
    with pytest.raises(UsageError, match="write OLD=NEW"):
        parse_rename(text)


def test_of_a_partial_checkpoint_the_rest_stays_as_built():
    model = network()
    state = state_of(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    del state["conv.bias"]
    state |= {
        "fc.weight": torch.ones(1000, 8),
        "fc.bias": torch.ones(1000),
        "head.w": before["fc.bias"],
    }
    assert "missing conv.bias" in refusal(network(), state)
    record = apply_checkpoint(model, loaded(state), Fit(partial=True))
    assert record.random == ["conv.bias", "fc.weight", "fc.bias"]
    assert record.notes == [
        "left aside, not in the model: head.w",
        "RANDOM, as the file has no weights for them: conv.bias, fc.weight, fc.bias",
    ]
    kept = {name: before[name] for name in record.random}
    taken = {name: state[name] for name in before if name not in kept}
    assert holds(model, kept | taken)


def test_a_partial_checkpoint_of_another_model_is_refused():
    with pytest.raises(CheckpointError, match="nothing in it fits the model") as caught:
        apply_checkpoint(network(), loaded({"x.fc.bias": torch.ones(2)}), Fit(partial=True))
    assert str(caught.value).isprintable()


def in_order(tensors) -> LoadedCheckpoint:
    state = {f"arr_{place}": tensor for place, tensor in enumerate(tensors)}
    return replace(loaded(state), ordered=True)


def test_arrays_without_names_are_taken_in_the_order_of_the_state():
    model = network()
    state = state_of(model)
    assert notes_of(model, in_order(state.values())) == ()
    assert holds(model, state)
    counted = [tensor for name, tensor in state.items() if "num_batches" not in name]
    other = network()
    (note,) = notes_of(other, in_order(counted))
    assert note == "not in the file, left as built: norm.num_batches_tracked"
    assert torch.equal(other.state_dict()["fc.weight"], state["fc.weight"])


def test_the_first_array_of_another_shape_is_named():
    state = list(state_of(network()).values())
    for wrong, words in (
        (
            state[::-1],
            r"array arr_0 is of shape \(3,\) where the model has conv.weight \(2, 1, 3, 3\)",
        ),
        (state[:3], "holds 3 arrays without names where the model's state has 9"),
        ([*state, torch.ones(1)], "holds 10 arrays without names"),
    ):
        with pytest.raises(CheckpointError, match=words):
            apply_checkpoint(network(), in_order(wrong))
