"""Flower's mods and NVFlare's filters, as they are installed, on messages of small models."""

import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.dp_audit.game.hypotheses import Hypotheses, reproducible
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.audits.dp_audit.mechanisms import load_mechanism
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.array_changes import (
    ArrayChange,
    array_changes,
    verdict_of_untouched,
)
from gradaudit.audits.dp_audit.middleware.payload import Form, Layout, owner_of
from gradaudit.errors import AuditError, UsageError

DELTA = 1e-5
LOCAL = "flower:flwr.clientapp.mod:LocalDpMod?clipping_norm=1&sensitivity={}&epsilon={}&delta=1e-5"
FIXED = "flower:flwr.clientapp.mod:fixedclipping_mod?clipping_norm={}"
SIZES = "flower:flwr.clientapp.mod:arrays_size_mod"
FILTERS = "nvflare:nvflare.app_common.filters."


def spread(sensitivity: float, epsilon: float) -> float:
    """What LocalDpMod makes of what it is told."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


class Model(nn.Module):
    """Of every kind of array: matrices, one without dimensions, running statistics, indices."""

    def __init__(self, *, ids: bool = False) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(11, 8), nn.BatchNorm1d(8)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        if ids:
            self.register_buffer("position_ids", torch.arange(4)[None])

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (records, 8)."""
        scaled: Tensor = self.logit_scale * self.norm(self.linear(inputs))
        return scaled


def layout(*, ids: bool = False) -> Layout:
    torch.manual_seed(0)
    return Layout.of(Model(ids=ids).state_dict())


def installed(text: str, *, ids: bool = False) -> Middleware:
    mechanism = load_mechanism(text)
    assert isinstance(mechanism, Middleware)
    return mechanism.receiving(layout(ids=ids))


def update(of: Layout, length: float, seed: int = 0) -> Tensor:
    """Of all real numbers, with every count one more."""
    real = of.where(of.real)
    made = torch.randn(of.elements, generator=torch.Generator().manual_seed(seed)).double()
    return torch.where(real, made * length / made[real].norm(), 1.0)


def by_key(text: str, length: float = 5.0) -> dict[str, ArrayChange]:
    mechanism = installed(text)
    return {
        change.key: change
        for change in array_changes(mechanism, update(mechanism.layout, length), 1)
    }


@pytest.mark.parametrize("form", ["weights", "differences"])
def test_a_message_tells_of_the_update_that_it_was_made_of(form: Form) -> None:
    received = layout(ids=True)
    given = update(received, 1.0)
    payload = received.payload(given, form)
    kinds = {key: (array.dtype, array.shape) for key, array in received.received.items()}
    assert {key: (array.dtype, array.shape) for key, array in payload.arrays.items()} == kinds
    torch.testing.assert_close(received.update(payload), given.float(), rtol=0, atol=1e-6)
    counts = payload.arrays["norm.num_batches_tracked"]
    assert (counts, kinds["norm.num_batches_tracked"]) == (1, (np.dtype("int64"), ()))


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("a.weight", "a"),
        ("a.b.weight", "a.b"),
        ("a.parametrizations.weight.original0", "a"),
        ("ab.weight", None),
        ("scale", "(model)"),
    ],
)
def test_an_array_belongs_to_the_innermost_layer_that_holds_it(key: str, owner: str) -> None:
    assert owner_of(key, ["(model)", "a", "a.b"]) == owner
    assert owner_of("scale", ["a"]) is None


def test_the_law_of_local_dp_is_that_of_its_messages() -> None:
    mechanism = installed(LOCAL.format(2, 1))
    given = update(mechanism.layout, 5.0)
    law = mechanism.law(1)
    assert law.scale == pytest.approx(spread(2, 1))
    assert set(np.flatnonzero(law.bare)) == {
        mechanism.layout.places[key].start for key in ("logit_scale", "norm.num_batches_tracked")
    }
    np.random.seed(0)  # noqa: NPY002 - what the mod draws from
    sent = torch.stack(
        [mechanism.release(given[None].float(), torch.Generator()) for _ in range(400)]
    )
    clip = torch.where(law.bare, 1.0, 1 / given.norm())
    torch.testing.assert_close(law.noiseless(given, given[None][:0]), clip * given)
    z = (sent.double() - clip * given)[:, ~law.bare] / spread(2, 1)
    assert abs(float(z.mean())) < 4 / math.sqrt(z.numel())
    assert float(z.std()) == pytest.approx(1, abs=4 / math.sqrt(2 * z.numel()))


def test_noise_on_whole_numbers_is_cut_off_and_follows_no_known_law() -> None:
    """Noise of 0.4 changes a whole number of -1, 0 or 1 now and then: it is not untouched."""
    text = LOCAL.format(0.4 / spread(1, 1), 1).replace("norm=1", "norm=1000")
    mechanism = load_mechanism(text).receiving(layout(ids=True))
    assert mechanism.known.sigma == pytest.approx(0.4)
    assert mechanism.law(1) is None
    assert mechanism.promise("replace", 1, 10, DELTA) is None
    real = mechanism.layout.where(mechanism.layout.real)
    null = torch.zeros(mechanism.layout.elements).masked_fill(real, 0.01)
    ids = mechanism.layout.where(["position_ids"])
    other = null.masked_fill(ids, 1.0)
    looked = array_changes(mechanism, other, 1)
    game = Hypotheses(null, other[None], null[None][:0])
    assert verdict_of_untouched(mechanism, game, looked) is None


@pytest.mark.parametrize("zero", [False, True], ids=["random", "zero"])
def test_no_update_is_played_as_one_next_to_nothing_where_the_law_is_known(zero: bool) -> None:
    of = layout()
    if zero:
        of = Layout({key: array * 0 for key, array in of.received.items()})
    moved = of.payload(of.smallest, "weights").arrays
    assert sum(int((moved[key] != of.received[key]).sum()) for key in moved) == 1
    assert 0 < of.smallest.norm() < 1e-9
    mechanism, sigma = installed(LOCAL.format(2, 1)).receiving(of), spread(2, 1)
    np.random.seed(0)  # noqa: NPY002 - what the mod draws from
    sent = of.update(mechanism.sent(torch.zeros(of.elements))).double()
    noisy = sent[~of.where(["logit_scale", "norm.num_batches_tracked"])]
    assert noisy.std() == pytest.approx(sigma, rel=4 / math.sqrt(2 * len(noisy)))
    assert noisy.mean() == pytest.approx(0, abs=4 * sigma / math.sqrt(len(noisy)))


@pytest.mark.parametrize(("relation", "moved"), [("remove", 1.0), ("replace", 2.0)])
def test_exact_epsilon_goes_by_the_clip_and_not_by_the_sensitivity_told(
    relation: str, moved: float
) -> None:
    honest = installed(LOCAL.format(2, 1)).promise(relation, 1, 100, DELTA)
    assert honest.mu == pytest.approx(moved / spread(2, 1))
    assert honest.epsilon == epsilon_gaussian(honest.mu, DELTA) < 1
    loud = installed(LOCAL.format(1e-4, 10)).promise(relation, 1, 100, DELTA)
    # δ(ε) is near Φ(μ/2 − ε/μ) where ε is large, which is δ at ε = μ²/2 + 4.2649 μ
    assert loud.epsilon == pytest.approx(loud.mu**2 / 2 + 4.2649 * loud.mu, rel=1e-6)
    assert loud.epsilon == pytest.approx(2.131e8 * moved**2, rel=1e-3)


def test_every_array_of_a_local_dp_message_is_told() -> None:
    found = by_key(LOCAL.format(1e-4, 10))
    assert {key for key, change in found.items() if change.untouched} == {
        "logit_scale",
        "norm.num_batches_tracked",
    }
    factor = 1 / update(layout(), 5.0).norm()
    for key, change in found.items():
        if change.untouched:
            assert (change.ratio, change.noise, change.clipped) == (pytest.approx(1), 0, False)
            assert (change.carries_on, change.words) == (True, UNTOUCHED)
        else:
            assert change.ratio == pytest.approx(float(factor), rel=1e-3), key
            assert change.noise == pytest.approx(spread(1e-4, 10), rel=0.3)
            assert (change.clipped, change.words) == (True, "clipped, under noise")


PERCENTILE = FILTERS + "percentile_privacy:PercentilePrivacy?gamma=0.01"
SVT = FILTERS + "svt_privacy:SVTPrivacy?fraction=0.5&gamma=0.1&epsilon=1"
EXCLUDE = FILTERS + "exclude_vars:ExcludeVars?exclude_vars="
UNTOUCHED = "leaves as training made it"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (FIXED.format(0.5), "linear.weight", "clipped, no noise"),
        (FIXED.format(0.5), "logit_scale", UNTOUCHED),
        (FIXED.format(50), "linear.weight", UNTOUCHED),
        (SIZES, "linear.weight", UNTOUCHED),
        (EXCLUDE + "norm", "norm.weight", "does not leave"),
        (EXCLUDE + "nothing", "norm.weight", UNTOUCHED),
        (PERCENTILE, "linear.weight", "clipped, no noise"),
        (PERCENTILE, "logit_scale", UNTOUCHED),
        (SVT, "logit_scale", UNTOUCHED),
        (
            FILTERS + "convert_weights:ConvertWeights?direction=diff_to_weights",
            "norm.weight",
            UNTOUCHED,
        ),
    ],
)
def test_installed_middleware_is_told_key_by_key(text: str, key: str, words: str) -> None:
    assert by_key(text)[key].words == words


def test_what_training_left_as_it_was_carries_nothing_on() -> None:
    mechanism = installed(SIZES)
    given = torch.where(mechanism.layout.where(["linear.weight"]), 0.5, 0.0).double()
    found = {change.key: change for change in array_changes(mechanism, given, 1)}
    assert [key for key, change in found.items() if change.carries_on] == ["linear.weight"]
    assert found["norm.weight"].ratio is None


def test_a_mod_of_legacy_messages_releases_what_one_of_todays_does() -> None:
    """flwr.client.mod reads another format, and LocalDpMod of either has one law."""
    spec = "mod:LocalDpMod?clipping_norm=1&sensitivity=2&epsilon=1&delta=1e-5"
    layout = Layout({"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)})
    update, released = torch.arange(8.0), []
    for side in ("client", "clientapp"):
        mechanism = load_mechanism(f"flower:flwr.{side}.{spec}")
        assert isinstance(mechanism, Middleware)
        bound = mechanism.receiving(layout)
        with reproducible(1, update.device) as generator:
            released.append(bound.release(update[None], generator))
        assert bound.known is not None
        assert bound.known.claim == (1.0, 1e-5)
    torch.testing.assert_close(*released)


def test_untouched_arrays_decide_only_where_a_known_law_leaves_them() -> None:
    """And where they tell the neighbours apart; what unknown code left may change the next time."""
    for text, lawful in ((LOCAL.format(2, 1), True), (FIXED.format(0.5), False)):
        mechanism = installed(text)
        first, second = update(mechanism.layout, 5.0), update(mechanism.layout, 5.0, seed=1)
        alike = second.clone()
        at = mechanism.layout.where(["logit_scale"])
        alike[at] = first[at]
        looked = array_changes(mechanism, first, 1)
        assert {change.key: change for change in looked}["logit_scale"].untouched
        for other, known in ((second, lawful), (alike, False)):
            pair = Hypotheses(first, other[None], first[None][:0])
            found = verdict_of_untouched(mechanism, pair, looked)
            assert (found is not None) is known
            if found is not None:
                assert (found.epsilon, found.reason.split()[0]) == (math.inf, "logit_scale")


MINE = """
import sys

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

def changed(change):
    def mod(message, context, call_next):
        answer = call_next(message, context)
        arrays = {k: Array(np.asarray(v)) for k, v in change(answer.content["arrays"]).items()}
        answer.content["arrays"] = ArrayRecord(arrays)
        return answer
    return mod

shapes = changed(lambda record: {k: a.numpy().ravel() for k, a in record.items()})
nan = changed(lambda record: {k: a.numpy() * np.float32("nan") for k, a in record.items()})
words = changed(lambda record: {k: np.full(a.numpy().shape, "x") for k, a in record.items()})
extra = changed(lambda record: {**{k: a.numpy() for k, a in record.items()}, "more": np.ones(1)})

def empty(message, context, call_next):
    answer = call_next(message, context)
    answer.content = RecordDict()
    return answer

def silent(message, context, call_next):
    call_next(message, context)

def number(sigma: float):
    return sigma

def leaving(message, context, call_next):
    sys.exit("no time")
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("mods") / "mine.py"
    file.write_text(MINE)
    return f"flower:{file}:"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shapes", r"sends 'logit_scale' in the shape \(1,\) instead of \(\)"),
        ("nan", "sends numbers in 'logit_scale' that are not finite"),
        ("words", "sends 'logit_scale' as <U1, which is no real numbers"),
        ("extra", "sends 'more', which the model does not hold"),
        ("empty", "leaves no arrays in the message"),
        ("silent", "returns a NoneType; a mod returns"),
        ("leaving", "fails with SystemExit: no time"),
        (FIXED.partition("?")[0], "refuses: fixedclipping_mod requires .*clipping_norm"),
        (
            LOCAL.format(2, 1),
            r"fails on position_ids \(int64 1×4\): .*; leave out what is no weight with --unsent",
        ),
    ],
)
def test_a_message_that_cannot_be_looked_at_is_told(name: str, said: str, mine: str) -> None:
    text = name if ":" in name else mine + name
    mechanism = installed(text, ids=text.startswith(LOCAL.partition("?")[0]))
    with pytest.raises(AuditError, match=said) as caught:
        mechanism.sent(update(mechanism.layout, 5.0))
    assert "\n" not in str(caught.value)


def test_a_mod_of_no_known_law_that_fails_on_no_update_says_what_to_play() -> None:
    with pytest.raises(AuditError, match=r"changes nothing.*play --relation replace"):
        installed(FIXED.format(1)).sent(torch.zeros(layout().elements))


def local(epsilon: float | str, delta: float = 1e-5, sensitivity: float = 1) -> str:
    return LOCAL.format(sensitivity, epsilon).replace("delta=1e-5", f"delta={delta}")


def test_a_law_is_known_only_where_the_formula_gives_noise() -> None:
    assert load_mechanism(local(1, delta=1.25)).law(1) is None
    assert load_mechanism(local(1)).law(1) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (local(0), "for epsilon=0 and delta=1e-05: give epsilon above 0 and delta above 0"),
        (local(1, delta=0), "for epsilon=1 and delta=0: give epsilon"),
        (local(1, delta=2), "for epsilon=1 and delta=2: give epsilon"),
        (local(1, sensitivity=-1), "The sensitivity should be a non-negative value"),
        (local("x"), "epsilon='x' is not a number"),
        ("number?sigma=1", "makes a float, which is no mod"),
        ("flower:flwr.clientapp.mod:LocalDpMod", "'clipping_norm' is missing"),
        ("flower:flwr.clientapp.mod:LocalDp", "did you mean 'LocalDpMod'"),
        ("flower:nowhere.at_all:mod", "No module named 'nowhere'"),
        ("flower:", "--mechanism flower: names nothing; write flower:MODULE:NAME"),
        ("nvflare", "--mechanism nvflare: names nothing; write nvflare:MODULE:NAME"),
        ("nvflare:nvflare.apis.shareable:Shareable", "makes a Shareable, which is no filter"),
        ("nvflare:nvflare.app_common.filters.svt_privacy:SVT", "it defines: SVTPrivacy"),
    ],
)
def test_wrong_middleware_is_told_in_one_line(text: str, said: str, mine: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load_mechanism(mine + text if text.startswith("number") else text)
    assert str(caught.value).startswith("--mechanism ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("extra", "package"), [("flower", "flwr"), ("nvflare", "nvflare")])
def test_a_missing_framework_is_told_with_its_extra(
    extra: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flwr.app", "nvflare.apis.filter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        UsageError, match=rf"{package} is not installed; install gradaudit\[{extra}\]"
    ):
        load_mechanism(f"{extra}:some.module:Name")
