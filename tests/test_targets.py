"""Targets, audits, defenses and attacks as objects in Python."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest
import torch
from command_line import HANGS
from torch import Tensor, nn

import gradaudit
from gradaudit.attacks.reconstruction import reconstructions
from gradaudit.attacks.reconstruction.closed_form import ClosedForm
from gradaudit.attacks.reconstruction.gradient_matching import DeepLeakage
from gradaudit.audits import audits
from gradaudit.audits.forward import Forward
from gradaudit.audits.sensitivity import Sensitivity
from gradaudit.audits.subspace import Subspace
from gradaudit.audits.vinfo import Vinfo
from gradaudit.defenses import defenses
from gradaudit.defenses.dp import DpNoise
from gradaudit.defenses.prune import Prune

INPUTS = torch.linspace(-1, 1, 24).reshape(12, 2)
LABELS = torch.arange(12) % 3


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()


def test_a_target_with_audits_as_objects_gives_the_report_of_the_other_call() -> None:
    audited = model()
    target = gradaudit.Target(audited, (INPUTS, LABELS), mode="train", seed=3, layers=["0", "2"])
    report = gradaudit.audit(target, [Forward(sigma2=0.5)])
    other = gradaudit.audit(
        audited,
        (INPUTS, LABELS),
        audits={"forward": {"sigma2": 0.5}},
        mode="train",
        seed=3,
        layers=["0", "2"],
    )
    assert report.measurements == other.measurements
    assert (report.target, report.provenance["audits"]) == (
        other.target,
        other.provenance["audits"],
    )


@pytest.mark.slow
def test_each_audit_is_asked_about_the_attributes_that_it_names() -> None:
    options = {"family": "logistic", "batches": 10, "repeats": 2, "batch_size": 4}
    target = gradaudit.Target("zoo:mlp?inputs=64&hidden=3", "digits", samples=200)
    both = gradaudit.audit(target, [Vinfo("ink", **options), Subspace("slant", permutations=19)])
    alone = gradaudit.audit(replace(target, attributes=["ink"]), [Vinfo(**options)])
    other = gradaudit.audit(target, [Subspace("slant", permutations=19)])
    assert both.provenance["attributes"] == ["ink", "slant"]
    assert both.select("vinfo.auroc") == alone.select("vinfo.auroc")
    assert both.select("subspace.p_value") == other.select("subspace.p_value")
    assert [row.value is not None for row in alone.select("vinfo.auroc", variant={})] == [True] * 2


def gradient_of(audited: nn.Module, rows: slice) -> tuple[Tensor, ...]:
    loss = nn.functional.cross_entropy(audited(INPUTS[rows]), LABELS[rows])
    return torch.autograd.grad(loss, list(audited.parameters()))


def test_a_target_shares_the_gradient_and_defends_it() -> None:
    audited = model().eval()
    plain = gradaudit.Target(audited, (INPUTS, LABELS)).update(INPUTS[:4], LABELS[:4])
    expected = gradient_of(audited, slice(4))
    for name, wanted in zip(dict(audited.named_parameters()), expected, strict=True):
        torch.testing.assert_close(plain[name], wanted, check_dtype=False)
    clipped = gradaudit.Target(
        audited, (INPUTS, LABELS), defenses=[DpNoise(clip=0.01, sigma=0.0, per="release")]
    ).update(INPUTS[:4], LABELS[:4])
    length = torch.cat([part.flatten() for part in clipped.values()]).norm()
    torch.testing.assert_close(length, torch.tensor(0.01), check_dtype=False)
    pruned = gradaudit.Target(audited, (INPUTS, LABELS), defenses=[Prune(0.5), "sign"])
    signs = pruned.update(INPUTS[:4], LABELS[:4])["0.weight"]
    kept = plain["0.weight"].abs() >= plain["0.weight"].abs().flatten().sort().values[4]
    assert torch.equal(signs, torch.where(kept, plain["0.weight"].sign(), 0.0).to(signs))


@pytest.mark.slow
def test_an_attack_is_called_with_a_target_and_an_update() -> None:
    torch.manual_seed(0)
    audited = nn.Sequential(nn.Linear(2, 8), nn.Sigmoid(), nn.Linear(8, 3))
    target = gradaudit.Target(audited, (INPUTS, LABELS))
    update = gradient_of(audited, slice(1))
    guess = ClosedForm()(target, update)
    torch.testing.assert_close(guess.records, INPUTS[:1], check_dtype=False)
    named = dict(zip(dict(audited.named_parameters()), update, strict=True))
    again = ClosedForm()(target, named)
    assert torch.equal(again.inputs, guess.inputs)
    matched = DeepLeakage(restarts=3, iterations=40)(target, update, labels=LABELS[:1], seed=1)
    assert matched.inputs.shape == (3, 1, 2)
    torch.testing.assert_close(matched.records, INPUTS[:1], check_dtype=False, rtol=1e-3, atol=1e-3)


def test_parts_are_found_by_the_names_of_their_classes() -> None:
    for package, known in (
        (gradaudit.audits, audits()),
        (gradaudit.defenses, defenses()),
        (gradaudit.attacks, reconstructions()),
    ):
        for part in known.values():
            assert getattr(package, part.__name__) is part
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            getattr(package, "Nothing")  # noqa: B009 - as a user's import asks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sensitivity(probs=3), r"^Sensitivity: no option 'probs' \(did you mean 'probes'"),
        (lambda: Sensitivity(probes=-1), r"^Sensitivity: probes=-1: Input should be greater"),
        (lambda: DpNoise(clip=1), r"^DpNoise: no sigma; give sigma=…"),
        (lambda: DpNoise(1), "^DpNoise: takes options by name alone"),
        (lambda: Prune(2), r"^Prune: share=2: Input should be less"),
        (lambda: DeepLeakage(restarts=0), r"^DeepLeakage: restarts=0: takes 1 or more"),
        (lambda: DeepLeakage(iterations="x"), r"^DeepLeakage: iterations='x': Input should be"),
        (
            lambda: gradaudit.audit(gradaudit.Target(model(), (INPUTS, LABELS)), seed=1),
            r"^seed: describe a target; give them to Target",
        ),
        (
            lambda: ClosedForm()(gradaudit.Target(model(), (INPUTS, LABELS)), [INPUTS]),
            "^update: has 1 tensors, but the model has 6 parameters",
        ),
        (
            lambda: ClosedForm()(gradaudit.Target(model(), (INPUTS, LABELS)), {"0.weigh": INPUTS}),
            r"^update: no parameter '0.weigh' in the model \(did you mean '0.weight'",
        ),
        (
            lambda: ClosedForm()(gradaudit.Target(model(), (INPUTS, LABELS)), {"0.weight": INPUTS}),
            r"^update: 0.weight has the shape \(12, 2\), and the model's \(4, 2\)",
        ),
    ],
)
def test_faults_of_objects_are_told(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(gradaudit.UsageError, match=message):
        call()


def test_errors_are_exported() -> None:
    for name in ("AuditError", "CheckpointError", "DataError", "NotApplicable", "UsageError"):
        assert issubclass(getattr(gradaudit, name), gradaudit.GradauditError)


@pytest.mark.slow
def test_audits_and_errors_are_had_without_torch() -> None:
    code = """
        import sys, gradaudit
        from gradaudit.audits import Sensitivity
        assert Sensitivity(probes=64).options.probes == 64
        assert issubclass(gradaudit.UsageError, gradaudit.GradauditError)
        assert not {"torch", "scipy", "sklearn"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True, timeout=HANGS)
