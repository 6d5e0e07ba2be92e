"""Jobs that cannot be loaded or looked at: nothing passes unseen, and the reason is one line."""

import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run

pytest.importorskip("nvflare")
pytest.importorskip("flwr")

from job_folders import chain, dp, flower_app, nvflare_job

from gradaudit.audits.job import JobOptions
from gradaudit.audits.job.measure import Audited, audited, report_of

pytestmark = pytest.mark.slow
FIXED = (
    "DifferentialPrivacyServerSideFixedClipping("
    "FedAvg(fraction_train=1.0, min_train_nodes=4, min_available_nodes=4{}), 1.0, 0.5, 4)"
)
FAILS = """
def fails(message, context, call_next):
    answer = call_next(message, context)
    answer.content["nowhere"]
    return answer
"""


def faults(found: Audited) -> dict[str, str]:
    """The file and key of each fault, by its name."""
    return {fault.name: f"{fault.file}: {fault.key}" for fault in found.faults}


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_job_whose_mod_fails_on_an_update_does_not_pass(tmp_path: Path) -> None:
    folder = flower_app(tmp_path, "fails", client=FAILS)
    found = audited(folder, JobOptions())
    (fault,) = found.faults
    assert (fault.name, fault.level, fault.task) == ("result-unmeasured", "error", "train")
    assert "the chain of train: fails with KeyError: 'nowhere'" in fault.says
    (row,) = report_of(folder, JobOptions(), {}).select("job.epsilon_client", variant={})
    assert row.value is None


def test_a_mod_of_legacy_apps_names_the_import_that_works(tmp_path: Path) -> None:
    arguments = "(1.0, 2.0, 1.0, 1e-5)"
    old = "from flwr.client.mod import LocalDpMod as Old"
    (fault,) = audited(
        flower_app(tmp_path / "old", f"Old{arguments}", client=old), JobOptions(replies=("none",))
    ).faults
    assert (fault.name, fault.level) == ("legacy-mod", "error")
    assert "from flwr.clientapp.mod instead of" in fault.repair
    new = old.replace("flwr.client.mod", "flwr.clientapp.mod")
    folder = flower_app(tmp_path / "new", f"Old{arguments}", client=new)
    assert not audited(folder, JobOptions(replies=("none",))).faults


def test_a_job_whose_strategy_fails_on_replies_does_not_pass(tmp_path: Path) -> None:
    folder = flower_app(tmp_path, strategy=f"Fails({FIXED.format('')}, 4)")
    inner = "DifferentialPrivacyServerSideFixedClipping"
    made = f"""
class Fails({inner}):
    def __init__(self, inner, clients):
        super().__init__(inner.strategy, 1.0, 0.5, clients)
    def aggregate_train(self, *given):
        raise KeyError("nowhere")
app = ServerApp()"""
    changed(folder / "tiny" / "server_app.py", "app = ServerApp()", made)
    found = audited(folder, JobOptions())
    assert faults(found) == {"result-unmeasured": "tiny/server_app.py: Fails"}
    assert found.central is not None
    assert (
        found.central.why == "unbounded by what is known: the released mean could not be measured"
    )


def test_records_and_counts_are_named_as_the_strategy_names_them(tmp_path: Path) -> None:
    """A strategy that asks for ``model`` and weighs by ``samples``, and a mod that reads these."""
    names = ', arrayrecord_key="model", weighted_by_key="samples"'
    folder = flower_app(tmp_path, "reads", strategy=FIXED.format(names), client=FAILS)
    changed(folder / "tiny" / "client_app.py", "def fails", "def reads")
    changed(folder / "tiny" / "client_app.py", '["nowhere"]', '["model"]')
    found = audited(folder, JobOptions())
    assert faults(found) == {"mean-weighted-by-counts": "tiny/server_app.py: weighted_by_key"}
    assert "the mean weighs clients by samples" in found.faults[0].says


def test_an_evaluation_counts_where_the_strategy_asks_for_it_in_any_round(tmp_path: Path) -> None:
    late = """
class Late(FedAvg):
    def configure_evaluate(self, number, *given):
        return super().configure_evaluate(number, *given) if number == 5 else []
app = ServerApp()"""
    for strategy, expected in (
        ("FedAvg(fraction_evaluate=0.0)", {}),
        (
            "Late()",
            {"numbers-assumed": "tiny/client_app.py: mods= of ClientApp or of @app.evaluate"},
        ),
    ):
        folder = flower_app(tmp_path / strategy[:4], "DpMod()", strategy=strategy, evaluate=True)
        changed(folder / "tiny" / "server_app.py", "app = ServerApp()", late)
        found = audited(folder, JobOptions())
        assert faults(found) == expected
        assert bool(found.job.notes) is not bool(expected)


def test_a_clip_that_divides_by_the_norm_of_an_array_is_looked_at(tmp_path: Path) -> None:
    """No update that moves one array alone passes it."""
    folder = nvflare_job(tmp_path, [chain(dp("per-array"))])
    changed(folder / "app" / "custom" / "filters.py", "max(np.linalg.norm(a), 1e-30)", "norm_of(a)")
    changed(
        folder / "app" / "custom" / "filters.py",
        "class Dp:",
        "def norm_of(a):\n    return 1 / (1 / float(np.linalg.norm(a)))\n\nclass Dp:",
    )
    assert set(faults(audited(folder, JobOptions()))) == {"clip-per-array"}


def test_noise_of_a_declared_deviation_may_be_meant_in_clips_or_as_it_is(tmp_path: Path) -> None:
    """Noise of 1 on a clip of 2: the 1/2 that is declared is in clips, and a tenth is not."""
    added = {"": set(), "divided": {"noise-below-declared"}}
    for fault, expected in added.items():
        folder = nvflare_job(tmp_path / f"a{fault}", [chain(dp(fault, clip=2.0))])
        names = "self.fault, self.clip, self.noise_multiplier = fault, clip, noise_multiplier"
        sigma = "self.fault, self.clip, self.sigma = fault, clip, noise_multiplier / 2"
        changed(folder / "app" / "custom" / "filters.py", names, sigma)
        changed(folder / "app" / "custom" / "filters.py", "self.noise_multiplier", "self.sigma")
        assert set(faults(audited(folder, JobOptions()))) == expected


def one_line(*words: str) -> str:
    """What a command says that ends with 2, which is one line."""
    done = run(*words)
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    return done.err


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "serverapp =", "server =", 'Property "serverapp" missing'),
        (
            "tiny/server_app.py",
            "'num-server-rounds'",
            "'rounds'",
            "KeyError: 'rounds' (server_app.py, line",
        ),
        ("tiny/net.py", "nn.Linear(64, 32)", "nn.Linear(64)", "missing 1 required positional"),
        (
            "tiny/server_app.py",
            "initial_arrays=",
            "initial=",
            "a required argument: 'initial_arrays'",
        ),
        ("tiny/client_app.py", "from tiny.mods", "from tiny.mod", "No module named 'tiny.mod'"),
    ],
)
def test_why_a_flower_app_cannot_be_loaded_is_said(
    file: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    changed(flower_app(tmp_path) / file, old, new)
    assert said in one_line("job", str(tmp_path))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("meta.json", "[1]", "meta.json: holds no keys and values"),
        ("meta.json", '{"deploy_map": []}', "deploy_map deploys no app to 'site-1'"),
        ("app/config/config_fed_server.json", "[]", "config_fed_server.json: holds no keys"),
        (
            "app/config/config_fed_client.json",
            "{",
            "config_fed_client.json: cannot be read: JSONDecodeError",
        ),
    ],
)
def test_why_an_nvflare_job_cannot_be_loaded_is_said(
    file: str, text: str, said: str, tmp_path: Path
) -> None:
    (nvflare_job(tmp_path) / file).write_text(text, encoding="utf-8")
    assert said in one_line("job", str(tmp_path))


def test_a_filter_that_cannot_be_made_is_said_once(tmp_path: Path) -> None:
    nvflare_job(tmp_path, [chain(dp(clipp=1.0))])
    assert "unexpected keyword argument 'clipp'" in one_line("job", str(tmp_path))


def test_a_policy_of_a_site_that_is_not_there_is_refused(tmp_path: Path) -> None:
    nvflare_job(tmp_path / "a", [chain(dp())])
    flower_app(tmp_path / "b")
    said = one_line("job", str(tmp_path / "a"), "--site", str(tmp_path / "privacy.json"))
    assert "privacy.json: no such file" in said
    (tmp_path / "privacy.json").write_text("{}", encoding="utf-8")
    said = one_line("job", str(tmp_path / "b"), "--site", str(tmp_path / "privacy.json"))
    assert "a Flower app runs under no site's policy" in said


def test_too_few_clients_are_a_wrong_option(tmp_path: Path) -> None:
    folder = flower_app(tmp_path, strategy=FIXED.format(""))
    said = "the strategy waits for 4 clients: --clients 3"
    assert said in one_line("job", str(folder), "--clients", "3")


@pytest.mark.parametrize(
    ("module", "file", "extra"),
    [("flower_app", "pyproject.toml", "flower"), ("nvflare_job", "meta.json", "nvflare")],
)
def test_without_its_framework_a_job_names_the_extra_to_install(
    module: str, file: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"gradaudit.audits.job.loading.{module}", None)
    (tmp_path / file).write_text(json.dumps({}), encoding="utf-8")
    assert f"install gradaudit[{extra}]" in one_line("job", str(tmp_path))


BOMB = "a0 = " + "x" * 64 + "\n" + "".join(f"a{i + 1} = ${{a{i}}}${{a{i}}}\n" for i in range(30))
LISTS = "a0 = [1, 2]\n" + "".join(f"a{i + 1} = ${{a{i}}} ${{a{i}}}\n" for i in range(30))
REFERENCES = {"b0": "x" * 64, **{f"b{i + 1}": f"{{b{i}}}{{b{i}}}" for i in range(30)}}
META = 'name = "job"\ndeploy_map { app = ["@ALL"] }\n'


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("replaced", [fifo, zeros])
@pytest.mark.parametrize(
    "name", ["meta.json", "app/config/config_fed_client.json", "app/config/config_fed_server.json"]
)
def test_a_pipe_or_a_device_in_an_nvflare_job_is_refused_unopened(
    name: str, replaced: Callable[[Path], None], tmp_path: Path
) -> None:
    path = nvflare_job(tmp_path) / name
    path.unlink()
    replaced(path)
    said = one_line("job", str(tmp_path))
    assert Path(name).name in said
    assert "no regular file" in said or "outside the job's folder" in said


@pytest.mark.parametrize("replaced", [fifo, zeros])
def test_a_pipe_or_a_device_as_a_project_is_refused_unopened(
    replaced: Callable[[Path], None], tmp_path: Path
) -> None:
    path = flower_app(tmp_path) / "pyproject.toml"
    path.unlink()
    replaced(path)
    said = one_line("job", str(tmp_path))
    assert "no regular file" in said or "outside the job's folder" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('include url("http://127.0.0.1:9/a.conf")\n', "gradaudit follows no includes"),
        ('include file("/dev/zero")\n', "gradaudit follows no includes"),
        ('include required(file("other.conf"))\n', "gradaudit follows no includes"),
        ('include "other.conf"\n', "gradaudit follows no includes"),
        (BOMB, "meta.conf"),
        (LISTS, "meta.conf"),
    ],
    ids=["url", "device", "required", "plain", "texts", "lists"],
)
def test_hocon_opens_nothing_else_and_bombs_end_in_one_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No socket is opened, and what a text unpacks to is made in a child process alone."""
    monkeypatch.setattr(socket, "socket", None)
    folder = nvflare_job(tmp_path)
    (folder / "meta.json").unlink()
    (folder / "other.conf").write_text("a = 1\n", encoding="utf-8")
    (folder / "meta.conf").write_text(text + META, encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert said in one_line("job", str(tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_references_that_grow_without_end_are_resolved_in_the_child(tmp_path: Path) -> None:
    nvflare_job(tmp_path, client=REFERENCES)
    assert "config_fed_client.json" in one_line("job", str(tmp_path))


def test_too_many_tasks_are_refused(tmp_path: Path) -> None:
    nvflare_job(tmp_path, tasks=[f"t{i}" for i in range(20_000)])
    assert "tasks; at most 100" in one_line("job", str(tmp_path))


@pytest.mark.parametrize("linked", [False, True])
def test_an_app_outside_the_folder_is_not_run(linked: bool, tmp_path: Path) -> None:
    outside = nvflare_job(tmp_path / "other") / "app"
    (outside / "custom" / "net.py").write_text('raise SystemExit("it was run")', encoding="utf-8")
    meta = {"deploy_map": {"linked" if linked else "../other/app": ["@ALL"]}}
    folder = nvflare_job(tmp_path / "job", meta=meta)
    (folder / "linked").symlink_to(outside)
    said = one_line("job", str(folder))
    assert "lies outside the job's folder" in said
