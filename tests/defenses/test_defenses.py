"""Each defense against its definition, in independent float64 numpy."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from command_line import HANGS
from scipy.stats import kstest

from gradaudit.defenses import Chain, Defense, DefenseOptions, defenses, parse_defense, prune
from gradaudit.defenses.defense_chain import squared_norms
from gradaudit.defenses.prune import bounds
from gradaudit.errors import UsageError

ROWS, ELEMENTS = 6, 37


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(elements: int = ELEMENTS, seed: int = 1) -> torch.Tensor:
    return torch.randn(ROWS, elements, generator=seeded(seed), dtype=torch.float64)


def applied(spec: str, given: torch.Tensor, *, records: int = 1, seed: int = 0) -> np.ndarray:
    before = given.clone()
    done = parse_defense(spec).apply(given, records=records, generator=seeded(seed))
    assert torch.equal(given, before)
    return done.numpy()


@pytest.mark.parametrize("share", [0, 0.3, 0.5, 0.99])
def test_pruning_removes_the_smallest_magnitudes(share: float) -> None:
    given = rows()
    expected = given.numpy().copy()
    for row in expected:
        row[np.argsort(np.abs(row))[: min(round(share * ELEMENTS), ELEMENTS - 1)]] = 0
    np.testing.assert_array_equal(applied(f"prune:{share}", given), expected)


@pytest.mark.parametrize("spec", ["prune:0.5", "selective:0.5"])
def test_what_is_kept_can_be_differentiated(spec: str) -> None:
    given = rows().requires_grad_()
    kept = parse_defense(spec).apply(given, records=1, generator=seeded())
    kept.square().sum().backward()
    assert given.grad is not None
    np.testing.assert_array_equal(given.grad.numpy(), 2 * kept.detach().numpy())


@pytest.mark.parametrize("spec", ["prune:0.75", "selective:0.25"])
def test_the_share_holds_with_ties(spec: str) -> None:
    tied = torch.ones(ROWS, 40, dtype=torch.float64) * torch.tensor([1.0, -1.0]).repeat(20)
    done = applied(spec, tied)
    assert (np.count_nonzero(done, axis=1) == 10).all()
    np.testing.assert_array_equal(done[done != 0], tied.numpy()[done != 0])


@pytest.mark.parametrize("name", ["prune", "selective"])
@pytest.mark.parametrize(
    ("elements", "kept"), [(1003, 1), (1003, 10), (640, 40), (999, 61), (7, 1)]
)
@pytest.mark.parametrize("distinct", [64, 1 << 16], ids=["noughts share bits", "have their own"])
def test_few_of_many_elements_are_kept_by_their_rank(
    monkeypatch: pytest.MonkeyPatch, name: str, elements: int, kept: int, distinct: int
) -> None:
    monkeypatch.setattr(prune, "_DISTINCT", distinct)
    given = rows(elements)
    given[0] = given[0].round()  # ties
    given[1] = 0
    given[2, 5:] = 0
    share = kept / elements
    found = applied(f"{name}:{1 - share if name == 'prune' else share}", given)
    magnitudes = np.sort(np.abs(given.numpy()), axis=1)[:, ::-1]
    np.testing.assert_array_equal(
        np.sort(np.abs(found), axis=1)[:, ::-1][:, :kept], magnitudes[:, :kept]
    )
    assert (np.count_nonzero(found, axis=1) <= kept).all()
    changed = found != 0
    np.testing.assert_array_equal(found[changed], given.numpy()[changed])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_bounds_are_those_of_a_full_sort(dtype: torch.dtype) -> None:
    magnitudes = rows(503).abs().to(dtype)
    magnitudes[1, 10:] = 0  # noughts have bits of their own
    magnitudes[2] = 1
    ranked = magnitudes.sort(dim=1, descending=True).values
    for count in (1, 9, 10, 50, 313, 502):
        least, largest = bounds(magnitudes, count)
        for found, place in ((least, count - 1), (largest, count)):
            expected = ranked[:, place, None]
            assert ((found >= expected) & (found <= expected.clamp(min=1e-30))).all()


def test_pruning_goes_by_tensors_and_selection_by_the_update() -> None:
    update = {"a.weight": rows(8), "b.weight": 100 * rows(8, seed=2)}
    for spec, counts in (("prune:0.5", (4, 4)), ("selective:0.5", (0, 8))):
        chain = Chain((parse_defense(spec),))
        done = chain.apply(update, records=1, generators=lambda _i, _n: seeded())
        found = tuple(int((part != 0).sum(dim=1).max()) for part in done.values())
        assert found == counts


def test_what_is_missing_in_eval_mode_is_told() -> None:
    chain = Chain(tuple(map(parse_defense, ["dropout:0.5", "sign", "vib:0.01"])))
    missing = "dropout:0.5 does nothing, vib:0.01 draws no noise in eval mode; use --mode train"
    assert chain.idle("eval") == missing
    assert chain.idle("train") == Chain((parse_defense("sign"),)).idle("eval") == ""


NOISE = "dp:clip=1,sigma=1,per=release"


@pytest.mark.parametrize(
    ("specs", "last", "isotropic"),
    [
        ([NOISE], True, True),
        (["selective:0.5", NOISE], True, True),
        ([f"{NOISE},noise=laplace"], True, False),
        (["prune:0.5,layers=b", NOISE], True, True),
        ([NOISE, "prune:0.5,layers=b"], True, True),
        ([NOISE, "prune:0.5"], False, False),
        ([NOISE, NOISE], False, False),
        (["sign"], False, False),
        ([f"{NOISE},layers=b"], False, False),
    ],
)
def test_noise_that_is_last_is_known(specs: list[str], last: bool, isotropic: bool) -> None:
    chain = Chain(tuple(map(parse_defense, specs)))
    assert chain.ends_in_noise("a.weight", isotropic=False) == last
    assert chain.ends_in_noise("a.weight", isotropic=True) == isotropic


def test_noise_is_left_out_of_silent_parameters() -> None:
    update = {"a.weight": 10 * rows(5), "b.weight": 10 * rows(4, seed=2)}
    chain = Chain((parse_defense(NOISE),))
    done = chain.apply(update, records=1, generators=lambda _i, _n: seeded(), silent=["a.weight"])
    norms = torch.cat(list(update.values()), dim=1).norm(dim=1, keepdim=True)
    clipped = {name: part / norms for name, part in update.items()}
    torch.testing.assert_close(done["a.weight"], clipped["a.weight"])
    assert ((done["b.weight"] - clipped["b.weight"]).abs() > 1e-3).any()


@pytest.mark.parametrize("elements", [1, 1023, 1024, 5000])
def test_squared_norms(elements: int) -> None:
    given = rows(elements).float()
    expected = given.double().square().sum(dim=1)
    torch.testing.assert_close(squared_norms(given), expected, rtol=3e-7, atol=0)


def test_signs() -> None:
    given = rows()
    given[0, 0] = 0
    np.testing.assert_array_equal(applied("sign", given), np.sign(given.numpy()))


LAWS = [
    ("gaussian", "record", "norm", 0.3 / math.sqrt(4)),
    ("gaussian", "sum", "norm", 0.3 / 4),
    ("gaussian", "mean", "norm", 0.3),
    ("gaussian", "release", "norm", 0.3),
    ("laplace", "sum", "laplace", 0.3 / 4),
    ("laplace", "release", "laplace", 0.3),
]


@pytest.mark.parametrize(("noise", "per", "law", "scale"), LAWS)
def test_noise_has_the_law_and_scale_of_its_place(
    noise: str, per: str, law: str, scale: float
) -> None:
    given = torch.full((40, 101), 5.0, dtype=torch.float64)
    spec = f"dp:clip=1,sigma=0.3,noise={noise},per={per}"
    residuals = (applied(spec, given, records=4) - 5) / scale
    assert kstest(residuals.ravel(), law).pvalue > 1e-3
    assert len(np.unique(residuals)) == residuals.size


def test_laplace_noise_per_record_is_a_mean_of_several() -> None:
    given = torch.zeros(60, 200, dtype=torch.float64)
    noise = applied("dp:clip=1,sigma=0.3,noise=laplace,per=record", given, records=4).ravel()
    assert noise.std() == pytest.approx(0.3 * math.sqrt(2 / 4), rel=0.03)
    excess = (noise**4).mean() / noise.var() ** 2 - 3
    assert excess == pytest.approx(3 / 4, abs=0.3)  # Laplace has 3; a mean of k has 3/k


@pytest.mark.parametrize("spec", ["dp:clip=1,sigma=1", "dp:clip=1,sigma=1,noise=laplace"])
@pytest.mark.parametrize("per", ["record", "sum", "release"])
def test_noise_does_not_depend_on_the_chunks(spec: str, per: str) -> None:
    defense, given = parse_defense(f"{spec},per={per}"), rows().float()
    whole = defense.apply(given, records=3, generator=seeded())
    generator = seeded()
    parts = [defense.apply(part, records=3, generator=generator) for part in given.split([1, 3, 2])]
    assert torch.equal(torch.cat(parts), whole)


def test_clipping_factors() -> None:
    norms = torch.tensor([0.0, 0.5, 1.0, 4.0], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, 1.0, 0.25], dtype=torch.float64)
    for per in ("record", "sum", "mean"):
        defense = parse_defense(f"dp:clip=1,sigma=0,per={per}")
        torch.testing.assert_close(defense.record_factors(norms), expected)
        assert defense.batch_factors(norms) is None
    release = parse_defense("dp:clip=1,sigma=0,per=release")
    torch.testing.assert_close(release.batch_factors(norms), expected)
    assert release.record_factors(norms) is None


def test_clipping_goes_by_the_norm_of_all_that_is_defended() -> None:
    update = {"a.weight": rows(5), "a.bias": rows(3, seed=2), "b.weight": rows(4, seed=3)}
    for glob, names in (("*", list(update)), ("a", ["a.weight", "a.bias"])):
        chain = Chain((parse_defense(f"dp:clip=0.7,sigma=0,per=release,layers={glob}"),))
        done = chain.apply(update, records=1, generators=lambda _i, _n: seeded())
        squares = sum((update[name].numpy() ** 2).sum(axis=1) for name in names)
        factors = 1 / np.maximum(1, np.sqrt(squares) / 0.7)
        for name, part in update.items():
            expected = part.numpy() * (factors[:, None] if name in names else 1)
            np.testing.assert_allclose(done[name], expected, rtol=1e-14)


def test_a_chain_applies_its_defenses_in_order() -> None:
    update = {"a.weight": rows(10), "b.weight": rows(6, seed=2)}
    chain = Chain(tuple(map(parse_defense, ["prune:0.5,layers=a", "sign"])))
    done = chain.apply(update, records=1, generators=lambda _i, _n: seeded())
    pruned = applied("prune:0.5", update["a.weight"])
    np.testing.assert_array_equal(done["a.weight"], np.sign(pruned))
    np.testing.assert_array_equal(done["b.weight"], np.sign(update["b.weight"].numpy()))


WRONG = [
    (
        "mine.py:Mine",
        "a defense of your own is a class in an installed package, named by its entry point",
    ),
    ("prun:0.9", "no such defense (did you mean 'prune'?); there are: "),
    ("prune", "no share; write prune:0.99"),
    ("prune:2", "share=2: input should be less than 1"),
    ("prune:x", "share=x: input should be a valid number"),
    ("prune:0.5,share=0.3", "share is given twice; keep one"),
    ("selective:0", "share=0: input should be greater than 0"),
    ("sign:3", "'3' is no option; write key=value, as in sign"),
    ("sign:layer=a", "unknown option 'layer' (did you mean 'layers'?); it takes: layers"),
    ("dp:clip=1", "no sigma; write dp:clip=1,sigma=0.1"),
    ("dp:clip=0,sigma=1", "clip=0: input should be greater than 0"),
    ("dp:clip=nan,sigma=1", "clip=nan: input should be a finite number"),
    ("dp:clip=1,sigma=-1", "sigma=-1: input should be greater than or equal to 0"),
    ("dp:clip=1,sigma=1,per=batch", "per=batch: input should be 'record', 'sum'"),
    ("dp:clip,sigma=1", "'clip' is no option"),
    ("dp:clip=1,sigma=", "'sigma=' is no option"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_spec_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_defense(text)
    assert str(caught.value).startswith(f"--defense {text}: {message}")
    assert "\n" not in str(caught.value)


NAMES = ["conv1.weight", "conv1.bias", "fc.weight", "scale"]


def check(*specs: str) -> None:
    Chain(tuple(map(parse_defense, specs))).check(NAMES)


def test_globs_go_by_the_layer_s_name() -> None:
    defense = parse_defense("sign:layers=conv*")
    assert [defense.defends(name) for name in NAMES] == [True, True, False, False]
    assert parse_defense("sign:layers=(model)").defends("scale")
    with pytest.raises(UsageError, match=r"no layer matches layers=norm\*; the layers are: conv1,"):
        check("sign:layers=norm*")


def test_single_records_can_only_be_clipped_first() -> None:
    check("dp:clip=1,sigma=1,per=record", "prune:0.5")
    check("selective:0.1", "dp:clip=1,sigma=1,per=release")
    check("prune:0.5,layers=conv*", "dp:clip=1,sigma=1,layers=fc")
    for first in ("prune:0.5", "selective:0.1", "sign", "dp:clip=1,sigma=1"):
        for per in ("record", "sum", "mean"):
            with pytest.raises(UsageError, match="use per=release, or put it first"):
                check(first, f"dp:clip=1,sigma=1,per={per}")


@pytest.mark.parametrize("name", defenses())
def test_every_example_is_a_spec_of_its_own(name: str) -> None:
    kind = defenses()[name]
    made = parse_defense(kind.example)
    assert type(made) is kind
    assert str(parse_defense(str(made))) == str(made)
    assert kind.summary.endswith(".")


@pytest.mark.slow
def test_listing_them_and_options_of_sharing_import_no_torch() -> None:
    script = (
        "import sys\n"
        "from gradaudit.core.parts import summaries\n"
        "from gradaudit.audits.sharing_options import SharingOptions\n"
        "summaries('gradaudit.defenses'), SharingOptions(reduce='pca:3')\n"
        "assert not {'torch', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANGS)


def test_a_defense_that_changes_nothing_is_refused() -> None:
    class Idle(Defense[DefenseOptions]):
        name = "idle"
        summary = "Do nothing."
        example = "idle"

        def aply(self, gradients: torch.Tensor) -> torch.Tensor:
            return gradients * 0

    with pytest.raises(UsageError, match="Idle: defines none of apply, record_factors"):
        Idle()
