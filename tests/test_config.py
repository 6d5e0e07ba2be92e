from pathlib import Path

import pytest
from fake_command_line import only_counting

from gradaudit.config import RunSettings, ScanSettings, read_file, seconds_of, section, settle
from gradaudit.errors import UsageError

__all__ = ["only_counting"]
pytestmark = pytest.mark.usefixtures("only_counting")


def written(folder: Path, text: str) -> Path:
    path = folder / "audit.yaml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = read_file(written(tmp_path, "seed: 3\nsamples: 5\ndry-run: true\nmode: train\n"))
    settings = settle(ScanSettings, {"seed": 7, "samples": None}, file)
    assert (settings.seed, settings.samples, settings.dry_run) == (7, 5, True)
    assert settings.mode == "train"
    assert settings.loss == "cross-entropy"


def test_a_command_takes_only_its_own_keys(tmp_path: Path) -> None:
    file = read_file(written(tmp_path, "seed: 3\nquick: true\ncounting: {scale: 8}\n"))
    assert settle(RunSettings, {}, file).seed == 3
    assert section(file, "counting") == {"scale": 8}


def test_no_file_and_an_empty_file_say_nothing(tmp_path: Path) -> None:
    assert read_file(None) == {}
    assert read_file(written(tmp_path, "# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 3\n", "sed: unknown key"),
        ("seed: many\n", "seed: .*integer"),
        ("mode: predict\n", "line 1: mode: .*'eval' or 'train'"),
        ("counting: {scal: 8}\n", "counting.scal: unknown key"),
        ("counting: {scale: -1}\n", "counting.scale: .*greater than"),
        ("- seed\n", "the document: "),
        ("seed: [\n", "not valid YAML"),
        ("seed: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("1: 2\n", "1: "),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_and_a_huge_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.yaml: cannot be read: No such file"):
        read_file(tmp_path / "gone.yaml")
    with pytest.raises(UsageError, match="larger than"):
        read_file(written(tmp_path, "#" * (1 << 20) + "\n"))


def test_a_flag_out_of_range_is_named_as_a_flag() -> None:
    with pytest.raises(UsageError, match=r"--samples: .*greater than or equal to 1 \(got 0\)"):
        settle(RunSettings, {"samples": 0}, {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2h", 7200), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "90", "m", "5 minutes", "-3s", "1e9s", "5m5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 5m or 2h"):
        seconds_of(text)
