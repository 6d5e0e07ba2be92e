"""Files that must be refused: with their reason, in one line, and without running anything."""

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint import kinds as kinds_module
from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.models.checkpoint import torch_file as archive_module


class Creates:
    """Pickles into a call that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class Systems:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert message.isprintable(), "one line, without control characters"
    assert message.startswith(str(path))
    assert len(message) < 600
    return message


def saved(path: Path, content: object, **options: object) -> Path:
    torch.save(content, path, **options)
    return path


def rezipped(source: Path, path: Path, *, replace=None, add=None, compression=zipfile.ZIP_STORED):
    """The archive with entries replaced (by the part of their name after the root) or added."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", compression) as new:
        for entry in old.infolist():
            root, _, name = entry.filename.partition("/")
            new.writestr(entry.filename, (replace or {}).get(name, old.read(entry)))
        for name, content in (add or {}).items():
            new.writestr(f"{root}/{name}", content)
    return path


@pytest.fixture
def weights(tmp_path):
    return saved(tmp_path / "weights.pt", {"w": torch.arange(6.0).reshape(2, 3)})


@pytest.mark.parametrize("trap", [Creates, Systems])
@pytest.mark.parametrize("where", ["value", "wrapped", "key"])
def test_code_in_an_archive_is_named_and_never_run(tmp_path, trap, where):
    side_effect = tmp_path / "ran"
    evil = trap(side_effect)
    content = {
        "value": {"w": torch.ones(2), "x": evil},
        "wrapped": {"state_dict": {"w": torch.ones(2)}, "epoch": evil},
        "key": {"w": torch.ones(2), evil: 1},
    }[where]
    message = refusal(saved(tmp_path / "evil.pt", content))
    assert ("posix.system" if trap is Systems else "getattr") in message
    assert "safetensors.torch.save_file" in message
    assert not side_effect.exists()


def test_code_is_not_run_when_the_environment_asks_for_unsafe_loading(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    side_effect = tmp_path / "ran"
    refusal(saved(tmp_path / "evil.pt", {"w": torch.ones(2), "x": Creates(side_effect)}))
    assert not side_effect.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_bare_pickle_is_never_run(tmp_path, protocol):
    side_effect, path = tmp_path / "ran", tmp_path / "evil.safetensors"
    path.write_bytes(pickle.dumps({"w": Creates(side_effect)}, protocol=protocol))
    message = refusal(path)
    assert "pickle" in message or protocol < 2
    assert not side_effect.exists()


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_code_in_an_archive_of_a_newer_protocol_is_never_run(tmp_path, protocol):
    side_effect = tmp_path / "ran"
    content = {"w": torch.ones(2), "x": Creates(side_effect)}
    refusal(saved(tmp_path / "evil.pt", content, pickle_protocol=protocol))
    assert not side_effect.exists()


def test_a_legacy_pickle_is_refused_without_running_it(tmp_path):
    side_effect = tmp_path / "ran"
    content = {"w": torch.ones(2), "x": Creates(side_effect)}
    path = saved(tmp_path / "old.pt", content, _use_new_zipfile_serialization=False)
    assert "legacy torch.save pickle" in refusal(path)
    assert not side_effect.exists()


def test_a_whole_pickled_model_is_called_one(tmp_path):
    message = refusal(saved(tmp_path / "model.pt", nn.Sequential(nn.Linear(2, 2))))
    assert "whole pickled model" in message
    assert "torch.nn.modules.linear.Linear" in message
    assert "model.state_dict()" in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_archive_is_called_one(tmp_path):
    path = tmp_path / "script.pt"
    torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(path)
    assert "TorchScript" in refusal(path)


@pytest.mark.parametrize("name", ["constants.pkl", "code/__torch__.py"])
def test_any_sign_of_torchscript_is_enough(tmp_path, weights, name):
    assert "TorchScript" in refusal(rezipped(weights, tmp_path / "s.pt", add={name: b"x"}))


@pytest.mark.slow
def test_a_torch_export_archive_is_called_one(tmp_path):
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), path)
    message = refusal(path)
    assert "torch.export" in message
    assert "--model" in message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["weights.npy", "bias.npy"], "NumPy"),
        (["config.json", "model.weights.h5"], "Keras"),
        (["p/.data/extern_modules", "p/data.pkl"], "torch.package"),
        (["word/document.xml"], "torch.save did not write"),
        ([], "torch.save did not write"),
    ],
)
def test_other_zip_archives_are_told_apart(tmp_path, names, expected):
    path = tmp_path / "other.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    assert expected in refusal(path)


def test_a_compressed_archive_is_refused(tmp_path, weights):
    path = rezipped(weights, tmp_path / "z.pt", compression=zipfile.ZIP_DEFLATED)
    assert "compressed archive" in refusal(path)


def directory_entry(path: Path, name: str) -> tuple[bytearray, int]:
    """The file's bytes and where the central directory's entry of a name begins."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        position = archive.start_dir
        for entry in archive.infolist():
            if entry.filename.endswith(name):
                return data, position
            position += 46 + len(entry.filename) + len(entry.extra) + len(entry.comment)
    raise AssertionError(name)


def test_overlapping_entries_are_refused(tmp_path, weights):
    path = rezipped(weights, tmp_path / "overlap.pt", add={"data/1": bytes(64)})
    data, entry = directory_entry(path, "data/1")
    with zipfile.ZipFile(path) as archive:
        shared = next(e.header_offset for e in archive.infolist() if e.filename.endswith("data/0"))
    struct.pack_into("<L", data, entry + 42, shared)
    path.write_bytes(data)
    assert "overlap" in refusal(path)


def test_an_entry_that_leaves_the_file_is_refused(tmp_path, weights):
    path = rezipped(weights, tmp_path / "beyond.pt")
    data, entry = directory_entry(path, "data/0")
    struct.pack_into("<2L", data, entry + 20, 1 << 30, 1 << 30)
    path.write_bytes(data)
    assert "overlap or leave the file" in refusal(path)


def test_entry_sizes_that_disagree_are_refused(tmp_path, weights):
    path = rezipped(weights, tmp_path / "sizes.pt")
    data, entry = directory_entry(path, "data/0")
    struct.pack_into("<L", data, entry + 24, 1 << 30)
    path.write_bytes(data)
    assert "sizes contradict" in refusal(path)


def test_an_encrypted_archive_is_refused(tmp_path, weights):
    path = rezipped(weights, tmp_path / "secret.pt")
    data, entry = directory_entry(path, "data/0")
    data[entry + 8] |= 1
    path.write_bytes(data)
    assert "encrypted" in refusal(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_repeated_names_are_refused(tmp_path, weights):
    path = rezipped(weights, tmp_path / "twice.pt", add={"data.pkl": b"\x80\x02}."})
    assert "names repeat" in refusal(path)


def test_bytes_before_or_after_an_archive_are_refused(tmp_path, weights):
    path = tmp_path / "polyglot.pt"
    path.write_bytes(b"PK\x03\x04" + bytes(60) + weights.read_bytes())
    assert "two end records that contradict each other" in refusal(path)
    path.write_bytes(weights.read_bytes() + b"trailing")
    assert "damaged zip" in refusal(path)


def test_a_huge_directory_is_refused_before_it_is_read(tmp_path, weights, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_DIRECTORY_BYTES", 100)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("read the directory"))
    assert "zip directory claims" in refusal(weights)


def test_a_huge_pickle_is_refused(weights, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_PICKLE_BYTES", 10)
    assert "10 bytes of pickle" in refusal(weights)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "huge.pt"
    with path.open("wb") as stream:
        stream.truncate((64 << 30) + 1)  # sparse
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened it"))
    assert "over the limit" in refusal(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # storage of 2^30 elements over 24 bytes; shape (2^20, 2^10) over 6 elements
        (b"K\x06t", b"J" + (1 << 30).to_bytes(4, "little") + b"t"),
        (b"K\x02K\x03\x86", b"J\x00\x00\x10\x00J\x00\x04\x00\x00\x86"),
    ],
)
def test_tensors_declared_larger_than_the_file_are_refused(tmp_path, weights, old, new):
    with zipfile.ZipFile(weights) as archive:
        content = archive.read("weights/data.pkl")
    assert old in content
    shape = (b"K\x02K\x03\x86", b"J\x00\x00\x10\x00J\x00\x04\x00\x00\x86")
    grown = content.replace(old, new).replace(*shape)
    path = rezipped(weights, tmp_path / "grown.pt", replace={"data.pkl": grown})
    assert "declares tensors larger than itself" in refusal(path)


def test_a_dict_that_holds_itself_ends(tmp_path):
    content: dict[str, object] = {}
    content["model"] = content
    assert "holds no named tensors" in refusal(saved(tmp_path / "loop.pt", content))


@pytest.mark.parametrize("content", [torch.ones(2), [torch.ones(2)], 3, None])
def test_content_that_is_no_dict_is_refused(tmp_path, content):
    assert "not a dict of named tensors" in refusal(saved(tmp_path / "c.pt", content))


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, {0: torch.ones(2)}, {"a": {}}])
def test_dicts_without_named_tensors_are_refused(tmp_path, content):
    assert "holds no named tensors" in refusal(saved(tmp_path / "c.pt", content))


def tensor(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def safetensors_file(path: Path, header: object, data: bytes, length: int | None = None) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded) if length is None else length) + encoded + data)
    return path


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_truncated_files_are_refused(tmp_path, weights, kind, share):
    header = {"w": tensor(0, 4000, [1000])}
    whole = (
        weights
        if kind == "pt"
        else safetensors_file(tmp_path / "w.safetensors", header, bytes(4000))
    ).read_bytes()
    path = tmp_path / f"cut.{kind}"
    path.write_bytes(whole[: int(share * len(whole))])
    assert any(word in refusal(path) for word in ("truncated", "cut short"))


def tar_file() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return stream.getvalue()


def numpy_file() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ones(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"GGUF\x03\0\0\0" + bytes(40), "GGUF"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
        (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(40), "ONNX"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
        (numpy_file(), "NumPy"),
        (tar_file(), "tar archive"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>404", "HTML"),
        (b'{"abcd":{"efgh": [1, 2, 3]}}', "JSON"),
        (b"epoch,loss\n1,0.5\n", "plain text"),
        ("größe: 1\n".encode() * 60, "plain text"),
        (bytes(range(128, 256)) * 4, "no known format"),
        (bytes(64), "no known format"),
        (b"\x00", "no known format"),
    ],
)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_other_formats_are_named(tmp_path, content, expected, suffix):
    path = tmp_path / f"file.{suffix}"
    path.write_bytes(content)
    assert expected in refusal(path)


@pytest.mark.parametrize("name", ["absent.pt", "a\0b", "absent/\x1b[31m.pt"])
def test_a_missing_file_is_a_usage_error(tmp_path, name):
    with pytest.raises(UsageError, match="no such checkpoint file") as caught:
        load_checkpoint(tmp_path / name)
    assert str(caught.value).isprintable()


def test_limits_are_those_documented():
    assert kinds_module.MAX_FILE_BYTES == 64 * 2**30
    assert archive_module.MAX_PICKLE_BYTES == 64 * 2**20
    assert archive_module.MAX_DIRECTORY_BYTES == 16 * 2**20
