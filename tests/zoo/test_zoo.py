"""The zoo against the papers: every weight's shape and the number of parameters, by hand."""

import subprocess
import sys

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
VGG16_CONVOLUTIONS: Shapes = {
    "conv1_1": (64, 3, *C3),
    "conv1_2": (64, 64, *C3),
    "conv2_1": (128, 64, *C3),
    "conv2_2": (128, 128, *C3),
    "conv3_1": (256, 128, *C3),
    "conv3_2": (256, 256, *C3),
    "conv3_3": (256, 256, *C3),
    "conv4_1": (512, 256, *C3),
    "conv4_2": (512, 512, *C3),
    "conv4_3": (512, 512, *C3),
    "conv5_1": (512, 512, *C3),
    "conv5_2": (512, 512, *C3),
    "conv5_3": (512, 512, *C3),
}

# Architecture, options, weights of convolutions, embeddings and linear layers, all parameters.
PAPERS: list[tuple[str, dict[str, object], Shapes, int]] = [
    (
        "lenet",
        {},
        {
            "conv1": (6, 3, 5, 5),
            "conv2": (16, 6, 5, 5),
            "fc1": (120, 400),
            "fc2": (84, 120),
            "output": (10, 84),
        },
        62_006,
    ),
    (
        "alexnet-mo22",
        {},
        {
            "conv1": (8, 3, 5, 5),
            "conv2": (16, 8, *C3),
            "conv3": (32, 16, *C3),
            "conv4": (32, 32, *C3),
            "conv5": (32, 32, *C3),
            "fc1": (120, 2048),
            "fc2": (84, 120),
            "output": (10, 84),
        },
        281_806,
    ),
    (
        "vgg9",
        {},
        {
            "conv1": (8, 3, *C3),
            "conv2": (16, 8, *C3),
            "conv3": (16, 16, *C3),
            "conv4": (32, 16, *C3),
            "conv5": (32, 32, *C3),
            "conv6": (32, 32, *C3),
            "fc1": (256, 2048),
            "fc2": (128, 256),
            "output": (10, 128),
        },
        585_578,
    ),
    (
        "textclf",
        {},
        {
            "embedding": (5000, 50),
            "conv1": (16, 50, 3),
            "conv2": (16, 16, 8),
            "fc1": (50, 960),
            "output": (2, 50),
        },
        302_632,
    ),
    (
        "alexnet-mo21",
        {},
        {
            "conv1": (16, 3, *C3),
            "conv2": (32, 16, *C3),
            "conv3": (64, 32, *C3),
            "fc1": (256, 1024),
            "output": (10, 256),
        },
        288_554,
    ),
    (
        "vgg11net",
        {},
        {
            "conv1": (16, 3, *C3),
            "conv2": (16, 16, *C3),
            "conv3": (16, 16, *C3),
            "conv4": (16, 16, *C3),
            "conv5": (32, 16, *C3),
            "conv6": (32, 32, *C3),
            "conv7": (64, 32, *C3),
            "conv8": (64, 64, *C3),
            "fc1": (256, 1024),
            "fc2": (128, 256),
            "output": (10, 128),
        },
        373_306,
    ),
    (
        "fcnet",
        {},
        {
            "fc1": (32, 3072),
            **{f"fc{i}": (32, 32) for i in range(2, 9)},
            "output": (10, 32),
        },
        106_058,
    ),
    (
        "dlnet",
        {},
        {
            "conv1": (12, 3, 5, 5),
            "conv2": (12, 12, 5, 5),
            "conv3": (12, 12, 5, 5),
            "conv4": (12, 12, 5, 5),
            "output": (10, 768),
        },
        19_438,
    ),
    (
        "deep-leakage",
        {},
        {
            "conv1": (12, 3, 5, 5),
            "conv2": (12, 12, 5, 5),
            "conv3": (12, 12, 5, 5),
            "output": (100, 768),
        },
        85_036,
    ),
    (
        "deep-leakage",
        {"convolutions": 7},
        {
            "conv1": (12, 3, 5, 5),
            **{f"conv{i}": (12, 12, 5, 5) for i in range(2, 8)},
            "output": (100, 768),
        },
        99_484,
    ),
    (
        "alexnet-32",
        {},
        {
            "conv1": (64, 3, 5, 5),
            "conv2": (192, 64, 5, 5),
            "conv3": (384, 192, *C3),
            "conv4": (256, 384, *C3),
            "conv5": (256, 256, *C3),
            "fc1": (256, 4096),
            "output": (10, 256),
        },
        3_502_666,
    ),
    (
        "vgg16-gn",
        {},
        {**VGG16_CONVOLUTIONS, "fc1": (256, 8192), "output": (10, 256)},
        16_823_114,
    ),
    (
        "vgg16-gn",
        {"pools": (1, 2, 3, 4, 5)},
        {**VGG16_CONVOLUTIONS, "fc1": (256, 512), "output": (10, 256)},
        14_857_034,
    ),
    ("cnn3", {}, {"conv1": (6, 3, *C3), "conv2": (3, 6, 4, 4), "output": (10, 588)}, 6_340),
    (
        "cnn3",
        {"variant": 2},
        {"conv1": (6, 3, 4, 4), "conv2": (3, 6, *C3), "output": (10, 147)},
        1_930,
    ),
    (
        "cnn3",
        {"variant": 3},
        {"conv1": (6, 3, *C3), "conv2": (9, 6, *C3), "output": (10, 7056)},
        71_218,
    ),
    (
        "cnn3",
        {"variant": 4},
        {"conv1": (1, 3, *C3), "conv2": (6, 1, *C3), "output": (10, 4704)},
        47_131,
    ),
    ("mlp", {}, {"fc1": (100, 64), "output": (10, 100)}, 7_510),
    (
        "mlp",
        {"inputs": (3, 2, 2), "hidden": (20, 5), "classes": 2},
        {"fc1": (20, 12), "fc2": (5, 20), "output": (2, 5)},
        377,
    ),
]

ACTIVATIONS = {
    "lenet": ("ReLU", 4),
    "alexnet-mo22": ("ReLU", 7),
    "vgg9": ("ReLU", 8),
    "textclf": ("ReLU", 3),
    "alexnet-mo21": ("ReLU", 4),
    "vgg11net": ("ReLU", 10),
    "fcnet": ("ReLU", 8),
    "dlnet": ("Sigmoid", 4),
    "deep-leakage": ("Sigmoid", 3),
    "alexnet-32": ("ReLU", 6),
    "vgg16-gn": ("ReLU", 14),
    "cnn3": ("Tanh", 2),
    "mlp": ("ReLU", 1),
}

POOLS = {
    "lenet": 2,
    "alexnet-mo22": 2,
    "vgg9": 2,
    "textclf": 2,
    "alexnet-mo21": 3,
    "vgg11net": 3,
    "alexnet-32": 3,
    "vgg16-gn": 3,
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
    kind, count = ACTIVATIONS[name]
    known = {"ReLU", "Sigmoid", "Tanh", "LeakyReLU", "Identity"}
    assert [k for k in found if k in known] == [kind] * count
    assert sum(k.startswith("MaxPool") for k in found) == POOLS.get(name, 0)
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
