"""Import of user code: what is found, and the one line said where nothing is."""

import sys
from pathlib import Path

import pytest

from gradaudit.core import user_code
from gradaudit.core.user_code import load_callable
from gradaudit.errors import UsageError


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_a_function_of_a_file_with_a_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "neighbour_of_nets.py", "ANSWER = 42\n")
    file = write(tmp_path / "nets.py", "import neighbour_of_nets as n\ndef f(): return n.ANSWER\n")
    path = list(sys.path)
    assert load_callable(f"{file}:f", "--model")() == 42
    assert sys.path == path


def test_a_file_is_run_once_for_each_content(tmp_path: Path) -> None:
    file = write(tmp_path / "nets.py", "class A: x = 1\nclass B: pass\n")
    first = load_callable(f"{file}:A", "--model")
    assert load_callable(f"{file}:A", "--model") is first
    assert sys.modules[first.__module__].B is load_callable(f"{file}:B", "--model")
    write(file, "class A: x = 2\nclass B: pass\n")
    assert load_callable(f"{file}:A", "--model")().x == 2


def test_a_module_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package_of_nets").mkdir()
    write(tmp_path / "package_of_nets" / "inner.py", "def f(): return 7\n")
    assert load_callable("package_of_nets.inner:f", "--model")() == 7


def test_an_installed_module() -> None:
    assert load_callable("collections:OrderedDict", "--model")(a=1) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("def factory(): ...", "factori", "no 'factori' in it (did you mean 'factory'?)"),
        ("def factory(): ...", "zzz", "it defines: factory"),
        ("factory = 3", "factory", "'factory' is a int and cannot be called"),
        ("def f(:", "f", "nets.py:1: syntax error: invalid syntax"),
        ("import no_such_module_xyz", "f", "No module named 'no_such_module_xyz'"),
        ("raise SystemExit('usage: nets.py')", "f", "failed with SystemExit: usage: nets.py"),
        ("open('no-such-file')", "f", "failed with FileNotFoundError: "),
        ("raise ValueError('a\\nb')", "f", "failed with ValueError: a"),
        ("f = 1\x00", "f", "null bytes"),
    ],
)
def test_refused_files(tmp_path: Path, content: str, name: str, message: str) -> None:
    file = write(tmp_path / "nets.py", content)
    with pytest.raises(UsageError) as caught:
        load_callable(f"{file}:{name}", "--loss")
    assert str(caught.value).startswith(f"--loss {file}:{name}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("net.py", "name a function in it, as in path/file.py:NAME"),
        (r"C:\nets\net.py", "name a function in it"),
        ("no/such/file.py:f", "no/such/file.py: cannot be read: No such file"),
        ("no_such_package_xyz:f", "No module named 'no_such_package_xyz'"),
        ("..relative:f", "importing it failed with "),
        (":f", "name a function in it"),
    ],
)
def test_refused_locations(location: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_callable(location, "--model")
    assert str(caught.value).startswith(f"--model {location}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_fails_leaves_no_module_and_no_path_behind(tmp_path: Path) -> None:
    file = write(tmp_path / "broken_net.py", "raise ValueError")
    path, modules = list(sys.path), set(sys.modules)
    with pytest.raises(UsageError, match=r"failed with ValueError \(broken_net.py, line 1\)$"):
        load_callable(f"{file}:f", "--model")
    assert sys.path == path
    assert set(sys.modules) == modules


def test_what_needs_operators_that_torchvision_lacks_is_loaded_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = [True]

    def load() -> str:
        if missing[0]:
            raise RuntimeError("operator torchvision::nms does not exist")
        return "loaded"

    monkeypatch.setattr(user_code, "_define_missing_operators", lambda: missing.insert(0, False))
    assert user_code.with_operators(load) == "loaded"
