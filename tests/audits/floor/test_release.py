"""How updates leave, what a clip bounds, and who is told no floor."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from audits.floor.dense import prior_of
from scipy.stats import chi2, norm
from torch import nn

from gradaudit.audits.floor.release import releases_of
from gradaudit.audits.floor.smoothness import jumps
from gradaudit.audits.floor.van_trees import log_chance, success
from gradaudit.defenses import Chain, parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of

NAMES = ("0.weight", "0.bias", "2.weight")


def chain(*specs: str) -> Chain:
    return Chain(tuple(map(parse_defense, specs)))


@pytest.mark.parametrize(
    ("per", "records", "fisher", "shift"),
    [
        ("record", 4, 1 / (4 * 0.25), 2 / (0.5 * 2)),
        ("sum", 4, 1 / 0.25, 2 / 0.5),
        ("mean", 4, 1 / (16 * 0.25), 2 / (0.5 * 4)),
        ("release", 1, 1 / 0.25, 2 / 0.5),
    ],
)
@pytest.mark.parametrize("clients", [1, 9])
def test_information_and_shift_by_where_the_noise_is(
    per: str, records: int, fisher: float, shift: float, clients: int
) -> None:
    """Of one of four records, clipped to 2 under σ = ½.

    A mean of nine clients, each with noise, has the noise of nine on one client's update.
    """
    noisy = chain(f"dp:clip=2,sigma=0.5,per={per}")
    (release,) = releases_of(noisy, NAMES, records, clients=clients)
    fisher, shift = fisher / clients, shift if "laplace" in per else shift / clients**0.5
    assert release.parameters == NAMES
    assert release.fisher == pytest.approx(fisher)
    assert release.shift == pytest.approx(shift)


@pytest.mark.parametrize(
    ("specs", "sigma", "told"),
    [
        (("prune:0.5", "dp:clip=1,sigma=1,per=release"), 0, "put --defense dp"),
        (("dp:clip=1,sigma=1", "dp:clip=1,sigma=1,per=release"), 0, "one dp"),
        (("dp:clip=1,sigma=1",), 0.1, "give one of them"),
        (("dp:clip=1,sigma=1,noise=laplace",), 0, "under Gaussian noise alone"),
        (("dp:clip=1,sigma=1", "perturb:steps=1,bound=0.1,step=0.1"), 0, "private values"),
    ],
)
def test_what_a_floor_cannot_know(specs: tuple[str, ...], sigma: float, told: str) -> None:
    with pytest.raises(NotApplicable, match=told):
        releases_of(chain(*specs), NAMES, 1, sigma)


def test_what_comes_after_the_noise_and_layers_without() -> None:
    (release,) = releases_of(chain("dp:clip=1,sigma=1,layers=2", "sign"), NAMES, 1)
    assert release.parameters == ("2.weight",)
    assert releases_of(chain("sign"), NAMES, 1) == ()
    assert releases_of(chain("dp:clip=1,sigma=0"), NAMES, 1) == ()


def test_a_blind_guess_is_bounded_above_its_true_chance() -> None:
    prior = prior_of(torch.zeros(6), 2 * torch.eye(6))
    for within in (0.05, 0.3, 0.9):
        chance = chi2.cdf(6 * within, 6)
        assert chance <= math.exp(log_chance(prior, within)) <= 6 * chance
    assert log_chance(prior, 1.0) == 0


def test_success_is_the_gaussian_curve() -> None:
    log_kappa = math.log(0.01)
    both = releases_of(
        chain("dp:clip=1,sigma=2,layers=0", "dp:clip=1,sigma=0.5,layers=2"), NAMES, 1
    )
    expected = norm.cdf(norm.ppf(0.01) + math.hypot(0.5, 2))
    assert success(both, log_kappa) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(NotApplicable, match="no clip"):
        success(releases_of(chain(), NAMES, 1, 0.1), log_kappa)


def test_no_attacker_at_a_gaussian_channel_succeeds_more_often_than_said() -> None:
    """X is N(0, 1), its clipped "gradient" clip(x, ±1): the posterior's best guess of x."""
    rng = np.random.default_rng(0)
    sigma, reach = 0.5, 0.3
    x = rng.standard_normal(100_000)
    seen = np.clip(x, -1, 1) + sigma * rng.standard_normal(len(x))
    hits = np.abs(seen - x) <= reach
    prior = prior_of(torch.zeros(1), torch.eye(1))
    (release,) = releases_of(chain(f"dp:clip=1,sigma={sigma}"), NAMES, 1)
    bound = success([release], log_chance(prior, reach**2))
    assert hits.mean() <= bound < 1


def roughness(*middle: nn.Module) -> dict[str, str]:
    model = nn.Sequential(nn.Linear(3, 3), *middle, nn.Linear(3, 2)).double().eval()
    view = FunctionalModel.of(Target(model, CrossEntropy()))
    records, labels = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    return jumps(view, layers_of(model), records, labels)


ATTENTION = nn.Sequential(
    nn.Linear(3, 4),
    nn.Unflatten(1, (1, 4)),
    nn.TransformerEncoderLayer(4, 2, 4, activation="gelu", batch_first=True),
    nn.Flatten(),
    nn.Linear(4, 3),
)


@pytest.mark.parametrize(
    "smooth", [nn.Tanh(), nn.GELU(), nn.ELU(), nn.CELU(2.0), nn.LayerNorm(3), ATTENTION]
)
def test_smooth_models_have_a_floor_everywhere(smooth: nn.Module) -> None:
    assert roughness(smooth) == {}


@pytest.mark.parametrize(
    ("kinked", "told"),
    [
        (nn.ReLU(), "ReLU 1 has a kink"),
        (nn.SELU(), "SELU 1 has a kink"),
        (nn.ELU(2.0), "ELU 1 has a kink"),
        (nn.Hardtanh(), "Hardtanh 1 has a kink"),
    ],
)
def test_layers_before_a_kink_have_none(kinked: nn.Module, told: str) -> None:
    found = roughness(kinked)
    assert list(found) == ["0"]
    assert found["0"].startswith(told)


class Does(nn.Module):
    def __init__(self, what: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.what(x)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (torch.round, "round"),
        (lambda x: x * (x > 0), "gt"),
        (lambda x: x + x.gather(1, x.argmax(dim=1, keepdim=True)), "argmax"),
        (lambda x: x.tanh() if x.sum() > 3 else x, "gt"),
        (lambda x: x * int(x.sum()), "_local_scalar_dense"),
        (lambda x: x + x.long(), "_to_copy"),
    ],
)
def test_what_may_jump_itself_leaves_no_layer_a_floor(
    what: Callable[[torch.Tensor], torch.Tensor], told: str
) -> None:
    found = roughness(Does(what))
    assert list(found) == ["0", "2"]
    assert f"Does 1 computes {told}," in found["2"]
