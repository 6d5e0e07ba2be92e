"""Every column, key or tensor of a file is used, or named as left."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import Fit, apply_checkpoint, load_checkpoint

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


WRITERS = (write_csv, write_parquet, write_npz, write_hf, write_images, write_text)
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


@pytest.mark.parametrize("asked", ROLES)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__.removeprefix("write_"))
@pytest.mark.slow
def test_every_column_or_key_is_used_or_named(
    tmp_path: Path, write: Callable[[Path], str], asked: str
) -> None:
    spec = write(tmp_path / "data")
    records = load_records(spec + asked)
    assert set(COLUMNS) <= accounted_for(records, f"{spec.partition('?')[2]}{asked}")
    assert {"y", "x", "x_names", "file"}.isdisjoint(noted(records, "left"))


def test_what_is_dropped_is_named_once(tmp_path: Path) -> None:
    records = load_records(write_csv(tmp_path / "t.csv") + "label=y&drop=note,id&attribute=id")
    assert records.notes["dropped"] == ["note", "id"]
    assert "left" not in records.notes


def test_a_key_that_no_option_names_is_named(tmp_path: Path) -> None:
    records = load_records(write_npz(tmp_path / "d") + "label=y")
    assert records.notes["left"] == ["id", "age", "job", "part", "note"]


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
@pytest.mark.parametrize(
    "extra", [{"head.weight": torch.ones(2)}, {"a.b": torch.ones(1), "z": torch.zeros(3)}]
)
def test_every_tensor_of_a_checkpoint_is_used_named_or_refused(
    tmp_path: Path, kind: str, extra: dict[str, torch.Tensor]
) -> None:
    model = nn.Linear(2, 3)
    state, path = {**model.state_dict(), **extra}, tmp_path / "w"
    save_file(state, path) if kind == "safetensors" else torch.save(state, path)
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
