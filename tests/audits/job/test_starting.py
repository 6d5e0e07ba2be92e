"""What ``init --from`` and ``scan --job`` take from a job, and what they say they could not."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import run

pytest.importorskip("nvflare")
pytest.importorskip("flwr")

from job_folders import chain, dp, flower_app, nvflare_job

from gradaudit.audits.contract import breaches
from gradaudit.audits.job import Job
from gradaudit.audits.job.starting import beginning
from gradaudit.deployment import read_deployment
from gradaudit.models.building import load_model
from gradaudit.report import Report

pytestmark = pytest.mark.slow
TRAINING = """num-clients = 5
local-epochs = 2
batch-size = 4
learning-rate = 0.1
records = 12
optimizer = "SGD"
"""
NODES = """
[tool.flwr.federations]
default = "here"
[tool.flwr.federations.here]
options.num-supernodes = 40
"""
LOCAL = "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"
SILENT = ("optimizer", "momentum")
"""What only the training's code says, which is not read."""
SIGMA = 2 * np.sqrt(2 * np.log(1.25e5))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(columns: int = 6) -> str:
    """A table of so many columns and three classes; its spec."""
    drawn = np.random.default_rng(0).normal(size=(90, columns))
    rows = [",".join([*(f"{x:.3f}" for x in row), str(i % 3)]) for i, row in enumerate(drawn)]
    header = ",".join([*(f"x{place}" for place in range(columns)), "y"])
    Path("table.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    return "csv:table.csv?label=y"


def test_a_flower_app_gives_its_model_and_its_federation() -> None:
    found = beginning(flower_app(Path("app"), LOCAL, config=TRAINING))
    Path("federation.yaml").write_text(found.federation, encoding="utf-8")
    federation = read_deployment("federation.yaml")
    assert found.model == "app/tiny/net.py:Net"
    assert len(list(load_model(found.model).parameters())) == 6
    assert (federation.clients, federation.epochs, federation.batch_size) == (5, 2, 4)
    assert (federation.records, federation.rate, federation.optimizer) == (12, 0.1, "sgd")
    assert federation.algorithm == "fedavg"
    assert federation.defense == (f"dp:clip=10,sigma={SIGMA / 0.1:g},per=release",)
    assert [sentence.partition(":")[0] for sentence in found.untold] == ["momentum"]
    assert found.mode == "train"  # its model has BatchNorm
    law = f"# LocalDpMod of train: clip 1 and noise {SIGMA:g} on differences of weights"
    assert law in found.federation


def test_momentum_of_the_apps_configuration_is_taken() -> None:
    found = beginning(flower_app(Path("app"), LOCAL, config=TRAINING + "momentum = 0.9\n"))
    Path("federation.yaml").write_text(found.federation, encoding="utf-8")
    assert read_deployment("federation.yaml").momentum == 0.9
    assert found.untold == ()


def test_a_first_configuration_runs_batch_norm_as_clients_do() -> None:
    flower_app(Path("app"), LOCAL, config=TRAINING)
    assert run("init", "--from", "app").status == 0
    assert yaml.safe_load(Path("gradaudit.yaml").read_text(encoding="utf-8"))["mode"] == "train"


@pytest.mark.parametrize(("said", "clients"), [("", None), ("num-clients = 5", 5), (NODES, 40)])
def test_clients_are_those_that_the_app_names(said: str, clients: int | None) -> None:
    """Half of 40 supernodes take part; what a strategy waits for is no number of clients."""
    half = "FedAvg(fraction_train=0.5, fraction_evaluate=0.0)"
    found = beginning(flower_app(Path("app"), strategy=half, config=TRAINING[16:] + said))
    told = yaml.safe_load(found.federation)
    assert told.get("clients") == clients
    assert told.get("participation") == (clients and max(2, clients // 2))
    assert any(sentence.startswith("clients: ") for sentence in found.untold) is (clients is None)


def test_an_nvflare_job_gives_what_its_scripts_arguments_say() -> None:
    script = "--epochs 3 --batch_size 8 --lr 0.05 --data_path /data"
    found = beginning(nvflare_job(Path("job"), [chain(dp())], script=script))
    told = yaml.safe_load(found.federation)
    assert found.model == "job/app/custom/net.py:Net"
    assert told == {
        "clients": 4,
        "participation": 4,
        "batch-size": 8,
        "epochs": 3,
        "rate": 0.05,
        "aggregation": "plain",
    }
    assert [sentence.partition(":")[0] for sentence in found.untold] == [
        "defense",
        "records",
        *SILENT,
    ]


def test_init_writes_the_files_and_says_what_it_could_not_tell() -> None:
    nvflare_job(Path("job"), [chain(dp())])
    done = run("init", "--from", "job")
    assert done.status == 0, done.err
    assert "not found: records: how many a client trains on in a round" in done.out
    assert "wrote gradaudit.yaml, policy.yaml, federation.yaml" in done.out
    written = yaml.safe_load(Path("gradaudit.yaml").read_text(encoding="utf-8"))
    assert written == {
        "model": "job/app/custom/net.py:Net",
        "deployment": "federation.yaml",
        "mode": "train",
        "job": {"folder": "job"},
    }
    assert run("init", "--from", "job").status == 2  # nothing is overwritten


def test_what_init_says_to_fill_in_is_all_that_the_next_command_needs() -> None:
    nvflare_job(Path("job"), [chain(dp())])
    done = run("init", "--from", "job")
    needed = [line for line in done.out.splitlines() if line.startswith("fill in")]
    assert [line.partition(":")[0] for line in needed] == [
        "fill in data in gradaudit.yaml",
        "fill in federation.yaml, line 3",
    ]
    with Path("gradaudit.yaml").open("a", encoding="utf-8") as stream:
        stream.write(f"data: {table()}\n")
    assert needed[1].removeprefix("fill in ") in run("scan", "--dry-run").err
    with Path("federation.yaml").open("a", encoding="utf-8") as stream:
        stream.write("records: 20\n")
    assert run("scan", "--dry-run").status == 0


def test_the_job_command_reads_the_folder_from_the_file_that_init_writes() -> None:
    nvflare_job(Path("job"), [chain(dp())])
    run("init", "--from", "job")
    done = run("job")
    assert done.status == 0, done.err
    assert "train: training -> DpFilter -> server" in done.out
    Path("gradaudit.yaml").unlink()
    assert run("job").err == "gradaudit: name the folder of a job: gradaudit job JOB\n"


def test_a_scan_of_a_job_holds_its_findings_beside_those_of_its_model() -> None:
    nvflare_job(Path("job"), [chain(dp("buffers"))])
    words = ("--audits", "job,forward", "-d", table(), "--samples", "20", "-o", "report.json")
    words += ("-o", "report.md", "-o", "report.html")
    done = run("scan", "--job", "job", *words)
    assert (done.status, "FAILED" in done.out) == (1, True), done.err
    for text in (done.out, *(Path(f"report.{x}").read_text("utf-8") for x in ("md", "html"))):
        plain = " ".join(text.replace("<wbr>", "").split())
        assert "clip every array and add noise to it, or keep these on the client" in plain
        assert "epsilon, a client replaced: infinite (5 rounds, delta 1e-05" in plain
        assert "the job's chains are not applied here" in plain.replace("&#39;", "'")
        assert "app/config/config_fed_client.json:1: task_result_filters" in plain.replace("\\", "")
    report = Report.from_file(Path("report.json"))
    assert report.target.model == "job/app/custom/net.py:Net"
    layers = [layer.name for layer in report.target.layers]
    rows = report.select("job.faults", variant={})
    assert [row.details["faults"] for row in rows] == [["untouched-arrays (error)"]]
    assert breaches(Job, [row for row in report.measurements if row.audit == "job"], layers) == []
    assert any(row.audit == "forward" for row in report.measurements)


def test_a_scan_without_a_job_has_none() -> None:
    done = run("scan", "--audits", "job", "-d", table(), "-m", "zoo:mlp?inputs=6")
    assert done.status == 2
    assert "--audits job: no such audit" in done.err


def test_a_job_without_a_class_that_makes_its_arrays_says_so() -> None:
    folder = flower_app(Path("app"), LOCAL)
    path = folder / "tiny" / "net.py"
    made = "def __init__(self):"
    path.write_text(path.read_text().replace(made, "def __init__(self, width=5):"))
    text = (folder / "tiny" / "server_app.py").read_text()
    (folder / "tiny" / "server_app.py").write_text(text.replace("Net()", "Net(5).first"))
    found = beginning(folder)
    assert found.model is None
    assert "no class in its files makes the arrays" in found.untold[0]
    done = run("scan", "--job", "app", "-d", table())
    assert done.status == 2
    assert "name it with --model FILE.py:factory" in done.err


def test_an_app_whose_vectors_are_normalised_by_their_batch_is_audited_as_begun() -> None:
    spec = table(columns=64)
    flower_app(Path("app"), LOCAL, config=TRAINING)
    assert run("init", "--from", "app", "-d", spec).status == 0
    planned = run("scan", "--quick", "--dry-run")
    assert planned.status == 0, planned.err
    assert "attack attribution: quick" in planned.out
    sizes = ("--batch-size", 4, "--others", 1, "--rounds", 2, "--repeats", 2)
    done = run("attack", "attribution", *sizes, "-o", "r.json", "-q")
    assert done.status == 0, done.err
    assert Report.from_file("r.json").select("attack.rows_recovered")[0].status == "measured"
