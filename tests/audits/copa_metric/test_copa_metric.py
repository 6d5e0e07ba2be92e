"""copa-metric: the paper's table 1, degenerate models, bounds, and a reason for every gap."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.copa_metric import CopaMetric, CopaOptions
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.executors.stopping import TimeIsUp
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, choose_layers
from gradaudit.progress import Silent
from gradaudit.ranks import copa_metric as model
from gradaudit.ranks.convolution import LayerRank, convolution_rank
from gradaudit.report import Measurement
from gradaudit.run.runner import measured
from gradaudit.subject import Subject
from gradaudit.zoo import build

TABLE_1 = {1: -2266.5, 2: -1995.0, 3: 0.0, 4: -2146.0}


def subject_of(model: nn.Module, inputs: Tensor, **settings: Any) -> Subject:
    target = Target(model, CrossEntropy())
    records = Records(inputs=inputs, labels=torch.arange(len(inputs)) % 2)
    return Subject((target,), records, settings.pop("layers", target.layers), **settings)


def measure(subject: Subject, **options: Any) -> dict[tuple[str, str | None], Measurement]:
    rows = list(CopaMetric(CopaOptions(**options)).run(subject, Silent()))
    assert len({row.key for row in rows}) == len(rows)
    return {(row.metric, row.layer): row for row in rows}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(build_model: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_model()


def small(*, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2),
            activation(),
            nn.Conv2d(4, 3, 2),
            activation(),
            nn.Flatten(),
            nn.Linear(12, 2),
        )
    )


@pytest.mark.parametrize("variant", TABLE_1)
def test_table_1_on_random_inputs(variant: int) -> None:
    rows = measure(subject_of(seeded(lambda: build("cnn3", variant=variant)), drawn(1, 3, 32, 32)))
    c = rows["c", None]
    assert c.value == TABLE_1[variant]
    assert c.interval is None
    assert c.details["convolutions"] == ["conv1", "conv2"]
    assert "architectural design" in str(c.details["advice"])


def test_rows_of_a_layer_agree() -> None:
    rows = measure(subject_of(small(), drawn(2, 2, 8, 8)))
    for layer, inputs in (("0", 2 * 64), ("2", 4 * 9)):
        rank, deficit = rows["rank", layer].value, rows["rank_deficit", layer].value
        assert rank is not None
        assert rows["inputs", layer].value == inputs
        assert deficit == inputs - rank
        assert rows["rank_share", layer].value == rank / inputs
    deficits = [rows["rank_deficit", layer].value or 0 for layer in ("0", "2")]
    assert rows["c", None].value == -(deficits[0] + 0.5 * deficits[1])


def u_by_autograd(model: nn.Sequential, index: int, record: Tensor) -> Tensor:
    """U of a convolution in a Sequential, from the real record, by automatic differentiation."""
    model = model.double()
    layer, before, behind = model[index], model[:index], model[index + 1 :]
    x = before(record.double()).detach()
    weight = layer.weight.detach()

    def z(w: Tensor, inputs: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": w}, (inputs,))

    def loss(outputs: Tensor) -> Tensor:
        return CrossEntropy().per_record(behind(outputs), torch.tensor([0])).sum()

    delta = torch.func.grad(loss)(z(weight, x))
    gradient = torch.func.grad(lambda w, inputs: (z(w, inputs) * delta).sum())
    w_part = torch.func.jacrev(z, argnums=1)(weight, x).reshape(-1, x.numel())
    nabla = torch.func.jacrev(gradient, argnums=1)(weight, x).reshape(-1, x.numel())
    rows = torch.cat([w_part, nabla])
    lengths = rows.norm(dim=1, keepdim=True)
    return rows[lengths.squeeze(1) > 1e-15] / lengths[lengths > 1e-15][:, None]


def degenerate() -> nn.Module:
    """What training leaves behind: zero and duplicate filters, channels that never fire."""
    model = small(activation=nn.ReLU)
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].weight[1] = model[0].weight[2]
        model[0].bias[3] = -100
        model[2].bias[0] = -100
    return model


@pytest.mark.parametrize("method", ["auto", "dense"])
@pytest.mark.parametrize("make", [small, degenerate])
def test_ranks_are_those_of_u(make: Any, method: str) -> None:
    inputs = drawn(1, 2, 8, 8)
    rows = measure(subject_of(make(), inputs), method=method)
    for layer in (0, 2):
        expected = int(torch.linalg.matrix_rank(u_by_autograd(make(), layer, inputs), rtol=1e-10))
        assert rows["rank", str(layer)].value == expected


def test_every_layer_names_method_tolerance_and_gaps() -> None:
    subject = subject_of(small(), drawn(2, 2, 8, 8))
    rows = measure(subject, method="structured")
    details = rows["rank", "0"].details
    assert details["method"] == "structured"
    assert details["bound"] == rows["rank", "0"].value
    assert details["inputs_read"] == 2 * 49
    for part in ("filters", "output_gradients"):
        gap: Any = details[part]
        assert gap["largest_dropped"] <= gap["tolerance"] < gap["smallest_kept"]
    assert measure(subject, method="dense")["rank", "0"].details["singular_values"]


def test_a_bound_stands_in_the_interval_and_claims_the_smaller_deficit() -> None:
    subject = subject_of(seeded(lambda: build("cnn3", variant=3)), drawn(1, 3, 32, 32))
    bounded = measure(subject, method="structured", work=1e-3)
    for layer, truth in (("conv1", 3072), ("conv2", 5400)):
        row = bounded["rank", layer]
        assert row.details["method"] == "bound"
        assert row.interval is not None
        assert row.interval[0] < truth == row.interval[1] == row.value
        assert bounded["rank_deficit", layer].value == 0
    c = bounded["c", None]
    assert c.value == 0
    assert c.interval is not None
    assert c.interval[0] < 0


def test_several_records_give_mean_minimum_and_maximum() -> None:
    """One record silences every channel of the first convolution, the other none."""
    model = small(activation=nn.ReLU)
    with torch.no_grad():
        model[0].weight.abs_()
        model[0].bias.fill_(0.1)
    inputs = torch.stack([-5 * torch.ones(2, 8, 8), drawn(2, 8, 8).abs()])
    deficit = measure(subject_of(model, inputs))["rank_deficit", "0"]
    alone = [
        measure(subject_of(model, inputs[i : i + 1]))["rank_deficit", "0"].value for i in (0, 1)
    ]
    assert deficit.n == 2
    assert None not in alone
    silent, loud = alone
    assert silent is not None
    assert loud is not None
    assert silent > loud
    assert deficit.value == (silent + loud) / 2
    assert deficit.interval == (loud, silent)


def test_samples_and_records_limit_each_other() -> None:
    inputs = drawn(5, 2, 8, 8)
    assert measure(subject_of(small(), inputs))["rank", "0"].n == 2
    assert measure(subject_of(small(), inputs), records=3)["rank", "0"].n == 3
    assert measure(subject_of(small(), inputs, samples=1), records=3)["rank", "0"].n == 1
    assert measure(subject_of(small(), inputs, samples=5), records=3)["rank", "0"].n == 3


def test_other_layers_get_a_reason() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3),
            nn.GroupNorm(1, 3),
            nn.ConvTranspose2d(3, 2, 2),
            nn.Flatten(),
            nn.Linear(98, 2),
        )
    )
    rows = measure(subject_of(model, drawn(1, 2, 8, 8)))
    reasons = {layer: rows["rank_deficit", layer].reason or "" for layer in ("1", "2", "4")}
    assert reasons["1"] == "GroupNorm is no convolution"
    assert reasons["2"].startswith("a transposed convolution")
    assert reasons["4"].startswith("fully connected: its gradient gives its input in closed form")
    assert rows["rank", "0"].status == "measured"


def test_pooling_leaves_ranks_and_skips_c() -> None:
    layers = [nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2)]
    rows = measure(subject_of(nn.Sequential(*layers), drawn(1, 2, 8, 8)))
    assert rows["rank", "0"].status == "measured"
    assert rows["c", None].status == "skipped"
    assert "3 reads 0 through pooling" in (rows["c", None].reason or "")


def test_c_needs_every_convolution() -> None:
    model = small()
    target = Target(model, CrossEntropy())
    rows = measure(subject_of(model, drawn(1, 2, 8, 8), layers=choose_layers(target.layers, ["0"])))
    assert set(rows) == {
        (metric, "0") for metric in ("rank", "inputs", "rank_deficit", "rank_share")
    } | {("c", None)}
    assert rows["c", None].reason == "2 has no rank: left out of this audit, or frozen"


def test_what_dense_cannot_hold_is_skipped_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradaudit.ranks.convolution.MOST_ELEMENTS", 10_000)
    rows = measure(subject_of(small(), drawn(1, 2, 8, 8)), method="dense")
    assert "use --method auto" in (rows["rank_deficit", "0"].reason or "")
    assert rows["rank_deficit", "2"].status == "measured"
    assert rows["c", None].status == "skipped"


class Wired(nn.Module):
    """A convolution used twice, one never, one on the slices of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.never = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3)
        self.slices = nn.Conv2d(1, 1, 3)
        self.head = nn.Linear(72, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x).tanh())
        outputs: Tensor = self.head(self.slices(x.transpose(0, 1)).reshape(1, -1))
        return outputs


def test_uses_that_u_is_not_defined_for_get_a_reason() -> None:
    rows = measure(subject_of(seeded(Wired), drawn(1, 2, 8, 8)))
    reasons = {name: rows["rank_deficit", name].reason for name in ("twice", "never", "slices")}
    assert reasons == {
        "twice": "used 2 times a record: its gradients add up",
        "never": "not used in the forward pass",
        "slices": "applied to an input of shape (2, 1, 8, 8) for one record",
    }


def test_weights_that_are_not_finite_are_an_error() -> None:
    model = small()
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(AuditError, match="are not finite"):
        measure(subject_of(model, drawn(1, 2, 8, 8)))


@pytest.mark.parametrize(("ranks", "records"), [(0, {}), (1, {"0": 1}), (3, {"0": 2, "2": 1})])
def test_ranks_that_were_done_are_told_where_time_is_up(
    monkeypatch: pytest.MonkeyPatch, ranks: int, records: dict[str, int]
) -> None:
    left = iter(range(ranks))

    def slow(*facts: Any, **options: Any) -> LayerRank:
        if next(left, None) is None:
            raise TimeIsUp
        return convolution_rank(*facts, **options)

    subject = subject_of(small(), drawn(2, 2, 8, 8))
    whole = measure(subject, records=2)
    monkeypatch.setattr(model, "convolution_rank", slow)
    outcome = measured(subject, CopaMetric(CopaOptions(records=2)), Silent())
    found = {(row.metric, row.layer): row for row in outcome.part.rows}
    assert not outcome.whole
    assert found.keys() == whole.keys()
    for (metric, layer), row in found.items():
        if layer in records:
            assert (row.value, row.n) == (whole[metric, layer].value, records[layer])
        else:
            assert row.left_out


def test_a_model_without_convolutions_is_not_applicable() -> None:
    with pytest.raises(NotApplicable, match="no convolution modules"):
        measure(subject_of(nn.Linear(4, 2), drawn(2, 4)))


def test_the_default_limits_flag_full_rank_and_nothing_less() -> None:
    limits = {metric.id: metric for metric in CopaMetric.metrics}
    assert limits["rank_deficit"].riskier == "lower"
    assert limits["rank_deficit"].warning == 1
    assert limits["c"].riskier == "higher"
    assert limits["c"].error is not None
    assert -1 / 100 < limits["c"].error < 0


def test_the_cost_of_a_dry_run_grows_with_records_and_convolutions() -> None:
    subject = subject_of(small(), drawn(2, 2, 8, 8))
    one, four = (CopaMetric(CopaOptions(records=count)).gradients(subject) for count in (1, 4))
    assert 0 < 4 * one == four


def test_fully_connected_layers_say_what_the_closed_form_needs() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, 3, 2, stride=2)
            self.each = nn.Linear(3, 3)
            self.unused = nn.Linear(3, 3)
            self.no_bias = nn.Linear(12, 4, bias=False)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.each(self.patches(x).flatten(2).transpose(1, 2)).tanh()
            return self.head(self.no_bias(tokens.flatten(1)).tanh())  # type: ignore[no-any-return]

    rows = measure(subject_of(seeded(Tokens), drawn(1, 1, 4, 4)), records=1)
    reasons = {name: str(rows["rank_deficit", name].reason) for name in ("each", "no_bias", "head")}
    assert "at 4 positions" in reasons["each"]
    assert "up to a factor" in reasons["no_bias"]
    assert reasons["head"].endswith("in closed form (COPA, lemma A.1)")
    assert "not called" in str(rows["rank_deficit", "unused"].reason)
