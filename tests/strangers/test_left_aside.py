"""Every column, key, tensor or file is used, or named as left: in each adapter and each reader."""

import json
import wave
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader

from gradaudit.config import read_file
from gradaudit.data import adapters, load_records
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.deployment import read_deployment
from gradaudit.errors import CheckpointError, DataError, UsageError
from gradaudit.judging import default_policy_yaml, read_policy
from gradaudit.models.checkpoint import Fit, apply_checkpoint, load_checkpoint
from gradaudit.models.checkpoint.kinds import Kind

COLUMNS: Mapping[str, Sequence[Any]] = {
    "id": ["a1", "b2", "a1", "b2"],
    "age": [20, 40, 41, 60],
    "job": ["clerk", "cook", "cook", "clerk"],
    "part": ["train", "test", "train", "test"],
    "note": ["x", "y", "x", "z"],
    "y": ["low", "high", "low", "high"],
}


def write_csv(path: Path) -> str:
    rows = [COLUMNS.keys(), *zip(*COLUMNS.values(), strict=True)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return f"csv:{path}?"


def write_parquet(path: Path) -> str:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(dict(COLUMNS)), path)
    return f"parquet:{path}?"


def write_npz(path: Path) -> str:
    arrays: dict[str, Any] = {name: np.array(values) for name, values in COLUMNS.items()}
    np.savez(path.with_suffix(".npz"), x=np.eye(4), x_names=np.array(list("pqrs")), **arrays)
    return f"npz:{path.with_suffix('.npz')}?inputs=x&"


def write_hf(path: Path) -> str:
    arrow = pytest.importorskip("pyarrow")
    content = arrow.table({**COLUMNS, "x": np.eye(4).tolist()})
    path.mkdir()
    sink = arrow.OSFile(str(path / "data.arrow"), "wb")
    with sink, arrow.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return f"hf-datasets:{path}?inputs=x&"


def write_images(path: Path) -> str:
    path.mkdir()
    files = [f"{name}.png" for name in "0123"]
    for file in files:
        Image.new("L", (2, 2)).save(path / file)
    rows = [("file", *COLUMNS), *zip(files, *COLUMNS.values(), strict=True)]
    (path / "t.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return f"images:{path}?table=t.csv&"


def write_text(path: Path) -> str:
    return write_csv(path).replace("csv:", "text:") + "text=note&"


def write_lines(path: Path) -> str:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"csv:{path.with_suffix('.jsonl')}?"


def write_texts_in_lines(path: Path) -> str:
    return write_lines(path).replace("csv:", "text:") + "text=note&"


def write_texts_in_parquet(path: Path) -> str:
    return write_parquet(path).replace("parquet:", "text:") + "text=note&"


def write_saved_texts(path: Path) -> str:
    return write_hf(path).replace("hf-datasets:", "text:").replace("inputs=x", "text=note")


def write_sounds(path: Path) -> str:
    path.mkdir()
    for file in "0123":
        with wave.open(str(path / file), "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(bytes(8))
    rows = [("file", *COLUMNS), *zip("0123", *COLUMNS.values(), strict=True)]
    (path / "t.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return f"sounds:{path}?table=t.csv&"


WRITERS = (
    *(write_csv, write_lines, write_parquet, write_npz, write_hf, write_images, write_sounds),
    *(write_text, write_texts_in_lines, write_texts_in_parquet, write_saved_texts),
)
WITHOUT_COLUMNS = {
    "digits": "all of it is made of one file of the library's",
    "diabetes": "all of it is made of one file of the library's",
    "torchvision": "its items are pairs of a picture and its target, as a function's are",
    "file": "its items are gone through below",
}
ROLES = ("label=y", "label=y&attribute=job", "label=y&user=id&member=part&attribute=age")


def noted(records: Records, key: str) -> list[str]:
    names = records.notes.get(key, [])
    assert isinstance(names, list)
    return list(map(str, names))


def accounted_for(records: Records, asked: str) -> set[str]:
    """The columns that are inputs or serve as something, and those that are named as left."""
    serving = {name for pair in asked.split("&") for name in pair.partition("=")[2].split(",")}
    named = {*noted(records, "left"), *noted(records, "dropped")}
    return {feature.name for feature in records.features} | serving | named


def test_every_adapter_is_gone_through(tmp_path: Path) -> None:
    written = {
        write(tmp_path / str(place)).partition(":")[0] for place, write in enumerate(WRITERS)
    }
    assert written | WITHOUT_COLUMNS.keys() == adapters().keys()


@pytest.mark.parametrize("asked", ROLES)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__.removeprefix("write_"))
@pytest.mark.slow
def test_every_column_or_key_is_used_or_named(
    tmp_path: Path, write: Callable[[Path], str], asked: str
) -> None:
    spec = write(tmp_path / "data")
    records = load_records(spec + asked)
    assert set(COLUMNS) <= accounted_for(records, f"{spec.partition('?')[2]}{asked}")
    used = {"y", "x_names", "file", *(["x"] if "inputs=x" in spec else [])}
    assert used.isdisjoint(noted(records, "left"))


def test_what_is_dropped_is_named_once(tmp_path: Path) -> None:
    records = load_records(write_csv(tmp_path / "t.csv") + "label=y&drop=note,id&attribute=id")
    assert records.notes["dropped"] == ["note", "id"]
    assert "left" not in records.notes


def test_a_key_that_no_option_names_is_named(tmp_path: Path) -> None:
    records = load_records(write_npz(tmp_path / "d") + "label=y")
    assert records.notes["left"] == ["id", "age", "job", "part", "note"]


def in_safetensors(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    save_file(state, folder / "w")
    return folder / "w"


def in_torch(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    torch.save(state, folder / "w")
    return folder / "w"


def in_npz(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    np.savez(folder / "w.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    return folder / "w.npz"


def in_shards(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    places = {}
    for place, (name, tensor) in enumerate(state.items()):
        places[name] = f"model-{place}.safetensors"
        save_file({name: tensor}, folder / places[name])
    index = {"weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


WEIGHTS: Mapping[str, Callable[[Path, dict[str, torch.Tensor]], Path]] = {
    "safetensors": in_safetensors,
    "torch": in_torch,
    "npz": in_npz,
    "shards": in_shards,
}


def test_every_reader_of_checkpoints_is_gone_through() -> None:
    assert set(get_args(Kind)) == WEIGHTS.keys()


@pytest.mark.parametrize("kind", ["safetensors", "shards"])
def test_other_weights_in_the_folder_are_named(tmp_path: Path, kind: str) -> None:
    model = nn.Linear(2, 3)
    path = WEIGHTS[kind](tmp_path, model.state_dict())
    if kind == "safetensors":
        path.rename(tmp_path / "model.safetensors")
    for name in ("ema.pt", "optimizer.bin", "README.md"):
        (tmp_path / name).write_bytes(b"x")
    told = apply_checkpoint(model, load_checkpoint(tmp_path)).notes
    assert any("files left aside: ema.pt, optimizer.bin" in note for note in told)


@pytest.mark.parametrize(
    ("read", "good"),
    [(read_policy, default_policy_yaml()), (read_deployment, ""), (read_file, "")],
)
def test_a_key_that_is_not_read_of_a_file_of_settings_is_refused(
    tmp_path: Path, read: Callable[[Path], object], good: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"{good}nonsense: 3\n")
    with pytest.raises(UsageError, match="nonsense"):
        read(path)


def in_use(records: Records) -> set[str]:
    served = {
        "inputs": True,
        "labels": not records.unlabelled,
        "users": records.users is not None,
        "members": records.members is not None,
    }
    parts = {part.name for part in records.parts}
    return {name for name, used in served.items() if used} | records.attributes.keys() | parts


@pytest.mark.parametrize("loaded", [list, lambda items: DataLoader(items, 3)])
def test_every_part_of_an_item_is_used(loaded: Callable[[Any], Any]) -> None:
    items = [
        {"x": torch.ones(2), "mask": torch.ones(3), "image": torch.zeros(2), "label": k % 2,
         "target": k % 2, "who": f"u{k}", "user": k // 2, "member": k > 2, "age": 20 + k}
        for k in range(6)
    ]  # fmt: skip
    records = records_of(loaded(items), "f")
    assert in_use(records) >= {"users", "members", "labels", "x", "mask", "image", "who", "age"}
    assert "target" in records.attributes


@pytest.mark.parametrize("parts", [("labels", "more"), ("inputs", "labels", "weights")])
def test_a_part_that_no_record_has_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=r"unknown part|are needed"):
        records_of(dict.fromkeys(parts, torch.ones(2, 2)), "f")


def test_the_files_and_splits_that_are_not_read_are_named(tmp_path: Path) -> None:
    spec = write_images(tmp_path / "p")
    for name in ("more.png", "notes.txt"):
        Image.new("L", (2, 2)).save(tmp_path / "p" / name, "PNG")
    assert noted(load_records(spec + "label=y"), "unread") == ["more.png", "notes.txt"]
    folder = tmp_path / "splits"
    folder.mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        write_hf(folder / split)
    for spec in (f"hf-datasets:{folder}?inputs=x&label=y", f"text:{folder}?text=note&label=y"):
        notes = load_records(spec).notes
        assert (notes["split"], notes["splits_left"]) == ("test", ["train"])
        assert load_records(f"{spec}&split=train").notes["splits_left"] == ["test"]


def test_transparency_and_further_frames_of_pictures_are_named(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (2, 2), (9, 9, 9, 100))
    frames = [Image.new("L", (2, 2), shade) for shade in (10, 200)]
    for place, kind in enumerate("ab"):
        (tmp_path / kind).mkdir()
        clear.save(tmp_path / kind / "0.png")
        frames[0].save(tmp_path / kind / "1.tif", save_all=place > 0, append_images=frames[1:])
    records = load_records(f"images:{tmp_path}")
    assert (records.notes["transparent"], records.notes["several_frames"]) == (2, 1)
    assert records.inputs[[1, 3]].unique().tolist() == pytest.approx([10 / 255])


@pytest.mark.parametrize("kind", ["safetensors", "torch", "npz", "shards"])
@pytest.mark.parametrize(
    "extra", [{"head.weight": torch.ones(2)}, {"a.b": torch.ones(1), "z": torch.zeros(3)}]
)
def test_every_tensor_of_a_checkpoint_is_used_named_or_refused(
    tmp_path: Path, kind: str, extra: dict[str, torch.Tensor]
) -> None:
    model = nn.Linear(2, 3)
    path = WEIGHTS[kind](tmp_path, {**model.state_dict(), **extra})
    with pytest.raises(CheckpointError, match=next(iter(extra)).replace(".", r"\.")):
        apply_checkpoint(model, load_checkpoint(path))
    told = " ".join(apply_checkpoint(model, load_checkpoint(path), Fit(partial=True)).notes)
    assert all(name in told for name in extra)


def test_what_lies_beside_the_weights_is_named(tmp_path: Path) -> None:
    content = {"state_dict": nn.Linear(2, 3).state_dict(), "epoch": 3, "optimizer": {"lr": 0.1}}
    torch.save(content, tmp_path / "w.pt")
    told = " ".join(load_checkpoint(tmp_path / "w.pt").notes)
    assert "state_dict" in told
    assert "left aside: epoch, optimizer" in told
