"""The zoo against the papers: every weight's shape and the number of parameters, by hand."""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from command_line import HANGS
from subjects import seeded
from torch import nn

from gradaudit.errors import UsageError
from gradaudit.models.target import layers_of
from gradaudit.zoo import build, factory, zoo_names

Shapes = dict[str, tuple[int, ...]]

C3 = (3, 3)
VGG16_CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
VGG16_CONVOLUTIONS: Shapes = {
    f"conv{block}_{layer}": (after, before, *C3)
    for block, (first, channels) in enumerate(
        zip((3, 64, 128, 256, 512), VGG16_CHANNELS, strict=True), start=1
    )
    for layer, (before, after) in enumerate(pairwise((first, *channels)), start=1)
}


def convolutions(*channels: int, width: int = 3, first: int = 1) -> Shapes:
    """Weights of square convolutions from channels to channels, numbered from the first."""
    return {
        f"conv{number}": (after, before, width, width)
        for number, (before, after) in enumerate(pairwise(channels), start=first)
    }


def linear(*units: int) -> Shapes:
    """Weights of fully connected layers from units to units, of which the last is the output."""
    names = [*(f"fc{number}" for number in range(1, len(units) - 1)), "output"]
    return {
        name: (after, before) for name, (before, after) in zip(names, pairwise(units), strict=True)
    }


# Architecture, options, weights of convolutions, embeddings and linear layers, all parameters.
PAPERS: list[tuple[str, dict[str, object], Shapes, int]] = [
    ("lenet", {}, convolutions(3, 6, 16, width=5) | linear(400, 120, 84, 10), 62_006),
    (
        "alexnet-mo22",
        {},
        convolutions(3, 8, width=5)
        | convolutions(8, 16, 32, 32, 32, first=2)
        | linear(2048, 120, 84, 10),
        281_806,
    ),
    ("vgg9", {}, convolutions(3, 8, 16, 16, 32, 32, 32) | linear(2048, 256, 128, 10), 585_578),
    (
        "textclf",
        {},
        {"embedding": (5000, 50), "conv1": (16, 50, 3), "conv2": (16, 16, 8), **linear(960, 50, 2)},
        302_632,
    ),
    ("alexnet-mo21", {}, convolutions(3, 16, 32, 64) | linear(1024, 256, 10), 288_554),
    (
        "vgg11net",
        {},
        convolutions(3, 16, 16, 16, 16, 32, 32, 64, 64) | linear(1024, 256, 128, 10),
        373_306,
    ),
    ("fcnet", {}, linear(3072, *[32] * 8, 10), 106_058),
    ("dlnet", {}, convolutions(3, *[12] * 4, width=5) | linear(768, 10), 19_438),
    ("deep-leakage", {}, convolutions(3, *[12] * 3, width=5) | linear(768, 100), 85_036),
    (
        "deep-leakage",
        {"convolutions": 7},
        convolutions(3, *[12] * 7, width=5) | linear(768, 100),
        99_484,
    ),
    (
        "alexnet-32",
        {},
        convolutions(3, 64, 192, width=5)
        | convolutions(192, 384, 256, 256, first=3)
        | linear(4096, 256, 10),
        3_502_666,
    ),
    ("vgg16-gn", {}, VGG16_CONVOLUTIONS | linear(8192, 256, 10), 16_823_114),
    (
        "vgg16-gn",
        {"pools": (1, 2, 3, 4, 5)},
        VGG16_CONVOLUTIONS | linear(512, 256, 10),
        14_857_034,
    ),
    ("cnn3", {}, {"conv1": (6, 3, *C3), "conv2": (3, 6, 4, 4), **linear(588, 10)}, 6_340),
    (
        "cnn3",
        {"variant": 2},
        {"conv1": (6, 3, 4, 4), "conv2": (3, 6, *C3), **linear(147, 10)},
        1_930,
    ),
    ("cnn3", {"variant": 3}, convolutions(3, 6, 9) | linear(7056, 10), 71_218),
    ("cnn3", {"variant": 4}, convolutions(3, 1, 6) | linear(4704, 10), 47_131),
    ("mlp", {}, linear(64, 100, 10), 7_510),
    ("mlp", {"inputs": (3, 2, 2), "hidden": (20, 5), "classes": 2}, linear(12, 20, 5, 2), 377),
]

# Kind and number of activations, and number of pools.
ACTIVATIONS = {
    "lenet": ("ReLU", 4, 2),
    "alexnet-mo22": ("ReLU", 7, 2),
    "vgg9": ("ReLU", 8, 2),
    "textclf": ("ReLU", 3, 2),
    "alexnet-mo21": ("ReLU", 4, 3),
    "vgg11net": ("ReLU", 10, 3),
    "fcnet": ("ReLU", 8, 0),
    "dlnet": ("Sigmoid", 4, 0),
    "deep-leakage": ("Sigmoid", 3, 0),
    "alexnet-32": ("ReLU", 6, 3),
    "vgg16-gn": ("ReLU", 14, 3),
    "cnn3": ("Tanh", 2, 0),
    "mlp": ("ReLU", 1, 0),
}


def kinds(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.children()]


@pytest.mark.parametrize(
    ("name", "options", "weights", "parameters"),
    PAPERS,
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_layers_as_in_the_paper(
    name: str, options: dict[str, object], weights: Shapes, parameters: int
) -> None:
    with torch.device("meta"):
        model = build(name, **options)
    found = {
        layer.name: tuple(model.get_parameter(layer.parameter_names[0]).shape)
        for layer in layers_of(model)
        if layer.kind != "GroupNorm"
    }
    assert list(found.items()) == list(weights.items())
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_every_architecture_is_in_the_tables() -> None:
    assert set(zoo_names()) == {name for name, *_ in PAPERS} == set(ACTIVATIONS)


@pytest.mark.parametrize("name", zoo_names())
def test_activations_and_pools_as_in_the_paper(name: str) -> None:
    with torch.device("meta"):
        found = kinds(build(name))
    kind, count, pools = ACTIVATIONS[name]
    known = {"ReLU", "Sigmoid", "Tanh", "LeakyReLU", "Identity"}
    assert [k for k in found if k in known] == [kind] * count
    assert sum(k.startswith("MaxPool") for k in found) == pools
    assert found[-1] == "Linear"


@pytest.mark.parametrize("name", sorted(set(zoo_names()) - {"textclf", "mlp"}))
def test_other_shapes_classes_and_activations(name: str) -> None:
    options = {"shape": (1, 28, 28), "classes": 3, "activation": "leaky-relu"}
    model = build(name, **options, **({"groups": 1} if name == "vgg16-gn" else {}))
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 3)
    assert kinds(model).count("LeakyReLU") == ACTIVATIONS[name][1]


@pytest.mark.parametrize(
    ("name", "options", "features"),
    [
        ("lenet", {"shape": (3, 62, 47)}, 16 * 12 * 8),
        ("lenet", {"shape": (3, 32, 32), "padding": "same"}, 16 * 8 * 8),
        ("alexnet-mo22", {"shape": (3, 62, 47)}, 32 * 15 * 11),
        ("alexnet-mo22", {"padding": "valid"}, 32 * 3 * 3),
        ("vgg9", {"padding": "valid"}, 32 * 3 * 3),
        ("alexnet-mo21", {"shape": (3, 100, 100)}, 64 * 12 * 12),
        ("vgg11net", {"shape": (3, 62, 47)}, 64 * 7 * 5),
        ("vgg11net", {"shape": (3, 62, 47), "padding": "valid"}, 64 * 4 * 2),
        ("deep-leakage", {"shape": (1, 28, 28)}, 12 * 7 * 7),
    ],
)
def test_features_that_reach_the_first_linear_layer(
    name: str, options: dict[str, object], features: int
) -> None:
    model = build(name, **options)
    first = next(module for module in model.children() if isinstance(module, nn.Linear))
    assert first.in_features == features
    shape: tuple[int, ...] = options.get("shape", (3, 32, 32))  # type: ignore[assignment]
    assert model(torch.zeros(2, *shape)).shape[0] == 2


def test_strides_of_the_attacked_networks() -> None:
    def strides(name: str, **options: object) -> list[tuple[int, ...]]:
        convolutions = [m for m in build(name, **options).children() if isinstance(m, nn.Conv2d)]
        return [convolution.stride for convolution in convolutions]

    assert strides("dlnet") == [(2, 2), (2, 2), (1, 1), (1, 1)]
    assert strides("deep-leakage") == [(2, 2), (2, 2), (1, 1)]
    assert strides("deep-leakage", convolutions=7) == [(2, 2), (2, 2), *[(1, 1)] * 5]
    assert strides("cnn3", variant=1) == [(1, 1), (2, 2)]
    assert strides("cnn3", variant=2) == [(2, 2), (2, 2)]


def test_vgg16_normalises_after_every_convolution_before_the_activation() -> None:
    with torch.device("meta"):
        model = build("vgg16-gn", groups=16)
    names = [name for name, _ in model.named_children()]
    assert names[:7] == [
        "conv1_1",
        "norm1_1",
        "conv1_1_relu",
        "conv1_2",
        "norm1_2",
        "conv1_2_relu",
        "pool1",
    ]
    assert sum(name.startswith("norm") for name in names) == 13
    assert {m.num_groups for m in model.children() if isinstance(m, nn.GroupNorm)} == {16}


def test_cnn3_has_bias_in_its_last_layer_only() -> None:
    names = [name for name, _ in build("cnn3", output_activation="sigmoid").named_parameters()]
    assert names == ["conv1.weight", "conv2.weight", "output.weight", "output.bias"]
    assert kinds(build("cnn3", output_activation="sigmoid"))[-1] == "Sigmoid"


def test_text_is_read_along_its_length() -> None:
    model = build("textclf", vocabulary=20, embedding=4, length=32, classes=3)
    tokens = torch.randint(20, (5, 32))
    assert model(tokens).shape == (5, 3)
    assert model.get_parameter("fc1.weight").shape == (50, 16 * 4)


@pytest.mark.parametrize(("name", "bound"), [("dlnet", 0.3), ("deep-leakage", 0.5)])
def test_uniform_initialisation(name: str, bound: float) -> None:
    with seeded(0):
        model = build(name, init=f"uniform:{bound}")
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert -bound <= values.min() < -0.999 * bound
    assert 0.999 * bound < values.max() <= bound
    # The standard error of the variance of a uniform law on (−b, b) is b² √(4/45n).
    deviation = values.square().mean() - bound**2 / 3
    assert abs(deviation) < 5 * bound**2 * (4 / 45 / len(values)) ** 0.5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenet", {"shape": (3, 8, 8)}, "shape=3x8x8 is too small: conv2 of width 5 meets 6x2x2"),
        ("vgg11net", {"shape": (3, 4, 4)}, "shape=3x4x4 is too small: pool3 of width 2 meets"),
        ("textclf", {"length": 12}, "is too small: conv2 of width 8 meets 16x5"),
        ("lenet", {"shape": (0, 32, 32)}, "sizes and counts must be positive"),
        ("lenet", {"classes": 0}, "sizes and counts must be positive"),
        ("mlp", {"hidden": (5, -1)}, "sizes and counts must be positive"),
        ("textclf", {"vocabulary": 0}, "vocabulary=0: must be positive"),
        ("lenet", {"activation": "rely"}, "activation='rely' is not one of relu, leaky-relu"),
        ("vgg16-gn", {"groups": 48}, "groups=48 does not divide 64 channels"),
        ("vgg16-gn", {"pools": (0, 6)}, "pools=0,6: the blocks are 1 to 5"),
        ("dlnet", {"init": "uniform"}, "init='uniform': write default, or uniform:B"),
        ("dlnet", {"init": "normal:1"}, "init='normal:1': write default, or uniform:B"),
    ],
)
def test_refused_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(name, **options)
    assert message in str(caught.value)


def test_an_unknown_name_is_told_with_a_close_one() -> None:
    with pytest.raises(UsageError, match=r"zoo:lenett: unknown \(did you mean 'lenet'\?\); known:"):
        factory("lenett")


def test_every_architecture_has_a_summary_of_one_line() -> None:
    for name, summary in zoo_names().items():
        assert 20 < len(summary) < 110, name
        assert summary.endswith("."), name


def test_the_listing_does_not_import_torch() -> None:
    code = (
        "import sys; from gradaudit.zoo import zoo_names; "
        "print(len(zoo_names()), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS
    )
    assert done.stdout.split() == [str(len(zoo_names())), "False"]
