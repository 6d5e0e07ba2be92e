"""``gradaudit train`` from the command line, and audits of what it leaves."""

import json
from pathlib import Path

import pytest
import torch
from command_line import Result, run
from safetensors.torch import load_file

from gradaudit.executors.locking import locked

MODEL = "zoo:mlp?inputs=10&hidden=6&classes=2"


def train(out: Path, *arguments: object) -> Result:
    given = ("--clients", 3, "--rounds", 2, "--rate", 0.5, *arguments)
    return run("train", "-m", MODEL, "-d", "diabetes", "--out", out, *given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a run, for tests that change nothing in it, and what the command said."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, train(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
def test_it_writes_rounds_that_audits_take(trained: tuple[Path, Result]) -> None:
    folder, done = trained
    assert done.status == 0, done.err
    files = sorted(file.name for file in folder.iterdir())
    rounds = [f"round-00{number}.safetensors" for number in range(3)]
    assert files == ["resume.safetensors", *rounds, "run.json"]
    assert "3 clients with 118 records each, 88 records for testing" in done.out
    told = json.loads((folder / "run.json").read_text())
    assert [line["round"] for line in told["rounds"]] == [0, 1, 2]
    assert len(told["test"]) == 88
    assert sum(told["sizes"]) + 88 == told["records"] == 442
    given = [word for name in rounds for word in ("-c", folder / name)]
    audited = run(
        "sensitivity", "-m", MODEL, "-d", "diabetes", *given, "--samples", 5, "-f", "json", "-q"
    )
    assert audited.status == 0, audited.err
    assert len(json.loads(audited.out)["target"]["checkpoints"]) == 3


def test_the_same_command_goes_on_and_changes_nothing(
    trained: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, _ = trained
    before = contents(folder)
    assert train(folder).status == 0
    assert contents(folder) == before
    assert train(tmp_path / "again").status == 0
    assert contents(tmp_path / "again") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", 1], "holds another run (seed was 0, now 1)"),
        (["--rate", 0.1], "holds another run (rate was 0.5, now 0.1)"),
        (["--defense", "sign"], "holds another run (defense was [], now ['sign'])"),
        (["--algorithm", "fedsgd"], "holds another run (algorithm was 'fedavg'"),
        (["--test-share", 0.5], "holds another run (test_share was None, now 0.5)"),
    ],
    ids=str,
)
def test_another_run_is_refused_and_nothing_overwritten(
    arguments: list[object], message: str, trained: tuple[Path, Result]
) -> None:
    folder, _ = trained
    before = contents(folder)
    done = train(folder, *arguments)
    assert done.status == 2
    assert message in done.err
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["spn:bits=4,alpha=0.01", "vib:beta=0.001", "dropout:p=0.2"])
def test_a_defended_model_is_audited_with_its_defense_named(defense: str, tmp_path: Path) -> None:
    done = train(tmp_path, "--defense", defense)
    assert done.status == 0, done.err
    assert f"--defense '{defense}'" in done.out
    name = defense.partition(":")[0]
    checkpoint = tmp_path / ("client-0" if name == "spn" else "") / "round-002.safetensors"
    assert str(checkpoint) in done.out
    audit = ("sensitivity", "-m", MODEL, "-d", "diabetes", "-c", checkpoint, "--samples", 5, "-q")
    named = run(*audit, "--defense", defense, "-f", "json")
    assert named.status == 0, named.err
    layers = {layer["name"] for layer in json.loads(named.out)["target"]["layers"]}
    assert not any("spn" in name for name in layers)
    plain = run(*audit)
    if name == "dropout":
        assert plain.status == 0, plain.err
    else:
        assert plain.status == 3
        assert f"was trained with {name} in the model" in plain.err
        assert f"--defense {name}:" in plain.err


@pytest.mark.slow
def test_a_shared_checkpoint_holds_nobody_s_secret(tmp_path: Path) -> None:
    done = train(tmp_path, "--defense", "spn:bits=4", "--rounds", 1)
    assert done.status == 0, done.err
    secret = json.loads((tmp_path / "run.json").read_text())["private"]
    assert len(secret) == 3
    for number in range(2):
        name = f"round-00{number}.safetensors"
        shared, own = load_file(tmp_path / name), load_file(tmp_path / "client-0" / name)
        assert own.keys() - shared.keys() == set(secret)
        assert all(torch.equal(own[key], tensor) for key, tensor in shared.items())
    audit = ("sensitivity", "-m", MODEL, "-d", "diabetes", "--samples", 5, "-q", "-f", "json")
    outsider = run(*audit, "-c", tmp_path / "round-001.safetensors")
    assert outsider.status == 0, outsider.err
    joins = run(*audit, "-c", tmp_path / "round-001.safetensors", "--defense", "spn:bits=4")
    assert "holds no private part; drawn at random" in joins.out
    for file in (tmp_path / "client-0").iterdir():
        file.unlink()
    again = train(tmp_path, "--defense", "spn:bits=4", "--rounds", 1)
    assert f"-c {tmp_path / 'round-001.safetensors'} " in again.out


@pytest.mark.slow
def test_a_plain_model_is_audited_as_a_client_that_joins_with_a_secret_network(
    trained: tuple[Path, Result],
) -> None:
    folder, _ = trained
    done = run(
        *("sensitivity", "-m", MODEL, "-d", "diabetes", "--samples", 5, "-q", "-f", "json"),
        *("-c", folder / "round-002.safetensors", "--defense", "spn:bits=4"),
    )
    assert done.status == 0, done.err
    (checkpoint,) = json.loads(done.out)["target"]["checkpoints"]
    assert any("holds no private part; drawn at random" in note for note in checkpoint["notes"])


def test_a_loss_that_changed_is_another_run(tmp_path: Path) -> None:
    code = "def loss(outputs, targets):\n    return (outputs[:, 0] - targets).{}()\n"
    own = tmp_path / "own.py"
    own.write_text(code.format("square"))
    given = ("--loss", f"{own}:loss", "--rounds", 1, "--rate", 1e-6)
    first = train(tmp_path / "run", *given)
    assert first.status == 0, first.err
    assert train(tmp_path / "run", *given).status == 0
    own.write_text(code.format("abs"))
    changed = train(tmp_path / "run", *given)
    assert changed.status == 2
    assert "holds another run (loss_code was" in changed.err


def test_it_starts_from_a_checkpoint(trained: tuple[Path, Result], tmp_path: Path) -> None:
    start = trained[0] / "round-002.safetensors"
    assert train(tmp_path / "b", "-c", start).status == 0
    first = (tmp_path / "b" / "round-000.safetensors").read_bytes()
    assert first[-200:] == start.read_bytes()[-200:]
    both = train(tmp_path / "c", "-c", start, "-c", start)
    assert both.status == 2
    assert "--checkpoint: training starts from one" in both.err


def test_subject_options_are_read_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "audit.yaml"
    config.write_text(f"model: {MODEL}\ndata: diabetes\nseed: 3\n")
    done = run("train", "--config", config, "--out", tmp_path / "run", "--rounds", 1)
    assert done.status == 0, done.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["seed"] == 3


def test_hidden_layers_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "audit.yaml"
    config.write_text("hide: [fc1]\n")
    done = train(tmp_path / "run", "--config", config)
    assert done.status == 2
    assert "--hide: all layers are trained together" in done.err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--algorithm", "fedagv"], 2, "--algorithm fedagv: no such algorithm"),
        (["--algorithm", "fedsgd", "--epochs", 2], 2, "--epochs 2: with fedsgd"),
        (["--clients", 0], 2, "--clients: "),
        (["--clients", 1000], 2, "--clients 1000: there are only 354 training records"),
        (["--rounds", 0], 2, "--rounds: "),
        (["--partition", "iidd"], 2, "--partition iidd: unknown (did you mean 'iid'?)"),
        (["--partition", "dirichlet:-1"], 2, "A must be a positive number"),
        (["--partition", "dirichlet:0.001", "--clients", 50], 2, "got no record"),
        (["--epochs", 0], 2, "--epochs: "),
        (["--batch-size", 0], 2, "--batch-size: "),
        (["--optimizer", "adamw"], 2, "--optimizer"),
        (["--rate", 0], 2, "--rate: "),
        (["--rate", "nan"], 2, "--rate: "),
        (["--momentum", 1], 2, "--momentum: "),
        (["--optimizer", "adam", "--momentum", 0.5], 2, "--momentum: only --optimizer sgd has it"),
        (["--weight-decay", -1], 2, "--weight-decay: "),
        (["--test-share", 1], 2, "--test-share: "),
        (["--every", 0], 2, "--every: "),
        (["--defense", "prune"], 2, "--defense prune: "),
        (["--defense", "dp:clip=1,sigma=1"], 2, "use per=release"),
        (["--defense", "perturb", "--algorithm", "fedsgd"], 3, "needs a classifier of gradients"),
        (["--rate", 1e30, "--loss", "mse", "--rounds", 9], 3, "lower --rate (it is 1e+30)"),
        (["--mode", "evil"], 2, "--mode"),
    ],
    ids=str,
)
def test_wrong_requests(arguments: list[object], status: int, message: str, tmp_path: Path) -> None:
    done = train(tmp_path / "run", *arguments)
    assert done.status == status, done.err
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_out_is_needed_and_must_be_a_folder(tmp_path: Path) -> None:
    done = run("train", "-m", MODEL, "-d", "diabetes")
    assert done.status == 2
    assert "--out is needed" in done.err
    (tmp_path / "file").write_text("mine")
    done = train(tmp_path / "file")
    assert done.status == 2
    assert "name another folder" in done.err
    done = train(tmp_path)
    assert done.status == 2
    assert "holds other files (file)" in done.err
    assert (tmp_path / "file").read_text() == "mine"


def test_two_runs_do_not_train_into_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with locked(out, "--out"):
        done = train(out)
        assert (done.status, contents(out)) == (2, {})
    assert done.err == (
        f"gradaudit: --out {out}: another run is writing there; wait for its end, or name another "
        "place\n"
    )
    assert train(out).status == 0


def test_what_a_killed_run_was_writing_is_cleared(trained: tuple[Path, Result]) -> None:
    folder, _ = trained
    before = contents(folder)
    (folder / ".round-001.safetensors.gradaudit-ab12cd_9").write_bytes(b"half")
    assert train(folder).status == 0
    assert contents(folder) == before
