"""dp-audit of middleware: what leaves between two clients, key by key, as a user asks for it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_subject import model, table
from subjects import one, subject_of
from torch import Tensor, nn

from gradaudit.audits.contract import breaches
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.cli.perform import claim_exceeded
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.formats.html import Html
from gradaudit.formats.markdown import Markdown
from gradaudit.formats.table import Table
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement, Report
from gradaudit.run.runner import run
from gradaudit.subject import Subject

MOD = "flower:flwr.clientapp.mod:LocalDpMod?clipping_norm=1&sensitivity={}&epsilon={}&delta=1e-5"
LOUD, HONEST = MOD.format(1e-4, 10), MOD.format(2, 1)
SMALL = {"trials": 100}


class Scaled(nn.Module):
    """A classifier with a scale, running statistics and indices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(11, 2), nn.BatchNorm1d(2)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("position_ids", torch.arange(4)[None])

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (records, 2)."""
        scaled: Tensor = self.logit_scale * self.norm(self.linear(inputs))
        return scaled


def subject(module: nn.Module, *attributes: str, mode: Any = "eval", **options: Any) -> Subject:
    target = Target(module, CrossEntropy(), mode)
    return subject_of(target, table(), attributes=attributes, **options)


def rows_of(about: Subject, **options: Any) -> list[Measurement]:
    audit = DpAudit(DpAudit.Options(**{**SMALL, **options}))
    rows = list(audit.run(about, Silent()))
    assert not breaches(DpAudit, rows, [layer.name for layer in about.layers])
    return rows


ARRAYS_ONLY = """
import numpy as np
from nvflare.apis.dxo_filter import DXOFilter

class Halves(DXOFilter):
    def __init__(self):
        super().__init__(["WEIGHT_DIFF"], None)
    def process_dxo(self, dxo, shareable, fl_ctx):
        halved = {k: a / 2 for k, a in dxo.data.items() if isinstance(a, np.ndarray)}
        dxo.data = {**dxo.data, **halved}
        return dxo
"""


@pytest.mark.slow
def test_a_filter_of_numpy_arrays_alone_leaves_tensors_untouched(tmp_path: Path) -> None:
    """Each array has a row for each format that NVFlare sends; the layer's is the worse one."""
    pytest.importorskip("nvflare")
    (tmp_path / "halves.py").write_text(ARRAYS_ONLY, encoding="utf-8")
    rows = rows_of(subject(model()), mechanism=f"nvflare:{tmp_path / 'halves.py'}:Halves")
    found = {
        row.variant.get("exchange"): (row.value, one(rows, "norm_ratio", "0", **row.variant).value)
        for row in rows
        if row.metric == "untouched" and row.layer == "0" and row.variant.get("key") != "0.bias"
    }
    assert found[None] == found["pytorch"] == (1.0, pytest.approx(1.0))
    assert found["numpy"] == (0.0, pytest.approx(0.5))


SENT = {"unsent": ("position_ids",), "mechanism": LOUD, "claimed_epsilon": 10}


@pytest.fixture(scope="module")
def report() -> Report:
    return run(subject(Scaled(), mode="train"), [DpAudit(DpAudit.Options(**{**SMALL, **SENT}))])


def test_a_sensitivity_below_the_clip_is_refuted_and_the_untouched_array_named(
    report: Report,
) -> None:
    rows = report.measurements
    lower = one(rows, "epsilon_lower")
    assert lower.infinite
    assert lower.details["exceeded"] is True
    assert "logit_scale leaves as training made it" in lower.details["remark"]
    assert "The mechanism promises epsilon 8.523e+08" in lower.details["remark"]
    assert claim_exceeded(report) == "dp-audit: epsilon is infinite, claimed was 10.0"
    removed = one(rows, "epsilon_theory", relation="remove")
    assert removed.value == pytest.approx(2.131e8, rel=1e-3)
    assert removed.details["untouched"] == ["logit_scale", "norm.num_batches_tracked"]
    assert one(rows, "epsilon_pair").infinite
    for row in rows:
        assert row.details["unit"] == "client"
        assert row.details["relation"] == row.variant.get("relation", "replace")


def test_every_array_has_a_row_below_its_layer(report: Report) -> None:
    rows = report.measurements
    owners = {
        row.variant["key"]: row.layer
        for row in rows
        if row.metric == "untouched" and row.variant.keys() == {"key"}
    }
    arrays = {key: "(model)" if key == "logit_scale" else key.split(".")[0] for key in ARRAYS}
    assert owners == arrays
    headlines = {layer: one(rows, "untouched", layer) for layer in ("linear", "norm", "(model)")}
    assert [row.value for row in headlines.values()] == [0, 1, 1]
    assert headlines["norm"].details["key"] == "norm.num_batches_tracked"


ARRAYS = [key for key in Scaled().state_dict() if key != "position_ids"]


def test_formats_show_every_array(report: Report) -> None:
    for text in (
        Table().render(report),
        Markdown().render(report),
        Html().render(report).replace("<wbr>", ""),
    ):
        assert text.index("leaves as training made it") < text.index("clipped, under noise")
        for name in ("logit_scale", "norm.running_var", "float32 0-d", "int64 0-d", "float32 2×11"):
            assert name in text


@pytest.mark.slow
def test_an_honest_sensitivity_is_never_refuted_and_its_seed_gives_the_same_numbers() -> None:
    exact = epsilon_gaussian(2 / (2 * math.sqrt(2 * math.log(1.25 / 1e-5))), 1e-5)
    given = {"mechanism": HONEST, "claimed_epsilon": 1}
    rows, again = (rows_of(subject(model(), seed=1), **given) for _ in range(2))
    assert rows == again
    assert one(rows, "epsilon_lower").value <= 1
    assert one(rows, "epsilon_pair").value == pytest.approx(exact, rel=1e-3)
    assert one(rows, "epsilon_theory").value == pytest.approx(exact)
    gap = one(rows, "canary_gap")
    assert gap.value == pytest.approx(2, rel=1e-3)
    assert gap.details["alternative_value"] == "its opposite"
    claim = one(rows, "epsilon_theory").details
    assert claim["mod_claims"] == {"epsilon": 1.0, "delta": 1e-5}
    assert "the mod claims 1 at delta 1e-05" in str(claim["remark"])


MINE = """
import numpy as np
from flwr.app import Array, ArrayRecord

def noisy(message, context, call_next):
    answer = call_next(message, context)
    arrays = {k: a.numpy() for k, a in answer.content["arrays"].items()}
    noisy = {k: np.float32(a + .5 * np.random.normal(size=a.shape)) for k, a in arrays.items()}
    answer.content["arrays"] = ArrayRecord({k: Array(np.asarray(a)) for k, a in noisy.items()})
    return answer
"""


@pytest.fixture
def noisy(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return f"flower:{file}:noisy"


@pytest.mark.slow
def test_unknown_middleware_is_told_by_its_releases_alone(noisy: str) -> None:
    rows = rows_of(subject(model()), mechanism=noisy)
    lower, gap = one(rows, "epsilon_lower"), one(rows, "canary_gap")
    assert lower.value >= 0.9 * one(rows, "epsilon_ceiling").value
    assert gap.details["measured_by"] == "the release with common noise"
    assert one(rows, "epsilon_theory").status == "skipped"


def test_an_update_is_played_against_none(noisy: str) -> None:
    rows = rows_of(subject(model()), mechanism=noisy, relation="remove")
    pair = {"alternative_value": "no update", "relation": "remove", "record": "simulated"}
    for metric in ("canary_gap", "epsilon_lower"):
        assert pair.items() <= one(rows, metric).details.items()


def test_what_is_not_sent_is_not_looked_at() -> None:
    mechanism = {"mechanism": LOUD}
    whole, hidden = subject(Scaled()), subject(Scaled(), hidden=("norm",))
    rows = rows_of(hidden, **mechanism, unsent=("linear.b*", "position_ids"))
    keys = {row.variant["key"] for row in rows if "key" in row.variant}
    assert keys == {"linear.weight", "logit_scale"}
    assert "no array of it is sent" in one(rows, "untouched", "norm").reason
    with pytest.raises(UsageError, match=r"--unsent b\*: matches no array"):
        rows_of(whole, **mechanism, unsent=("b*",))
    with pytest.raises(UsageError, match="nothing is sent"):
        rows_of(whole, **mechanism, unsent=("*",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mechanism": HONEST, "domain": "free"}, "--domain: leave it out"),
        ({"mechanism": HONEST, "companions": 1}, "--companions: leave it out"),
        ({"mechanism": HONEST, "replacement": "uniform"}, "--replacement: leave it out"),
        ({"mechanism": HONEST, "record": "4"}, "--record: leave it out"),
        ({"mechanism": HONEST, "noise": "gaussian"}, "says it itself: leave --noise out"),
    ],
)
def test_options_that_do_not_fit_the_unit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rows_of(subject(model(), "sex"), **options)


def test_the_absence_of_a_client_is_played_to_a_mod_that_fails_on_no_update() -> None:
    rows = rows_of(subject(model()), mechanism=HONEST, relation="remove")
    lower, exact = one(rows, "epsilon_lower"), one(rows, "epsilon_pair")
    assert lower.details["relation"] == "remove"
    assert 0 <= lower.value <= exact.value


def test_only_mechanisms_of_records_need_an_attribute() -> None:
    with pytest.raises(NotApplicable, match="no private attribute is named"):
        rows_of(subject(model()), mechanism="dp:clip=1,sigma=1")
