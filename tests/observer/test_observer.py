"""The observer: within its share of the time, closed where it fails, silent about what it saw."""

import itertools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from observer.training import model, state_of, train, trained
from report_builder import make_report
from report_builder import row as row_of
from torch import nn

import gradaudit
from gradaudit.errors import UsageError
from gradaudit.judging import Policy, gate
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.observer import Blocked, Observation, Observer
from gradaudit.observer.shared_verdict import Verdict
from gradaudit.report import Report

NO_LABELS = "rules:\n  - {metric: observe.labels_named, layers: '', max: 0}\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(NO_LABELS)
    return path


def generous(folder: Path | None = None, **options: Any) -> Observer:
    observer = Observer(folder, **options)
    observer.allowance.earn(1000)
    return observer


def look(observer: Observer, seconds: float = 1.0, **how: Any) -> Observation:
    before = state_of(model())
    return observer.observe(before, trained(before), seconds=seconds, **how)


class Clock:
    """Every look at it takes as long."""

    def __init__(self, tick: float) -> None:
        self._readings = itertools.count()
        self.tick = tick

    def perf_counter(self) -> float:
        return self.tick * next(self._readings)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.02, 0.05, 30.0])
def test_it_keeps_its_share_of_the_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own; the law: what was spent exceeds the share by a piece at most."""
    monkeypatch.setattr("gradaudit.observer.observer.time", Clock(1e-4))
    observer = Observer()
    seen, allowance = [look(observer, seconds)], observer.allowance
    assert allowance.spent <= 0.05 * allowance.worked + 2e-3  # the first round, too
    seen += [look(observer, seconds) for _ in range(29)]
    assert allowance.worked == pytest.approx(30 * seconds)
    assert allowance.spent <= 0.05 * allowance.worked + 2e-3
    looked = [each.report for each in seen if each.report is not None]
    assert looked
    assert all(bool(each.report) is not bool(each.verdict.fault) for each in seen)
    left_out = [each.verdict.left_out for each in seen if each.report]
    assert (max(left_out) == 0) is (seconds == 30.0)
    for report in looked:
        for row in report.measurements:
            assert not row.left_out or "raise share" in (row.reason or "")


def test_what_there_was_no_time_for_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gradaudit.observer.observer.time", Clock(1e-4))
    (tmp_path / "spans.yaml").write_text("rules:\n  - {metric: observe.span_share, min: 0}\n")
    observer = Observer(policy=tmp_path / "spans.yaml")
    assert look(generous(policy=tmp_path / "spans.yaml")).verdict.passed
    assert not look(observer, 1e-6).verdict.passed
    partly = next(each for _ in range(50) if (each := look(observer, 0.05)).verdict.left_out)
    assert not partly.verdict.passed
    assert "not looked at" in str(partly.verdict)
    assert (partly.verdict.not_looked_at, partly.verdict.fails) == (True, False)
    assert partly.verdict.metrics()["gradaudit.share_not_looked_at"] == 1
    assert not partly.verdict.may_leave
    nothing = look(observer, 1e-9).verdict
    assert (nothing.not_looked_at, nothing.fails, nothing.may_leave) == (True, False, False)
    with pytest.raises(Blocked, match="no time"):
        look(Observer(on_fail="raise"), 1e-6)


def test_what_is_beyond_a_limit_fails_though_other_things_were_not_looked_at(
    tmp_path: Path,
) -> None:
    rules = [{"metric": f"observe.{name}", "max": 0.1} for name in ("record_share", "span_share")]
    report = make_report(
        row_of("observe.record_share", "fc1", 0.5),
        row_of(
            "observe.span_share",
            "fc1",
            None,
            status="skipped",
            reason="x",
            details={"left_out": True},
        ),
    )
    verdict = Verdict.of(gate(report, Policy.model_validate({"rules": rules})), 0.01)
    assert (verdict.word, verdict.fails, verdict.not_looked_at) == ("failed", True, True)
    assert verdict.metrics()["gradaudit.share_failed"] == 1
    assert str(verdict).startswith("failed: 1 limit exceeded")


def test_the_states_of_clients_add_up_to_all_of_them() -> None:
    seen = [look(generous()).verdict, Verdict.unobserved("no"), Verdict("failed", fails=True)]
    means = {
        name: sum(verdict.metrics()[name] for verdict in seen) / len(seen)
        for name in seen[0].metrics()
    }
    states = ("passed", "failed", "undecided", "not_looked_at")
    shares = [means[f"gradaudit.share_{state}"] for state in states]
    assert shares == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_only_numbers_travel_and_always_the_same(tmp_path: Path) -> None:
    observer = generous(tmp_path)
    seen, failed = look(observer, label="one"), observer.observe({}, {}, seconds=1.0)
    assert seen.verdict.metrics().keys() == failed.verdict.metrics().keys()
    assert {type(v) for v in seen.verdict.metrics().values()} == {float}
    assert failed.verdict.metrics()["gradaudit.share_observed"] == 0
    assert not failed.verdict.passed
    assert seen.file == tmp_path / "one.json"
    assert Report.from_file(tmp_path / "one.json") == seen.report
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


@pytest.mark.parametrize(
    ("ends", "unclear", "word", "fails"),
    [
        ((0.1, 0.4), "warn", "passed", False),
        ((0.1, 0.9), "warn", "undecided", False),
        ((0.1, 0.9), "fail", "undecided", True),
        ((0.6, 0.9), "warn", "failed", True),
    ],
)
def test_the_word_travels_and_an_undecided_update_leaves_unless_the_policy_says_otherwise(
    ends: tuple[float, float], unclear: str, word: str, fails: bool
) -> None:
    rules = [{"metric": "observe.record_share", "max": 0.5, "unclear": unclear}]
    report = make_report(row_of("observe.record_share", "fc1", sum(ends) / 2, interval=ends))
    verdict = Verdict.of(gate(report, Policy.model_validate({"rules": rules})), 0.01)
    assert (verdict.word, verdict.passed, verdict.fails) == (word, word == "passed", fails)
    told = verdict.metrics()
    for each in ("passed", "failed", "undecided", "not_looked_at"):
        assert told[f"gradaudit.share_{each}"] == float(word == each)
    assert told["gradaudit.share_not_fit_to_leave"] == float(fails)
    assert str(verdict).startswith(f"{word}: ")


def test_labels_lead_out_of_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    for label in ("../../out", "a/b", "." * 500):
        assert look(generous(folder), label=label).file.parent == folder  # type: ignore[union-attr]
    assert {path.name for path in tmp_path.iterdir()} == {"reports"}
    assert len(list(folder.iterdir())) == 3


def test_a_policy_judges(policy: Path, tmp_path: Path) -> None:
    assert look(generous()).verdict.passed  # the default only warns
    seen = look(generous(policy=policy))
    assert (seen.verdict.passed, seen.verdict.shown) == (False, 1)
    with pytest.raises(Blocked, match=r"00001 may not leave: failed: 1 limit exc.*00001\.json"):
        look(generous(tmp_path / "kept", policy=policy, on_fail="raise"))
    assert (tmp_path / "kept" / "00001.json").exists()


def test_what_was_captured_is_read_as_an_update(tmp_path: Path) -> None:
    look(generous(capture=tmp_path), label="one", records=3)
    assert (tmp_path / "one.safetensors").stat().st_mode & 0o777 == 0o600
    state = load_checkpoint(tmp_path / "one.safetensors").state
    before = state_of(model())
    after = trained(before)
    assert set(state) == {name for name, _ in model().named_parameters()}
    for name, update in state.items():
        torch.testing.assert_close(update, before[name] - after[name])


def test_faults_of_its_own_let_training_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    observer = generous(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    assert "cannot be written" in look(observer).verdict.fault
    broken = generous()
    monkeypatch.setattr("gradaudit.observer.observer.reading_units", lambda _: 1 / 0)
    assert "ZeroDivisionError" in look(broken).verdict.fault


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_diverged_and_what_is_no_time_is_told_and_poisons_nothing(value: float) -> None:
    observer, before = generous(), state_of(model())
    after = trained(before)
    after["2.bias"][0] = value
    assert "not finite in 2.bias" in observer.observe(before, after, seconds=1).verdict.fault
    for seconds in (value, -1.0):
        assert "seconds: " in look(observer, seconds).verdict.fault
    assert look(observer).verdict.passed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 0.0}, "share: 0.0 is no share"),
        ({"share": "a"}, "share: 'a' is no share"),
        ({"share": math.nan}, "share: nan is no share"),
        ({"smoothing": 2}, "smoothing: 2 is no share"),
        ({"policy": {"rules": []}}, "is neither a Policy nor the file of one"),
        ({"on_fail": "stop"}, "none of 'tell', 'raise' and 'withhold'"),
        ({"policy": "missing.yaml"}, "missing.yaml"),
        ({"folder": "/dev/null/reports"}, "folder: /dev/null/reports cannot be made"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Observer(**options)


def test_a_watch_sees_a_round(tmp_path: Path) -> None:
    watched, observer = model(), generous(tmp_path)
    before = state_of(watched)
    with gradaudit.watch(watched, observer, records=3) as w:
        assert "nothing has been trained" in w.verdict.fault
        train(watched, steps=2)
    assert w.report is not None
    for row in w.report.select("observe.norm", layer="4"):
        change = [watched.state_dict()[n] - before[n] for n in ("4.weight", "4.bias")]
        exact = sum(float(part.square().sum()) for part in change) ** 0.5
        assert row.value == pytest.approx(exact, rel=1e-4)
    assert w.report.select("observe.beside")[0].value == 3


def test_a_watch_of_training_that_dies_reports_nothing(tmp_path: Path) -> None:
    watched = gradaudit.watch(model(), generous(tmp_path))
    with pytest.raises(RuntimeError, match="died"), watched as w:
        raise RuntimeError("died")
    assert w.report is None
    assert not list(tmp_path.iterdir())


def test_a_watch_sees_steps_of_its_own_model_and_lets_go() -> None:
    watched, other = model(), model()
    with gradaudit.watch(watched, generous(), each="step") as w:
        train(watched, count=1 + 1, steps=3)
        train(other)
    train(watched)
    assert (w.steps.steps, w.steps.looked_at) == (3, 3)
    assert w.report is not None
    assert {row.details["kind"] for row in w.report.select("observe.norm")} == {"gradient"}


def test_a_watch_withholds_steps(policy: Path) -> None:
    watched = model()
    before = state_of(watched)
    observer = generous(policy=policy, on_fail="withhold")
    with gradaudit.watch(watched, observer, each="step"):
        train(watched)
    assert all(torch.equal(before[name], p) for name, p in watched.named_parameters())


def test_a_watch_of_two_outputs_does_not_pass() -> None:
    watched = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    with gradaudit.watch(watched, generous()) as w:
        step(watched, torch.tensor([0, 1, 0]))
    assert w.report is not None
    assert {row.status for row in w.report.select("observe.record_share")} == {"skipped"}
    assert str(w.verdict).startswith("undecided: 0 limits exceeded, 0 unclear, 3 not looked at")
    assert w.verdict.may_leave


class Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"steps": 3}

    def set_extra_state(self, state: Any) -> None:
        """Take nothing over."""


class Noted(nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        state[kwargs.get("prefix", "") + "note"] = "trained on ward 7"
        return state


class Closed(nn.Linear):
    """Its state cannot be read from the given call on."""

    readable = 0

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.readable == 0:
            raise RuntimeError("state is sealed")
        self.readable -= 1
        return super().state_dict(*args, **kwargs)


class ClosedAtTheEnd(Closed):
    readable = 1


class Refusing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("log server is away")


ODD = {
    "extra state": (lambda: Extra(12, 4), "not observed, as it is no array: 0._extra_state"),
    "text": (lambda: Noted(12, 4), "not observed, as it is no array: 0.note"),
    "lazy": (lambda: nn.LazyLinear(4), "00001 is not observed: "),
    "closed": (lambda: Closed(12, 4), "00001 is not observed: RuntimeError: state is sealed"),
    "closed at the end": (lambda: ClosedAtTheEnd(12, 4), "RuntimeError: state is sealed"),
}


def step(module: nn.Module, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Train two steps with dropout, and return parameters and what the generator draws next."""
    torch.manual_seed(1)
    optimiser = None
    for _ in range(2):
        outputs = nn.functional.dropout(module(torch.randn(len(labels), 12)))
        optimiser = optimiser or torch.optim.Adam(module.parameters())
        optimiser.zero_grad()
        nn.functional.cross_entropy(outputs, labels).backward()
        optimiser.step()
    found = {name: p.detach().clone() for name, p in module.named_parameters()}
    return {**found, "next draw": torch.rand(3)}


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(make())


@pytest.mark.parametrize("each", ["round", "step"])
@pytest.mark.parametrize("handler", [None, Refusing()], ids=["log", "broken log"])
@pytest.mark.parametrize("name", ODD)
def test_a_watch_never_ends_training_nor_changes_it(
    name: str, handler: logging.Handler | None, each: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make, words = ODD[name]
    labels = torch.tensor([0, 1, 3])
    expected = step(built(make), labels)
    watched = built(make)
    if handler:
        logging.getLogger("gradaudit.observer").addHandler(handler)
    try:
        with gradaudit.watch(watched, generous(), each=each) as w:
            found = step(watched, labels)
    finally:
        logging.getLogger("gradaudit.observer").removeHandler(handler or Refusing())
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    if each == "round" and handler is None:
        (warning,) = caplog.messages
        assert words in warning
        assert bool(w.verdict.fault) == ("is not observed" in warning)
        assert w.verdict.fault in warning


def test_a_watch_that_cannot_look_blocks_where_it_is_asked_to() -> None:
    with pytest.raises(Blocked, match="state is sealed"):  # noqa: SIM117
        with gradaudit.watch(built(lambda: Closed(12, 4)), on_fail="raise"):
            pass


def test_a_watch_takes_an_observer_or_its_options() -> None:
    with pytest.raises(UsageError, match="share: give it to the observer"):
        gradaudit.watch(model(), generous(), share=0.5)
    with pytest.raises(UsageError, match="neither 'round' nor 'step'"):
        gradaudit.watch(model(), each="epoch")  # type: ignore[arg-type]
    assert gradaudit.watch(model(), share=0.5).observer.allowance.share == 0.5
