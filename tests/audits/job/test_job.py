"""Whole jobs: each planted fault is named with its repair, and correct jobs give no finding."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import run

pytest.importorskip("nvflare")
pytest.importorskip("flwr")

from job_folders import (
    COUNTING,
    builtin,
    chain,
    dp,
    flower_app,
    legacy_app,
    nvflare_job,
    nvflare_recipe,
    nvflare_template,
    privacy_policy,
)
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from gradaudit.audits.contract import breaches
from gradaudit.audits.dp_audit.game.hypotheses import reproducible
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.audits.job import Job, JobOptions
from gradaudit.audits.job.epsilon import NoiseStrength
from gradaudit.audits.job.measure import Audited, audited, report_of, rows_of
from gradaudit.errors import UsageError

pytestmark = pytest.mark.slow
Make = Callable[[Path], Path]
SWARM = {
    "tasks": ["swarm_*"],
    "executor": {
        "path": "nvflare.app_common.ccwf.SwarmClientController",
        "args": {"learn_task_name": "train"},
    },
}
LOCAL = "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"


def names(found: Audited) -> set[str]:
    """The faults by which privacy is lost or may be."""
    return {fault.name for fault in found.faults if fault.level != "note"}


def filtered(*filters: Any, **more: Any) -> Make:
    """An NVFlare job with one chain on its training."""
    return lambda folder: nvflare_job(folder, [chain(*filters, **more)])


def app(mods: str = "", **more: Any) -> Make:
    """A Flower app."""
    return lambda folder: flower_app(folder, mods, **more)


def central(wrapper: str, *, fewest: int = 4, of: int = 4, **more: Any) -> str:
    """A strategy that adds noise to the mean of so many clients."""
    inner = (
        f"FedAvg(fraction_train=0.1, fraction_evaluate=0.0, min_train_nodes={fewest}, "
        f"min_available_nodes={of})"
    )
    return f"DifferentialPrivacy{wrapper}({inner}, {', '.join(map(str, more.values()))})"


FIXED: dict[str, Any] = {"multiplier": 1.0, "clip": 0.5, "clients": 4}
NVFLARE: dict[str, tuple[Make, set[str]]] = {
    "no filter": (nvflare_job, {"update-unfiltered"}),
    "no clip": (filtered(dp("no-clip")), {"no-clip"}),
    "clip per layer": (filtered(dp("per-array")), {"clip-per-array"}),
    "own clip": (filtered(dp("own-clip")), {"clip-from-own-data"}),
    "noise over clients": (filtered(dp("divided")), {"noise-below-declared"}),
    "fixed seed": (filtered(dp("fixed-seed")), {"noise-fixed-seed"}),
    "noise again": (filtered(dp("reused")), {"noise-reused"}),
    "buffers": (filtered(dp("buffers")), {"untouched-arrays"}),
    "clip after noise": (filtered(dp("noise-first")), {"clip-after-noise"}),
    "float16": (filtered(dp("float16")), {"float16-before-noise"}),
    "counts": (filtered(dp(keep_meta=True)), {"numbers-assumed"}),
    "wildcard": (filtered(dp(), tasks=["*"]), {"filter-task-wildcard", "update-unfiltered"}),
    "in": (filtered(dp(), direction="in"), {"filter-direction-in", "update-unfiltered"}),
    "wrong task": (filtered(dp(), tasks=["tain"]), {"filter-wrong-task", "update-unfiltered"}),
    "regex": (
        filtered(builtin("exclude_vars.ExcludeVars", exclude_vars="^bn"), dp()),
        {"pattern-matches-nothing"},
    ),
    "gamma of zero": (
        filtered(builtin("percentile_privacy.PercentilePrivacy", gamma=0)),
        {"filter-fails-open", "update-unfiltered"},
    ),
    "no noise": (
        filtered(builtin("percentile_privacy.PercentilePrivacy", gamma=0.01)),
        {"no-noise"},
    ),
    "weights": (
        lambda folder: nvflare_job(folder, [chain(dp())], form="FULL"),
        {"noise-on-weights"},
    ),
    "weights, as NVFlare's recipe sends them by itself": (
        lambda folder: nvflare_recipe(folder, "FULL"),
        {"noise-on-weights"},
    ),
    "conversion": (
        lambda folder: nvflare_job(
            folder,
            [chain(builtin("convert_weights.ConvertWeights", direction="weights_to_diff"), dp())],
            form="FULL",
        ),
        {"converts-nothing", "noise-on-weights"},
    ),
    "unwired": (
        lambda folder: nvflare_job(folder, client={"components": [{"id": "dp", **dp()}]}),
        {"unwired-filter", "update-unfiltered"},
    ),
    "validate and submit_model": (
        lambda folder: nvflare_job(
            folder, [chain(dp())], tasks=["train", "validate", "submit_model"]
        ),
        {"numbers-assumed", "model-unfiltered"},
    ),
    "swarm": (
        lambda folder: nvflare_job(folder, [chain(dp())], executors=[SWARM]),
        {"swarm-result-filters-dead", "update-unfiltered"},
    ),
}
FLOWER: dict[str, tuple[Make, set[str]]] = {
    "no mod": (app(), {"update-unfiltered"}),
    "on weights": (app("DpMod('weights')"), {"noise-on-weights"}),
    "fixed seed": (app("DpMod('fixed-seed')"), {"noise-fixed-seed"}),
    "clip outermost": (app("DpMod('noise-first')"), {"clip-after-noise"}),
    "counts": (app("DpMod(counts=True)"), {"numbers-assumed"}),
    "local without counts": (app(LOCAL), {"numbers-assumed"}),
    "unwired mod": (app(client=f"dp = {LOCAL}"), {"unwired-mod", "update-unfiltered"}),
    "weighted mean": (
        app(strategy=central("ServerSideFixedClipping", **FIXED)),
        {"mean-weighted-by-counts"},
    ),
    "fewer clients": (
        app("DpMod()", strategy=central("ServerSideFixedClipping", fewest=2, **FIXED)),
        {"fewer-clients"},
    ),
    "client-side clip without its mod": (
        app(strategy=central("ClientSideFixedClipping", **FIXED)),
        {"unwired-mod", "server-noise-too-small", "mean-weighted-by-counts"},
    ),
}
ACCOUNTANT = (
    "accountant=RdpAccountant(PrivacyConfig(1e-5, 4, NeighboringRelation.ADD_OR_REMOVE_ONE, "
    "SamplingMethod.NO_AMPLIFICATION))"
)
EVEN = """
from flwr.app import MetricRecord
def even(message, context, call_next):
    answer = call_next(message, context)
    answer.content["metrics"] = MetricRecord({"num-examples": 1})
    return answer
"""
CORRECT: dict[str, Make] = {
    "a filter": filtered(dp()),
    "a filter of weights that leaves out a layer": filtered(
        builtin("exclude_vars.ExcludeVars", exclude_vars="^norm"), dp()
    ),
    "a large clip": filtered(dp(clip=3000.0)),
    "compression before": filtered(
        builtin("percentile_privacy.PercentilePrivacy", gamma=0.1), dp()
    ),
    "half precision after": filtered(dp("float16-after")),
    "compression after": filtered(dp(), builtin("percentile_privacy.PercentilePrivacy", gamma=10)),
    "a layer left out after": filtered(
        dp(), builtin("exclude_vars.ExcludeVars", exclude_vars="^norm")
    ),
    "in and out": filtered(dp(), direction="inout"),
    "several tasks": lambda folder: nvflare_job(
        folder,
        [chain(dp(), tasks=["train", "submit_model"])],
        tasks=["train"],
    ),
    "swarm": lambda folder: nvflare_job(
        folder,
        executors=[SWARM],
        client={
            "task_data_filters": [chain(dp(), tasks=["swarm_report_learn_result"], direction="out")]
        },
    ),
    "NVFlare's template sag_pt, in HOCON": lambda folder: nvflare_template(folder, "sag_pt", dp()),
    "NVFlare's template sag_pt_in_proc": lambda folder: nvflare_template(
        folder, "sag_pt_in_proc", dp()
    ),
    "NVFlare's template sag_pt_mlflow": lambda folder: nvflare_template(
        folder, "sag_pt_mlflow", dp()
    ),
    "a mod": app("DpMod()"),
    "a mod of the app": app(app_mods="DpMod()"),
    "local": app(LOCAL, app_mods="even", client=EVEN),
    "server": app("even", client=EVEN, strategy=central("ServerSideFixedClipping", **FIXED)),
    "server with the client's clip": app(
        "even, fixedclipping_mod",
        client=EVEN,
        strategy=central("ClientSideFixedClipping", **FIXED),
    ),
    "a mod and a server of FedAdam": app(
        "DpMod()", strategy="FedAdam(fraction_evaluate=0.0, eta=0.1)"
    ),
    "a legacy app": lambda folder: legacy_app(
        folder, "even", strategy="DifferentialPrivacyServerSideFixedClipping({}, 1.0, 0.5, 4)"
    ),
}


@pytest.mark.parametrize("name", NVFLARE)
def test_a_fault_of_an_nvflare_job_is_named(name: str, tmp_path: Path) -> None:
    make, expected = NVFLARE[name]
    assert names(audited(make(tmp_path), JobOptions())) == expected


@pytest.mark.parametrize("name", FLOWER)
def test_a_fault_of_a_flower_app_is_named(name: str, tmp_path: Path) -> None:
    make, expected = FLOWER[name]
    found = audited(make(tmp_path), JobOptions())
    assert names(found) == expected
    assert all(fault.repair and fault.file and fault.key for fault in found.faults)


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_job_gives_no_finding(name: str, tmp_path: Path) -> None:
    assert names(audited(CORRECT[name](tmp_path), JobOptions())) == set()


@pytest.mark.parametrize(
    ("exchange", "level", "headline", "other"),
    [
        ("pytorch", "error", 2.0, {"numpy": 0.0}),
        ("numpy", "note", 0.0, {"pytorch": 2.0}),
        ("raw", "warning", 0.0, {"pytorch": 2.0}),
        ("", "warning", 0.0, {"pytorch": 2.0}),
    ],
)
def test_a_filter_of_numpy_arrays_alone_leaves_tensors_untouched(
    exchange: str, level: str, headline: float, other: dict[str, float], tmp_path: Path
) -> None:
    """The executor's format decides; the other one is probed too."""
    only = {"path": "filters.ArraysOnly", "args": {}}
    found = audited(nvflare_job(tmp_path, [chain(only)], exchange=exchange), JobOptions())
    name = "update-unfiltered" if level == "error" else "untouched-in-other-format"
    assert [fault.level for fault in found.faults if fault.name == name] == [level]
    of_layer = {
        row.variant.get("exchange", ""): row.value
        for row in rows_of(found, JobOptions())
        if row.metric == "untouched" and row.layer == "first" and "key" not in row.variant
    }
    assert of_layer == {"": headline, **other}


def test_a_filter_that_handles_tensors_is_clean_in_either_format(tmp_path: Path) -> None:
    folder = nvflare_job(tmp_path, [chain(dp())], exchange="pytorch")
    found = audited(folder, JobOptions(noise="gaussian"))
    assert not found.faults
    assert found.strength[""].multiplier == pytest.approx(1.0, rel=0.1)


def test_a_job_of_yaml_is_read_as_one_of_json(tmp_path: Path) -> None:
    folder = nvflare_job(tmp_path, [chain(dp("buffers"))])
    for path in (folder / "meta.json", *(folder / "app" / "config").glob("*.json")):
        text = yaml.safe_dump(json.loads(path.read_text(encoding="utf-8")))
        path.with_suffix(".yml").write_text(text, encoding="utf-8")
        path.unlink()
    found = audited(folder, JobOptions())
    assert names(found) == {"untouched-arrays"}
    assert {fault.file for fault in found.faults} == {"app/config/config_fed_client.yml"}


def test_what_is_logged_by_events_passes_no_filter(tmp_path: Path) -> None:
    """It costs privacy only where the training logs anything, so it is a note, and all there is."""
    found = audited(nvflare_recipe(tmp_path, "DIFF"), JobOptions())
    assert [(fault.name, fault.level) for fault in found.faults] == [("events-in-clear", "note")]


@pytest.mark.parametrize(("rate", "about", "within"), [(0.2, 0.90, 0.05), (1.0, 0.61, 0.2)])
def test_adaptive_clipping_of_flower_moves_the_wrong_way_and_draws_too_little(
    rate: float, about: float, within: float, tmp_path: Path
) -> None:
    """With every client clipped the next clip is e^(-lr/2) of this one (flwr 1.41).

    Noise on the count of the clipped moves the next clip by 5 % at rate 1.
    """
    many: dict[str, Any] = {
        "multiplier": 1.0,
        "clients": 20,
        "initial": 0.1,
        "quantile": 0.5,
        "rate": rate,
    }
    strategy = central("ServerSideAdaptiveClipping", fewest=20, of=20, **many)
    folder = flower_app(tmp_path, "even", client=EVEN, strategy=strategy)
    found = audited(folder, JobOptions())
    assert names(found) == {"adaptive-clip-noise", "adaptive-clip-direction"}
    server: Any = found.server
    assert math.exp(-rate / 2) == pytest.approx(about, abs=0.01)
    assert server.even / server.promised == pytest.approx(math.exp(-rate / 2), rel=within)


def test_a_job_in_the_weaker_scope_of_its_site_is_told(tmp_path: Path) -> None:
    scopes = {"public": [dp(noise_multiplier=0.1)], "strict": [dp()]}
    policy = privacy_policy(tmp_path / "privacy.json", scopes, "public")
    options = JobOptions(site=policy, noise="gaussian")
    weak = audited(nvflare_job(tmp_path / "a"), options)
    assert names(weak) == {"weaker-scope"}
    scopes_ = {r.variant.get("scope"): r for r in rows_of(weak, options) if r.metric == "scope"}
    assert scopes_["public"].value == scopes_[None].value == pytest.approx(0.1, rel=0.1)
    assert scopes_["strict"].value == pytest.approx(1, rel=0.1)
    assert {row.details["weakest"] for row in scopes_.values()} == {"public"}
    assert names(audited(nvflare_job(tmp_path / "b", meta={"scope": "strict"}), options)) == set()
    with pytest.raises(UsageError, match=r"scope 'other' is none of .*; its scopes are: public"):
        audited(nvflare_job(tmp_path / "c", meta={"scope": "other"}), options)


@pytest.mark.parametrize("keep_meta", [False, True])
def test_a_weaker_scope_is_told_without_any_law_and_beside_numbers_in_clear(
    keep_meta: bool, tmp_path: Path
) -> None:
    scopes = {"open": [], "strict": [dp(keep_meta=keep_meta)]}
    policy = privacy_policy(tmp_path / "privacy.json", scopes, "open")
    found = audited(nvflare_job(tmp_path / "job"), JobOptions(site=policy))
    assert names(found) == {"update-unfiltered", "weaker-scope"}
    (row,) = (r for r in rows_of(found, JobOptions()) if r.variant == {"scope": "strict"})
    assert row.value == pytest.approx(1, rel=0.1)
    assert row.details["weakest"] == "open"


def test_the_site_filters_come_before_those_of_the_job(tmp_path: Path) -> None:
    scopes = {"only": [builtin("exclude_vars.ExcludeVars", exclude_vars="^norm")]}
    policy = privacy_policy(tmp_path / "privacy.json", scopes, "only")
    found = audited(nvflare_job(tmp_path / "job", [chain(dp())]), JobOptions(site=policy))
    (one,) = found.job.chains
    assert [link.name for link in one.links] == ["ExcludeVars", "DpFilter"]


def test_mods_of_the_app_wrap_those_of_the_function(tmp_path: Path) -> None:
    """What a reply meets first is the innermost mod."""
    folder = flower_app(tmp_path, "arrays_size_mod", app_mods="DpMod()")
    (one,) = audited(folder, JobOptions()).job.chains
    assert [link.name for link in one.links] == ["arrays_size_mod", "DpMod"]


def test_epsilon_follows_from_noise_and_sensitivity(tmp_path: Path) -> None:
    """A bound: the noise is at least what is taken for it, and nearly that."""
    found = audited(filtered(dp())(tmp_path), JobOptions(noise="gaussian"))
    (probed,) = found.probes.values()
    assert probed.sensitivity == pytest.approx(2, rel=1e-3)
    strength = found.strength[""]
    assert strength.multiplier is not None
    assert 0.9 < strength.multiplier < 1.02
    exact = epsilon_gaussian(2 * math.sqrt(5) / strength.multiplier, 1e-5)
    assert strength.epsilon(5, 1e-5, "replace") == pytest.approx(exact)


def test_epsilon_of_many_rounds_is_that_of_a_privacy_loss_distribution() -> None:
    """Fifty rounds of multiplier one: 54.4 where a client is absent, 159.4 where replaced."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    ledger = PLDAccountant().compose(GaussianDpEvent(6.0), 50)
    removed = NoiseStrength(6.0, "known").epsilon(50, 1e-5, "remove")
    assert removed == pytest.approx(ledger.get_epsilon(1e-5), rel=1e-3)
    assert NoiseStrength(1.0, "known").epsilon(50, 1e-5, "remove") == pytest.approx(54.4, abs=0.1)
    assert NoiseStrength(1.0, "known").epsilon(50, 1e-5, "replace") == pytest.approx(159.4, abs=0.1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (nvflare_job, "infinite, because these arrays leave in clear: first.weight"),
        (filtered(dp()), "unbounded by what is known: the law of the noise"),
    ],
)
def test_where_there_is_no_epsilon_the_reason_stands(make: Make, why: str, tmp_path: Path) -> None:
    report = report_of(make(tmp_path), JobOptions(), {})
    (row,) = report.select("job.epsilon_client", variant={})
    assert row.value is None
    assert why in str(row.reason or row.details["why"])
    assert row.infinite is why.startswith("infinite")


KEEPS = filtered(dp(keep_meta=True))
NOT_SENT = ("NUM_STEPS_CURRENT_ROUND=3", "initial_metrics=none")
VALIDATES = {"tasks": ["train", "validate"]}


@pytest.mark.parametrize(
    ("make", "replies", "faults", "why"),
    [
        (KEEPS, (), {"numbers-assumed": "warning"}, ""),
        (KEEPS, ("train.none",), {}, ""),
        (KEEPS, ("none",), {}, ""),
        (KEEPS, (*NOT_SENT, "loss"), {"numbers-in-clear": "error"}, "leave in clear: loss"),
        (
            lambda f: nvflare_job(f, [chain(dp())], tasks=["train", "validate"]),
            (),
            {"numbers-assumed": "warning"},
            "",
        ),
        (
            lambda f: nvflare_job(f, [chain(dp())], tasks=["train", "validate"]),
            ("accuracy", *NOT_SENT),
            {"metrics-unfiltered": "error"},
            "these of validate leave in clear: accuracy",
        ),
    ],
)
def test_what_replies_hold_is_assumed_until_it_is_declared(
    make: Make, replies: tuple[str, ...], faults: dict[str, str], why: str, tmp_path: Path
) -> None:
    """No epsilon is infinite by an assumption alone, and the finding can be cleared."""
    options = JobOptions(noise="gaussian", replies=replies)
    found = audited(make(tmp_path), options)
    assert {fault.name: fault.level for fault in found.faults} == faults
    (row,) = (r for r in rows_of(found, options) if r.metric == "epsilon_client" and not r.variant)
    assert row.infinite is bool(why)
    assert why in str(row.details["why"])
    assert ("assumed" in row.details) is (not replies)
    assert ("assumes replies without" in str(row.details["remarks"])) is (not replies)


def test_an_infinite_epsilon_is_followed_by_the_one_without_its_fault(tmp_path: Path) -> None:
    """That of the arrays under noise, beside two buffers that leave in clear."""
    found = audited(filtered(dp("buffers"))(tmp_path), JobOptions(noise="gaussian"))
    strength = found.strength[""]
    assert strength.clear
    assert strength.without is not None
    assert strength.without.multiplier == pytest.approx(1.0, rel=0.1)
    rows = [r for r in rows_of(found, JobOptions()) if r.metric.startswith("epsilon_")]
    assert len(rows) == 4
    for row in rows:
        moved: Any = "replace" if row.metric == "epsilon_record" or not row.variant else "remove"
        without = strength.without.epsilon(5, 1e-5, moved)
        assert row.infinite
        assert row.details["without_this_fault"] == without


def test_an_unfiltered_job_has_nothing_without_its_fault(tmp_path: Path) -> None:
    strength = audited(nvflare_job(tmp_path), JobOptions()).strength[""]
    assert strength.without is not None
    assert strength.without.why == "unbounded by what is known: nothing else leaves"


def test_a_record_that_costs_more_than_its_client_says_why(tmp_path: Path) -> None:
    report = report_of(app(LOCAL)(tmp_path), JobOptions(replies=("num-examples=1",)), {})
    (record,) = report.select("job.epsilon_record", variant={"relation": "remove"})
    (client,) = report.select("job.epsilon_client", variant={"relation": "remove"})
    assert record.value > client.value
    assert "replaces its client's update by another" in str(record.details["remarks"])


def test_one_mod_has_one_epsilon_beside_its_own_claim(tmp_path: Path) -> None:
    """Of one round: that of the analytic Gaussian mechanism, which dp-audit reports too."""
    report = report_of(app(LOCAL)(tmp_path), JobOptions(replies=("num-examples=1",)), {})
    sigma = 2 * math.sqrt(2 * math.log(1.25e5))
    for relation, moved in ((None, 2.0), ("remove", 1.0)):
        variant = {} if relation is None else {"relation": relation}
        (row,) = report.select("job.epsilon_client", variant=variant)
        assert row.details["one_round"] == pytest.approx(epsilon_gaussian(moved / sigma, 1e-5))
        assert row.details["mod_claims"] == {"epsilon": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("sensitivity", "epsilon", "exceeded"),
    [(1.0, 1.0, False), (2.0, 1.0, False), (0.5, 1.0, True), (1e-4, 1.0, True), (1.0, 30.0, True)],
)
def test_a_claim_that_no_relation_keeps_is_an_error(
    sensitivity: float, epsilon: float, exceeded: bool, tmp_path: Path
) -> None:
    """By the analytic Gaussian mechanism; the repair that it names is tried."""
    folder = app(f"LocalDpMod(1.0, {sensitivity}, {epsilon}, 1e-5)")(tmp_path / "a")
    found = audited(folder, JobOptions(replies=("none",)))
    exact = epsilon_gaussian(epsilon / (sensitivity * math.sqrt(2 * math.log(1.25e5))), 1e-5)
    assert (exact > epsilon) is exceeded
    told = {fault.name: fault for fault in found.faults}
    assert ("claim-exceeded" in told) is exceeded
    assert ("noise-below-declared" in told) is (exact > 1.2 * epsilon)
    if exceeded:
        fault = told["claim-exceeded"]
        assert (fault.level, fault.key) == ("error", "mods")
        assert f"exactly it is {exact:.4g} for a client added or removed" in fault.says
        enough = re.findall(r"[\d.]+", fault.repair)[0]
        repaired = app(f"LocalDpMod(1.0, {float(enough) * 1.001}, {epsilon}, 1e-5)")(tmp_path / "b")
        assert not names(audited(repaired, JobOptions(replies=("none",))))


def test_a_claim_says_for_which_relation_it_holds(tmp_path: Path) -> None:
    folder = app("LocalDpMod(1.0, 1.0, 1.0, 1e-5)")(tmp_path)
    report = report_of(folder, JobOptions(replies=("none",)), {})
    (row,) = report.select("job.epsilon_client", variant={})
    remarks = " ".join(map(str, row.details["remarks"]))
    assert "0.751 of a client added or removed, 1.61 of one replaced" in remarks
    assert "the mod claims 1, which holds for the first" in remarks


@pytest.mark.parametrize(
    ("mods", "replies", "why"),
    [
        ("DpMod()", ("none",), "the law of the noise (--noise gaussian declares it)"),
        (LOCAL, (), "assumes replies without num-examples, train_loss"),
        (LOCAL, ("none",), ""),
    ],
)
def test_a_job_of_unknown_epsilon_is_undecided(
    mods: str, replies: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    folder = str(app(mods)(tmp_path))
    done = run("job", folder, *(flag for name in replies for flag in ("--replies", name)))
    assert (done.status, "UNDECIDED" in done.out, "PASSED" in done.out) == (0, bool(why), not why)
    assert why in " ".join(done.out.split())


@pytest.mark.parametrize("shape", ["table", "md", "html", "sarif", "xml", "github"])
def test_every_format_has_chain_and_epsilon_with_unit_and_relation(
    shape: str, tmp_path: Path
) -> None:
    file = tmp_path / f"report.{shape}"
    output = ("-f", "table") if shape == "table" else ("-o", str(file))
    done = run("job", str(app(LOCAL)(tmp_path / "job")), "--replies", "none", *output)
    text = done.out if shape == "table" else file.read_text(encoding="utf-8")
    plain = re.sub(r"&#8203;|<wbr>|\\", "", text).replace("&gt;", ">").replace("&#62;", ">")
    assert "train: training -> LocalDpMod -> server" in plain
    for line in ("a client added or removed: ", "a client replaced: ", "a record replaced: "):
        assert f"epsilon, {line}" in plain
    assert "(5 rounds, delta 1e-05)" in plain


def test_a_constant_count_weighs_no_client_more(tmp_path: Path) -> None:
    folder = flower_app(tmp_path, strategy=central("ServerSideFixedClipping", **FIXED))
    assert names(audited(folder, JobOptions())) == {"mean-weighted-by-counts"}
    assert not names(audited(folder, JobOptions(replies=("num-examples=1",))))


def test_a_reply_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--replies num-examples=one: 'one' is no number"):
        audited(nvflare_job(tmp_path), JobOptions(replies=("num-examples=one",)))


@pytest.mark.parametrize("suffix", ["md", "html", "xml", "sarif", "github", "txt"])
def test_every_format_has_each_fault_with_file_line_and_repair(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the client's function, and of the only place that names the filters."""
    monkeypatch.chdir(tmp_path)
    app("")(Path("job"))
    line = Path("job/tiny/client_app.py").read_text().splitlines().index("@app.train(mods=[])") + 1
    if suffix == "txt":
        text = " ".join(run("job", "job").out.split())
    else:
        file = Path(f"report.{suffix}")
        run("job", "job", "-o", str(file))
        text = file.read_text(encoding="utf-8")
    plain = text.replace("&#8203;", "").replace("\\", "").replace("<wbr>", "")
    assert "update-unfiltered" in plain
    assert "add a filter or mod that clips the update and adds noise" in plain
    if suffix == "sarif":
        results = json.loads(text)["runs"][0]["results"]
        places = [x["locations"][0]["physicalLocation"] for x in results]
        uri, region = "job/tiny/client_app.py", {"startLine": line}
        assert any(p["artifactLocation"]["uri"] == uri and p["region"] == region for p in places)
    elif suffix == "github":
        assert f"::error file=job/tiny/client_app.py,line={line}," in text
    else:
        assert f"tiny/client_app.py:{line}" in plain


def test_a_redacted_report_names_no_file_of_the_job(tmp_path: Path) -> None:
    job = nvflare_job(tmp_path / "secret", [chain(dp("buffers"))])
    done = run("job", str(job), "--redact", "-f", "json")
    assert done.status == 1
    assert "untouched-arrays" in done.out
    assert not {"secret", "config_fed_client"} & {*re.findall(r"\w+", done.out)}


def test_the_model_is_named_as_in_every_command(tmp_path: Path) -> None:
    """Where no class of the job's code can be built."""
    job = nvflare_job(tmp_path, [chain(dp())])
    (job / "app" / "custom" / "net.py").write_text("raise RuntimeError", encoding="utf-8")
    done = run("job", str(job), "-m", "zoo:mlp?inputs=6", "-f", "json")
    assert json.loads(done.out)["target"]["model"] == "nvflare: zoo:mlp?inputs=6"


def test_arrays_are_shown_as_they_leave(tmp_path: Path) -> None:
    report = report_of(filtered(dp("buffers"))(tmp_path), JobOptions(), {})
    says = {
        row.variant["key"]: (row.details["says"], row.value)
        for row in report.select("job.untouched")
        if row.variant.keys() == {"key"}
    }
    assert says["first.weight"] == ("clipped, under noise", 0.0)
    assert says["norm.running_mean"] == ("leaves as training made it", 1.0)


def test_a_whole_number_that_leaves_as_it_is_is_a_finding(tmp_path: Path) -> None:
    """BatchNorm's count of batches, which neither clip nor noise of this mod changes."""
    folder = flower_app(tmp_path / "a", f"even, {LOCAL}", client=EVEN)
    (folder / "tiny" / "net.py").write_text(COUNTING, encoding="utf-8")
    found = audited(folder, JobOptions())
    assert names(found) == {"counters-in-clear"}
    assert "leave in clear: norm.num_batches_tracked" in found.strength[""].why


@pytest.mark.parametrize("mods", ["", "even"])
def test_the_epsilon_of_a_mean_stands_beside_that_of_flowers_accountant(
    mods: str, tmp_path: Path
) -> None:
    """Its RDP says 57.3 after 50 rounds of multiplier one; exactly it is 54.4."""
    strategy = central("ServerSideFixedClipping", **FIXED, more=ACCOUNTANT)
    folder = flower_app(tmp_path, mods, client=EVEN, strategy=strategy)
    report = report_of(folder, JobOptions(rounds=50), {})
    rows = {str(row.variant.get("relation")): row for row in report.select("job.epsilon_client")}
    assert rows["remove"].value == pytest.approx(54.4, abs=0.1)
    assert rows["None"].value == pytest.approx(159.4, abs=0.1)
    assert rows["None"].details["framework_accountant"] == pytest.approx(57.3, abs=0.1)


def test_a_mean_that_is_weighted_by_counts_has_no_epsilon(tmp_path: Path) -> None:
    folder = flower_app(tmp_path, strategy=central("ServerSideFixedClipping", **FIXED))
    (row,) = report_of(folder, JobOptions(), {}).select("job.epsilon_client", variant={})
    assert row.reason is not None
    assert "unbounded by what is known: the mean weighs clients by their counts" in row.reason


def test_a_client_of_half_the_weight_costs_what_it_moves(tmp_path: Path) -> None:
    """Ten clients of which one holds half: 775 after 50 rounds of multiplier one, not 54.4.

    dp-accounting's privacy loss distribution, which rounds up, says 776.
    """
    ten: dict[str, Any] = {"multiplier": 1.0, "clip": 0.5, "clients": 10}
    strategy = central("ServerSideFixedClipping", fewest=10, of=10, **ten)
    options = JobOptions(rounds=50, heaviest_share=0.5)
    report = report_of(flower_app(tmp_path, strategy=strategy), options, {})
    (row,) = report.select("job.epsilon_client", variant={"relation": "remove"})
    assert row.value == pytest.approx(epsilon_gaussian(math.sqrt(50) / 0.2, 1e-5))
    assert row.value == pytest.approx(776, rel=2e-3)
    (server,) = report.select("job.server_multiplier")
    assert server.details["even"] == pytest.approx(1.0, rel=0.05)
    assert server.details["uneven"] == pytest.approx(0.2, rel=0.05)  # nine of eighteen records


keeps_a_ledger = pytest.mark.skipif(
    not hasattr(SVTPrivacy, "get_privacy_ledger"), reason="nvflare before 2.9 keeps no ledger"
)


@keeps_a_ledger
def test_the_ledger_of_sparse_vectors_is_not_what_they_are_worth(tmp_path: Path) -> None:
    """A tenth of 73 numbers: .1 + .1 each by its own ledger."""
    sparse = builtin("svt_privacy.SVTPrivacy")
    found = audited(nvflare_job(tmp_path, [chain(sparse)]), JobOptions())
    (fault,) = (fault for fault in found.faults if fault.name == "svt-ledger")
    assert "counts an epsilon of 0.9 a round; the 8 numbers" in fault.says
    assert "about 5 times as many pass the selection" in fault.says


@keeps_a_ledger
def test_the_ledger_of_seven_million_parameters_is_70333() -> None:
    """NVFlare's own filter on 7,033,280 numbers, which sends a tenth of them."""
    update = DXO(DataKind.WEIGHT_DIFF, {"w": np.zeros(7_033_280, np.float32)})
    sparse = SVTPrivacy()
    with reproducible(0, torch.device("cpu")):
        sparse.process_dxo(update, Shareable(), FLContext())
    (entry,) = sparse.get_privacy_ledger()
    assert entry["n_upload"] in (703_328, 703_329)
    assert entry["epsilon_total"] == pytest.approx(70_333, abs=0.5)


def test_the_rows_keep_the_contract_and_the_command_writes_them(tmp_path: Path) -> None:
    job, file = nvflare_job(tmp_path / "job", [chain(dp("buffers"))]), tmp_path / "report.json"
    done = run("job", str(job), "-o", str(file), "--rounds", "3")
    assert (done.status, "FAILED" in done.out) == (1, True), done.err
    assert "train: training -> DpFilter -> server" in done.out
    out = " ".join(done.out.split())
    assert "error untouched-arrays (train): arrays that leave bit for bit as training" in out
    assert "repair: clip every array and add noise to it, or keep these on the client" in out
    assert "infinite, because these arrays leave in clear: norm.running_mean" in out
    dry = run("job", str(job), "-o", str(tmp_path / "dry.json"), "--dry-run")
    assert "train: training -> DpFilter -> server" in dry.out
    assert "infinite" not in dry.out
    assert not (tmp_path / "dry.json").exists()
    report = report_of(job, JobOptions(), {})
    layers = [layer.name for layer in report.target.layers]
    assert breaches(Job, report.measurements, layers) == []
    (row,) = report.select("job.untouched", layer="norm", variant={})
    assert row.details["arrays"] == ["norm.running_mean", "norm.running_var"]
    assert json.loads(file.read_text())["measurements"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "neither meta.json (an NVFlare job) nor pyproject.toml (a Flower app) is there"),
        ({"meta.json": "{}"}, "deploy_map deploys no app to 'site-1'"),
        ({"meta.json": "{"}, "meta.json: cannot be read"),
        ({"pyproject.toml": "[project]"}, "pyproject.toml"),
    ],
)
def test_what_is_no_job_is_told_in_one_line(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run("job", str(tmp_path))
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1
