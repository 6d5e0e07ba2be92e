"""What leaves a job's clients in rounds after the first, whose state is carried over."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")
pytest.importorskip("flwr")

from command_line import run
from job_folders import chain, flower_app, nvflare_job

from gradaudit.audits.dp_audit.middleware.payload import Arrays, Layout, Outgoing
from gradaudit.audits.job import JobOptions
from gradaudit.audits.job.job_rounds import chosen_rounds, played_rounds, rounds_text
from gradaudit.audits.job.loading.chains import Carry, JobChain, State
from gradaudit.audits.job.measure import audited, rows_of

LATE = """
from flwr.app import Array, ArrayRecord, MetricRecord
def number(message, context):
    return message.content["config"]["server-round"]
def kept(message, context):
    count = dict(context.state.get("count", {"n": 0}))["n"] + 1
    context.state["count"] = MetricRecord({"n": count})
    return count
def raw(first, last=1000, count=number):
    protect = LocalDpMod(1.0, 2.0, 1.0, 1e-5)
    def mod(message, context, call_next):
        trained = {}
        def inner(message, context):
            answer = call_next(message, context)
            record = next(iter(answer.content.array_records.values()))
            trained.update({key: Array(array.numpy()) for key, array in record.items()})
            return answer
        answer = protect(message, context, inner)
        if first <= count(message, context) <= last:
            key = next(iter(answer.content.array_records))
            answer.content[key] = ArrayRecord(trained)
        return answer
    return mod
def adds(at, value):
    def mod(message, context, call_next):
        answer = call_next(message, context)
        if number(message, context) == at:
            sent = next(iter(answer.content.array_records.values()))
            found = float(next(iter(sent.values())).numpy().sum())
            answer.content["late"] = MetricRecord({"mine": found if value is None else value})
        return answer
    return mod
"""
LOCAL = "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mod", "rounds"),
    [
        ("raw(7)", "(rounds 7 to 20)"),
        ("raw(7, 7)", "(round 7)"),
        ("raw(20)", "(round 20)"),
        ("raw(1, 1)", "(round 1)"),
        ("raw(12, 13, kept)", "(rounds 12, 13)"),
    ],
)
def test_a_mod_that_sends_raw_weights_in_some_rounds_fails(
    mod: str, rounds: str, tmp_path: Path
) -> None:
    """By the message's round, or by the state of the client."""
    job = flower_app(tmp_path, mod, client=LATE)
    done = run("job", str(job), "--replies", "none", "--rounds", "20")
    said = " ".join(done.out.split())
    assert done.status == 1
    assert "FAILED by" in said
    assert "PASSED" not in said
    assert f"leaves as training made it through mod {rounds}" in said
    assert "epsilon, a client replaced: infinite (20 rounds" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "name", "status"), [("None", "numbers-in-clear", 1), ("3.0", "numbers-constant", 0)]
)
def test_a_number_that_is_added_in_one_round_is_seen(
    value: str, name: str, status: int, tmp_path: Path
) -> None:
    job = flower_app(tmp_path, f"{LOCAL}, adds(5, {value})", client=LATE)
    done = run("job", str(job), "--replies", "none")
    said = " ".join(done.out.split())
    assert done.status == status
    assert "PASSED" not in said
    assert f" {name} (train): " in said
    assert "(round 5)" in said


@pytest.mark.slow
def test_epsilon_of_rounds_that_were_not_played_is_an_assumption(tmp_path: Path) -> None:
    """Of 300 rounds 200 are played; the law of a known mod alone holds in any."""
    options = JobOptions(replies=("none",), rounds=300, noise="gaussian")
    known = audited(flower_app(tmp_path / "known", LOCAL, client=LATE), options)
    assert not known.unplayed
    found = audited(flower_app(tmp_path / "own", f"{LOCAL}, raw(3000)", client=LATE), options)
    (row, *_) = (r for r in rows_of(found, options) if r.metric == "epsilon_client")
    assert "assumes of the other rounds what is seen in those played" in str(row.details["remarks"])
    (faults, *_) = (r for r in rows_of(found, options) if r.metric == "faults")
    assert "of 300 played" in str(faults.details["warning"])


@pytest.mark.slow
def test_a_filter_that_turns_itself_off_is_found_in_its_round(tmp_path: Path) -> None:
    """By the round's number in the result's header."""
    code = """
from filters import DpFilter
class Late(DpFilter):
    def process_dxo(self, dxo, shareable, fl_ctx):
        if shareable.get_header("current_round") >= 3:
            dxo.meta = {}
            return dxo
        return DpFilter.process_dxo(self, dxo, shareable, fl_ctx)
"""
    folder = nvflare_job(tmp_path, [chain({"path": "switching.Late", "args": {}})])
    (folder / "app" / "custom" / "switching.py").write_text(code, encoding="utf-8")
    (fault,) = audited(folder, JobOptions(noise="gaussian")).faults
    assert fault.name == "update-unfiltered"
    assert fault.says.endswith("(rounds 4, 5)")


def scaled(factors: dict[int, float]) -> JobChain:
    """A chain that multiplies the update by a factor of its round, and counts its rounds."""

    def in_round(number: int, state: State) -> Carry | None:
        def carry(received: Arrays, given: Outgoing) -> Outgoing:
            state["n"] = state.get("n", 0) + 1
            sent = {key: array * factors.get(number, 1.0) for key, array in given.arrays.items()}
            return Outgoing(sent, "differences", {"n": state["n"] > 4})

        return None if number == 3 else carry

    made = JobChain("train", [], "differences", lambda received, given: given, in_round=in_round)
    return made.receiving(Layout({"fc": np.ones(50, np.float32)}))


def test_rounds_of_the_same_message_are_one_kind() -> None:
    kinds = played_rounds(scaled({2: 0.5, 9: 0.5}), 10, 0)
    assert [kind.numbers for kind in kinds] == [(1, 4, 5), (2,), (6, 7, 8, 10), (9,)]
    assert all(kind.again == kind.message for kind in kinds)


@pytest.mark.parametrize(("total", "elements"), [(1, 10), (2, 10), (20, 10), (200, 10)])
def test_few_rounds_of_a_small_model_are_all_played(total: int, elements: int) -> None:
    assert chosen_rounds(total, elements) == list(range(1, total + 1))


@pytest.mark.parametrize(("total", "elements"), [(201, 10), (11, 10**9), (10**6, 10**6)])
def test_of_many_rounds_the_first_two_and_the_last_are_played(total: int, elements: int) -> None:
    chosen = chosen_rounds(total, elements)
    assert chosen[:2] == [1, 2]
    assert chosen[-1] == total
    assert 9 <= len(chosen) <= 200


def test_rounds_are_named_by_ranges() -> None:
    assert rounds_text([7]) == "round 7"
    assert rounds_text([1, 2, 5, 9, 8, 7]) == "rounds 1, 2, 5, 7 to 9"
