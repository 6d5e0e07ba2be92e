"""From the command to the function that computes a number it is at most thirteen calls."""

import sys
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import gradaudit
from gradaudit.zoo import build
from tests.command_line import run
from tests.job_folders import chain, dp, nvflare_job

MOST, SEEN = 13, 20
PACKAGE = str(Path(gradaudit.__file__).parent)
TABLE = "-m zoo:mlp?inputs=10 -d diabetes --seed 7 --samples 60 --jobs 1"
SMALL = "-m zoo:mlp?inputs=10&activation=tanh -d diabetes --seed 7 --jobs 1"
PICTURES = "-m zoo:cnn3?shape=1x8x8&activation=tanh -d digits --seed 7 --jobs 1"
ATTACK = f"{TABLE} --batches 1 --restarts 1 --method dlg:iterations=1"
FEW = "--family logistic --repeats 1"
GAME = f"{TABLE} -a sex {FEW} --shadow 40 --batches 10 --trials 20"
HERE = Path(__file__)
UPDATE = "update.safetensors"
NUMBERS = {
    "attack reconstruct": (ATTACK, "attacks.reconstruction.matching.lbfgs:_Search.tick"),
    "attack labels": (ATTACK, "attacks.reconstruction.matching.lbfgs:_Search.tick"),
    "attack tracing": (
        f"{TABLE} --participants 2 --repeats 1 --restarts 1 --method dlg:iterations=1",
        "attacks.reconstruction.matching.lbfgs:_Search.tick",
    ),
    "attack attribute": (GAME, "families.base:Family.fit_on"),
    "attack property": (GAME, "families.base:Family.fit_on"),
    "attack distribution": (GAME, "families.base:Family.fit_ordered"),
    "attack user": (
        f"-m zoo:mlp?inputs=10 -d {HERE}:visits --seed 7 --jobs 1 {FEW} --trials 4 "
        "--batch-size 2 --shadow 40 --batches 20 --rounds 1",
        "audits.attack_inference.user:candidate_posterior",
    ),
    "attack record": (
        f"{TABLE} --batch-size 4 --updates 10 --candidates 20 --shadow 20",
        "audits.attack_record.likelihood_ratio:InnerProducts.projections",
    ),
    "attack attribution": (
        f"{TABLE} --repeats 1 --others 1 --rounds 2 --batch-size 4",
        "audits.attack_attribution.recovery:recovered",
    ),
    "attack table": (
        f"-m {HERE}:rows -d diabetes --seed 7 --jobs 1 --batches 1 --batch-size 2 "
        "--method row-space",
        "audits.attack_table.search:CandidateSearch._step",
    ),
    "attack text": (
        f"-m {HERE}:reader -d {HERE}:sentences --seed 7 --jobs 1 --batches 1 --batch-size 1",
        "audits.attack_text.span:Span.of",
    ),
    "observe": (f"{TABLE} --update {UPDATE}", "attacks.reading.base:linear_of"),
    "attack malicious-server": (PICTURES, "audits.attack_malicious_server.check:signs_of"),
    "copa-metric": (PICTURES, "ranks.copa_metric:copa_metric"),
    "dp-audit": (
        f"{TABLE} -a sex --mechanism dp:clip=1,sigma=2 --trials 100 --restarts 1 --iterations 2",
        "audits.dp_audit.law.bounds:epsilon_lower",
    ),
    "floor": (
        f"{SMALL} --samples 4 --sigma 0.1",
        "audits.floor.van_trees:van_trees_bound",
    ),
    "job": ("JOB", "audits.job.epsilon:NoiseStrength.epsilon"),
    "forward": (f"{PICTURES} --samples 8", "audits.forward.measure:activation_information"),
    "sensitivity": (f"{PICTURES} --samples 2", "gradients.sources:Tangents.norms"),
    "subspace": (f"{TABLE} -a sex", "audits.subspace.comparing:quick_angles"),
    "tradeoff": (
        f"{TABLE} --defense dp:clip=1,sigma=0.01 --rounds 1 --batches 2 --participants 2 "
        "--method dlg:optimiser=adam --iterations 1 --repeats 1",
        "attacks.reconstruction.closeness:relative_error",
    ),
    "vinfo": (
        f"{TABLE} -a sex --samples 200 --batches 10 --batch-size 4 --family forest "
        "--repeats 2 --no-correlation",
        "audits.vinfo.v_information:v_information",
    ),
}


def visits() -> dict[str, object]:
    """Records of 20 users, 8 of each."""
    draws = torch.Generator().manual_seed(0)
    users = [f"{i // 8}" for i in range(160)]
    labels = torch.randint(2, (160,), generator=draws)
    return {"inputs": torch.randn(160, 10, generator=draws), "labels": labels, "users": users}


def sentences() -> tuple[Tensor, Tensor]:
    """Texts of four of 30 tokens."""
    draws = torch.Generator().manual_seed(0)
    return torch.randint(30, (40, 4), generator=draws), torch.randint(2, (40,), generator=draws)


def rows() -> nn.Module:
    """A model of ten columns with two layers."""
    return nn.Sequential(
        nn.Linear(10, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 2)
    )


def reader() -> nn.Module:
    """A model of such texts."""
    return nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 8), nn.Flatten(), nn.Linear(32, 2))


def calls_to(code: CodeType, frame: FrameType | None) -> int:
    """How many functions of the package are under way, from the command's own on."""
    calls = 0
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            calls += 1
            if frame.f_code.co_qualname in ("audit_command.<locals>.command", "_job"):
                return calls
        frame = frame.f_back
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("command", NUMBERS)
def test_a_number_is_few_calls_away_from_its_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = build("mlp", inputs=(10,)) if command == "observe" else nn.Identity()
    save_file({name: torch.ones_like(p) for name, p in model.named_parameters()}, UPDATE)
    if command == "job":
        pytest.importorskip("nvflare")
        nvflare_job(tmp_path / "JOB", [chain(dp())])
    options, place = NUMBERS[command]
    module, _, name = place.partition(":")
    number = reduce(getattr, name.split("."), import_module(f"gradaudit.{module}"))
    code, depths = number.__code__, [0]

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code:
            depths.append(calls_to(code, frame))
            if len(depths) > SEEN:  # the profile takes most of the time
                sys.setprofile(None)

    sys.setprofile(watch)
    try:
        ended = run(*command.split(), *options.split())
    finally:
        sys.setprofile(None)
    assert ended.status in (0, 1), ended.err
    assert 0 < max(depths) <= MOST, (max(depths), ended.err)
