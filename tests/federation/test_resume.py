"""A training kept in a folder: what it holds, and how it goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import CASES
from safetensors.torch import load_file
from torch import Tensor

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import CheckpointError, NotApplicable, UsageError
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.resume import STATE, SUMMARY, RunFolder, RunRecord, train_into
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.checkpoint import apply_checkpoint, load_checkpoint

CASE = next(case for case in CASES if case.id == "batch-norm")
ROUNDS = 4
AVERAGED = {"algorithm": "fedavg", "momentum": 0.9, "canaries": 6}


def make(
    how: dict[str, object], defenses: tuple[str, ...] = (), seed: int = 0
) -> FederatedTraining:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 1, 3, 3, generator=generator, dtype=torch.float64)
    return FederatedTraining(
        replace(CASE.target(), mode="train"),
        Records(inputs, torch.arange(30) % 3),
        TrainingOptions(clients=3, rounds=ROUNDS, **how),  # type: ignore[arg-type]
        defenses=[parse_defense(text) for text in defenses],
        seed=seed,
    )


def summary(training: FederatedTraining, **settings: object) -> RunRecord:
    clients = [part.tolist() for part in training.parts]
    made = {"seed": 0, "rounds": ROUNDS, **settings}
    sizes = [len(client) for client in clients]
    return RunRecord(settings=made, records=30, clients=clients, test=[], sizes=sizes)  # type: ignore[arg-type]


def run(path: Path, training: FederatedTraining, rounds: int = ROUNDS, every: int = 1) -> list[int]:
    folder = RunFolder(path, summary(training, rounds=rounds))
    return [done.number for done in train_into(folder, training, rounds, every)]


def held(path: Path) -> dict[str, dict[str, Tensor]]:
    files = sorted(path.rglob("*.safetensors"))
    return {str(file.relative_to(path)): load_file(file) for file in files}


def assert_same_files(first: Path, second: Path) -> None:
    ours, theirs = held(first), held(second)
    assert list(ours) == list(theirs)
    for name, state in ours.items():
        assert state.keys() == theirs[name].keys()
        assert all(torch.equal(tensor, theirs[name][key]) for key, tensor in state.items())
    assert (first / SUMMARY).read_text() == (second / SUMMARY).read_text()


@pytest.mark.parametrize(
    ("how", "defenses"),
    [
        (AVERAGED, ("spn:bits=4",)),
        ({"algorithm": "fedsgd", "momentum": 0.9, "batch_size": 5}, ("dropout:0.5", "vib:0.1")),
        ({"algorithm": "fedsgd", "optimizer": "adam"}, ("spn:bits=4",)),
        ({"algorithm": "round-robin"}, ()),
    ],
    ids=str,
)
def test_an_interrupted_run_goes_on_with_the_same_numbers(
    how: dict[str, object], defenses: tuple[str, ...], tmp_path: Path
) -> None:
    run(tmp_path / "whole", make(how, defenses))
    for after in (0, 2):
        parts, training = tmp_path / f"after-{after}", make(how, defenses)
        rounds = train_into(RunFolder(parts, summary(training)), training, ROUNDS, 1)
        for _ in range(after + 1):
            next(rounds)
        assert run(parts, make(how, defenses)) == list(range(after + 1, ROUNDS + 1))
        assert_same_files(tmp_path / "whole", parts)


def test_a_run_cut_off_between_its_files_goes_on(tmp_path: Path) -> None:
    """Killed after a round's checkpoint and summary, before the state to go on from."""
    run(tmp_path / "whole", make({}))
    training = make({})
    rounds = train_into(RunFolder(tmp_path / "cut", summary(training)), training, ROUNDS, 1)
    next(rounds)
    next(rounds)
    before = (tmp_path / "cut" / STATE).read_bytes()
    next(rounds)
    (tmp_path / "cut" / STATE).write_bytes(before)
    assert run(tmp_path / "cut", make({})) == [2, 3, 4]
    assert_same_files(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_can_have_more_rounds(tmp_path: Path) -> None:
    assert run(tmp_path / "a", make({}), rounds=2) == [0, 1, 2]
    assert run(tmp_path / "a", make({}), rounds=2) == []
    assert run(tmp_path / "a", make({})) == [3, 4]
    run(tmp_path / "b", make({}))
    assert_same_files(tmp_path / "a", tmp_path / "b")


def test_every_so_many_rounds_and_the_last_are_written(tmp_path: Path) -> None:
    assert run(tmp_path, make({}), every=3) == [0, 3, 4]
    files = sorted(file.name for file in tmp_path.glob("round-*"))
    assert files == [f"round-00{number}.safetensors" for number in (0, 3, 4)]
    told = json.loads((tmp_path / SUMMARY).read_text())
    assert [line["file"] for line in told["rounds"]] == files


def test_the_summary_tells_whose_records_are_whose(tmp_path: Path) -> None:
    training = make({})
    run(tmp_path, training)
    told = RunRecord.model_validate_json((tmp_path / SUMMARY).read_text())
    assert sorted(index for client in told.clients for index in client) == list(range(30))
    assert told.sizes == [10, 10, 10]
    assert told.measure == "accuracy"
    last = training.snapshot()
    assert last.train is not None
    assert told.rounds[-1].train == last.train.value
    assert told.rounds[-1].loss == last.loss


@pytest.mark.parametrize(
    ("settings", "seed", "message"),
    [
        ({"seed": 1}, 0, "another run .seed was 0, now 1."),
        ({"rate": 2}, 0, "rate was 0.1, now 2"),
        ({"canaries": 5}, 0, "canaries was 0, now 5"),
        ({"model": "m"}, 0, "model was None, now 'm'"),
        ({}, 3, "other records"),
    ],
)
def test_a_folder_of_another_run_is_refused(
    settings: dict[str, object], seed: int, message: str, tmp_path: Path
) -> None:
    run(tmp_path, make({}), rounds=1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=message):
        RunFolder(tmp_path, summary(make({}, seed=seed), **{"rounds": 1, **settings}))
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_run_from_before_an_option_goes_on_without_it(tmp_path: Path) -> None:
    run(tmp_path, make({}), rounds=1)
    assert "canaries" not in json.loads((tmp_path / SUMMARY).read_text())["settings"]
    training = make({})
    folder = RunFolder(tmp_path, summary(training, canaries=0))
    assert [done.number for done in train_into(folder, training, 2, 1)] == [2]
    assert json.loads((tmp_path / SUMMARY).read_text())["settings"]["canaries"] == 0


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "round-000.safetensors").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"holds other files \(round-000"):
        RunFolder(tmp_path, summary(make({})))
    with pytest.raises(UsageError, match="name another folder"):
        RunFolder(tmp_path / "round-000.safetensors", summary(make({})))


def test_a_damaged_summary_or_state_is_told(tmp_path: Path) -> None:
    run(tmp_path, make({}), rounds=2)
    state = tmp_path / STATE
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="is damaged"):
        run(tmp_path, make({}))
    (tmp_path / SUMMARY).write_text("{}")
    with pytest.raises(UsageError, match="is not the summary of a training"):
        run(tmp_path, make({}))


def test_a_checkpoint_of_tied_weights_loads(tmp_path: Path) -> None:
    tied = next(case for case in CASES if case.id == "tied-weights")
    inputs = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = TrainingOptions(clients=2, rounds=1)
    training = FederatedTraining(
        replace(tied.target(), mode="train"), Records(inputs, inputs), options
    )
    list(train_into(RunFolder(tmp_path, summary(training)), training, 1, 1))
    model = tied.make_model(seed=7)
    apply_checkpoint(model, load_checkpoint(tmp_path / "round-001.safetensors"))
    trained = training.server.model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in model.state_dict().items())
    assert torch.equal(trained["encoder.weight"], trained["decoder.weight"])


def test_a_run_that_never_gets_through_a_round_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    refused = ("perturb",)
    fresh = tmp_path / "fresh"
    with pytest.raises(NotApplicable, match="needs a classifier"):
        run(fresh, make(AVERAGED, refused))
    assert not fresh.exists()
    with pytest.raises(NotApplicable, match="needs a classifier"):
        run(tmp_path, make(AVERAGED, (*refused, "spn:bits=4")))
    assert list(tmp_path.iterdir()) == []
    assert run(tmp_path, make(AVERAGED), rounds=1) == [0, 1]
    with pytest.raises(NotApplicable, match="needs a classifier"):
        run(tmp_path, make(AVERAGED, refused), rounds=2)
    assert (tmp_path / "round-001.safetensors").exists()
