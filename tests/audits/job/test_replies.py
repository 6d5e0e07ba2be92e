"""What leaves beside a result's arrays: numbers that mods add, and those that replies hold."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("flwr")

from command_line import run
from job_folders import chain, dp, flower_app, nvflare_job

from gradaudit.audits.job import JobOptions
from gradaudit.audits.job.measure import audited
from gradaudit.audits.job.replies import replies_of
from gradaudit.errors import UsageError

pytestmark = pytest.mark.slow
SAME = "and the same in every message that was looked at"
LOCAL = "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"
ADDED = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
def adds(record=None, value=None, kind=MetricRecord):
    def mod(message, context, call_next):
        before = next(iter(message.content.array_records.values())).to_numpy_ndarrays()
        answer = call_next(message, context)
        after = next(iter(answer.content.array_records.values())).to_numpy_ndarrays()
        norm = sum(float(((a - b) ** 2).sum()) for a, b in zip(after, before)) ** 0.5
        given = answer.content.metric_records.get("metrics", {})
        found = value(norm, given) if callable(value) else value
        answer.content[record] = kind({**answer.content.get(record, {}), "mine": found})
        return answer
    return mod
norm = adds("monitor", lambda norm, given: norm)
inside = adds("metrics", lambda norm, given: norm)
several = adds("monitor", lambda norm, given: [1.0, norm])
text = adds("monitor", lambda norm, given: f"norm {norm}", ConfigRecord)
doubled = adds("monitor", lambda norm, given: 2 * given["train_loss"])
fixed = adds("monitor", 150)
counts = adds("monitor", [3, 4])
host = adds("monitor", "pc 7", ConfigRecord)
noisy = adds("monitor", lambda norm, given: norm + np.random.normal())
def short(message, context, call_next):
    answer = norm(message, context, call_next)
    if answer.content["monitor"]["mine"] > 10:
        del answer.content["monitor"]
    return answer
def twice(message, context, call_next):
    answer = call_next(message, context)
    answer.content["copy"] = ArrayRecord(dict(next(iter(answer.content.array_records.values()))))
    return answer
def group(message, context, call_next):
    answer = call_next(message, context)
    first = next(iter(answer.content.array_records.values())).to_numpy_ndarrays()[0]
    answer.metadata.group_id = str(first.ravel()[:3])
    return answer
def reason(message, context, call_next):
    answer = call_next(message, context)
    if message.metadata.message_type == "evaluate":
        return Message(Error(code=1, reason=repr(answer.content)), reply_to=message)
    return answer
def quarter(message, context, call_next):
    answer = call_next(message, context)
    (key, record), = answer.content.array_records.items()
    halved = {k: Array((a.numpy() * 0.25).astype(a.dtype)) for k, a in record.items()}
    answer.content[key] = ArrayRecord(halved)
    return answer
def sometimes(message, context, call_next):
    answer = call_next(message, context)
    (key, record), = answer.content.array_records.items()
    if max(abs(float(a.numpy().max())) for a in record.values()) > 100:
        halved = {k: Array((a.numpy() * 0.25).astype(a.dtype)) for k, a in record.items()}
        answer.content[key] = ArrayRecord(halved)
    return answer
"""


def faults(mods: str, folder: Path, **options: Any) -> dict[str, str]:
    """The faults of an app with these mods, by name: what each says."""
    found = audited(flower_app(folder, mods, client=ADDED), JobOptions(**options))
    return {fault.name: fault.says for fault in found.faults}


@pytest.mark.parametrize(
    ("mod", "replies"),
    [
        ("norm", ("none",)),
        ("norm", ("num-examples=1", "train_loss=none")),
        ("inside", ("none",)),
        ("several", ("none",)),
        ("text", ("none",)),
        ("short", ("none",)),
    ],
)
def test_what_a_mod_adds_of_the_update_is_in_clear(
    mod: str, replies: tuple[str, ...], tmp_path: Path
) -> None:
    """A number, a list or a text, or of short updates alone; inside the noise."""
    found = faults(f"{LOCAL}, {mod}", tmp_path, replies=replies)
    assert found.keys() == {"numbers-in-clear"}
    assert found["numbers-in-clear"].endswith(": mine")


def test_what_a_mod_writes_into_metadata_is_in_clear(tmp_path: Path) -> None:
    found = faults(f"{LOCAL}, group", tmp_path, replies=("none",))
    assert found.keys() == {"numbers-in-clear"}
    assert found["numbers-in-clear"].endswith(": metadata.group_id")


def test_the_reason_of_an_error_that_a_mod_replies_leaves_the_client(tmp_path: Path) -> None:
    evaluated = {"evaluate": True, "strategy": "FedAvg()"}
    job = flower_app(tmp_path, LOCAL, app_mods="reason", client=ADDED, **evaluated)
    done = run("job", str(job), "--replies", "num-examples=1", "--replies", "train_loss=none")
    assert done.status == 1
    assert "error error-reply (evaluate)" in " ".join(done.out.split())


def test_such_a_number_makes_epsilon_infinite_and_the_command_fail(tmp_path: Path) -> None:
    job = flower_app(tmp_path, f"{LOCAL}, norm", client=ADDED)
    done = run("job", str(job), "--replies", "none")
    assert done.status == 1
    assert "infinite, because these numbers leave in clear: mine" in " ".join(done.out.split())
    assert "FAILED" in done.out
    assert "PASSED" not in done.out


@pytest.mark.parametrize("mods", [f"{LOCAL}, noisy", f"norm, {LOCAL}"])
def test_a_number_under_noise_of_no_known_law_leaves_epsilon_unknown(
    mods: str, tmp_path: Path
) -> None:
    """Noise of its own, or a function of arrays under noise: neither can be told apart."""
    job = audited(flower_app(tmp_path, mods, client=ADDED), JobOptions(replies=("none",)))
    assert {fault.name: fault.level for fault in job.faults} == {"numbers-under-noise": "warning"}
    assert job.strength[""].why == "unbounded by what is known: the noise on mine"


CONSTANTS = {
    "fixed": ("mine=150", "mine=151"),
    "counts": ("mine=[3, 4]", "mine=[3, 5]"),
    "host": ("mine=pc 7", "mine=pc 8"),
}


@pytest.mark.parametrize("mod", CONSTANTS)
def test_a_constant_that_a_mod_adds_is_undecided_until_it_is_declared(
    mod: str, tmp_path: Path
) -> None:
    """A number, a list or a text: a record may decide it, which no simulated update shows."""
    job = flower_app(tmp_path, f"{LOCAL}, {mod}", client=ADDED)
    right, _ = CONSTANTS[mod]
    done = run("job", str(job), "--replies", "none")
    said = " ".join(done.out.split())
    assert "UNDECIDED by" in said
    assert f"warning numbers-constant (train): added by filters or mods, {SAME}: {right}" in said
    assert f"epsilon assumes that no record decides {right}, which filters or mods add" in said
    done = run("job", str(job), "--replies", "none", "--replies", right)
    assert "PASSED by" in done.out
    assert f"assumes that no record decides {right}, as declared" in " ".join(done.out.split())


@pytest.mark.parametrize("mod", CONSTANTS)
def test_another_value_than_the_declared_one_is_seen(mod: str, tmp_path: Path) -> None:
    job = flower_app(tmp_path, f"{LOCAL}, {mod}", client=ADDED)
    right, wrong = CONSTANTS[mod]
    done = run("job", str(job), "--replies", "none", "--replies", wrong)
    assert "PASSED" not in done.out
    assert f": {right}" in " ".join((done.out + done.err).split())


def test_a_usual_number_that_a_mod_replaces_by_a_constant_is_declared_too(tmp_path: Path) -> None:
    """A count of the data in place of the reply's own."""
    folder = nvflare_job(
        tmp_path,
        [chain(dp()), chain({"path": "filters.NoMetrics", "args": {}}, tasks=["validate"])],
        tasks=["train", "validate"],
    )
    found = audited(folder, JobOptions()).faults
    assert {fault.name: fault.task for fault in found} == {"numbers-constant": "validate"}
    assert not audited(folder, JobOptions(replies=("accuracy=0",))).faults


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        (("train_los=none",), "--replies train_los=none: no reply is assumed to hold it; assumed"),
        (("eval.none",), "--replies eval.none: no results of such a task leave; those that do: tr"),
        (("train_loss=low",), "--replies train_loss=low: 'low' is no number; write NAME=NUMBER"),
        (("hst=pc 7",), "--replies hst=pc 7: 'pc 7' is no number; write NAME=NUMBER, NAME=none"),
    ],
)
def test_a_reply_that_nothing_holds_is_refused_by_what_was_typed(
    replies: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        audited(flower_app(tmp_path, f"{LOCAL}, host", client=ADDED), JobOptions(replies=replies))
    assert str(refused.value).startswith(said)


def test_a_task_without_numbers_is_declared_beside_numbers_of_other_tasks(tmp_path: Path) -> None:
    folder = flower_app(tmp_path, LOCAL, evaluate=True, strategy="FedAvg()")
    replies = ("num-examples=1", "train_loss=none", "evaluate.none")
    assert not audited(folder, JobOptions(replies=replies)).faults


@pytest.mark.parametrize(
    ("replies", "name"), [((), "numbers-assumed"), (("train_loss",), "numbers-in-clear")]
)
def test_a_function_of_a_reply_is_what_the_reply_is(
    replies: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    assert "mine" in faults(f"{LOCAL}, doubled", tmp_path, replies=replies)[name]


def test_arrays_that_leave_a_second_time_are_not_measured(tmp_path: Path) -> None:
    found = faults(f"twice, {LOCAL}", tmp_path)
    assert found.keys() == {"result-unmeasured"}
    assert "a second time" in found["result-unmeasured"]


@pytest.mark.parametrize(
    ("mods", "known"),
    [
        (LOCAL, True),
        (f"{LOCAL}, fixed", True),
        (f"fixed, {LOCAL}", True),
        (f"fixed, {LOCAL}, norm", True),
        (f"{LOCAL}, quarter", False),
        (f"quarter, {LOCAL}", False),
        (f"{LOCAL}, sometimes", False),
        (f"{LOCAL}, {LOCAL}", False),
    ],
)
def test_a_law_is_known_beside_mods_that_leave_arrays_alone(
    mods: str, known: bool, tmp_path: Path
) -> None:
    found = audited(flower_app(tmp_path, mods, client=ADDED), JobOptions())
    assert (found.job.chains[0].known is not None) is known


@pytest.mark.parametrize(
    ("replies", "assumed"),
    [
        ((), {"num-examples, train_loss", "eval_loss, loss, num-examples"}),
        (("num-examples=1",), {"train_loss", "eval_loss, loss"}),
        (("num-examples=1", "train_loss=none"), {"eval_loss, loss"}),
        (("train.num-examples=1",), {"train_loss", "eval_loss, loss, num-examples"}),
        (("train.none",), {"eval_loss, loss, num-examples"}),
        (("none",), set()),
    ],
)
def test_undeclared_numbers_stay_assumed(
    replies: tuple[str, ...], assumed: set[str], tmp_path: Path
) -> None:
    folder = flower_app(tmp_path, LOCAL, evaluate=True, strategy="FedAvg()")
    found = audited(folder, JobOptions(replies=replies)).faults
    names = {f.says.partition(": ")[2] for f in found if f.name == "numbers-assumed"}
    assert {", ".join(sorted(each.split(", "))) for each in names} == assumed


@pytest.mark.parametrize(
    ("reply", "tasks"),
    [("train.train_loss", {"train"}), ("train_loss", {"train"}), ("own", {"train", "evaluate"})],
)
def test_a_declared_number_is_that_of_its_task(reply: str, tasks: set[str], tmp_path: Path) -> None:
    """Without a task, of those whose replies usually hold it; of all, where none does."""
    folder = flower_app(tmp_path, LOCAL, evaluate=True, strategy="FedAvg()")
    found = audited(folder, JobOptions(replies=(reply,))).faults
    assert {fault.task for fault in found if fault.level == "error"} == tasks


@pytest.mark.parametrize("replies", [("none", "loss"), ("loss", "none"), ("train.none", "own")])
def test_no_number_and_one_beside_it_are_refused(replies: tuple[str, ...], tmp_path: Path) -> None:
    folder = flower_app(tmp_path, LOCAL, evaluate=True, strategy="FedAvg()")
    with pytest.raises(UsageError, match=r"replies of \w+ hold \w+ too; leave out [\w.]+, and"):
        audited(folder, JobOptions(replies=replies))


def test_a_filter_that_adds_to_a_result_is_seen(tmp_path: Path) -> None:
    """Beside the DXO, in its meta data, and in a header."""
    code = """
from nvflare.apis.filter import Filter
import numpy as np
class Adds(Filter):
    def __init__(self, where):
        super().__init__()
        self.where = where
    def process(self, shareable, context):
        array = np.concatenate([np.ravel(a) for a in shareable["DXO"]["data"].values()])
        if self.where == "meta":
            shareable["DXO"]["meta"]["mine"] = float(abs(array).max())
        elif self.where == "header":
            shareable.set_header("mine", float(array[0]))
        else:
            shareable["mine"] = np.repeat(array, 1000)
        return shareable
"""
    for where, name in (("meta", "mine"), ("header", "__headers__"), ("beside", "mine")):
        adds = {"path": "adds.Adds", "args": {"where": where}}
        folder = nvflare_job(tmp_path / where, [chain(dp(keep_meta=True), adds)])
        (folder / "app" / "custom" / "adds.py").write_text(code, encoding="utf-8")
        found = audited(folder, JobOptions(replies=("none",))).faults
        assert [(f.name, f.says.rpartition(": ")[2]) for f in found] == [
            ("numbers-under-noise", name)
        ]


def test_replies_are_parsed_by_name_and_value() -> None:
    values = [reply.value for reply in replies_of(["a=1", "b", "c=none", "d = 0.5"])]
    assert values == [1.0, None, "none", 0.5]


def test_a_number_declared_to_be_sent_and_not_to_be_sent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train_loss=none: another option declares"):
        faults(LOCAL, tmp_path, replies=("train_loss", "train_loss=none"))
