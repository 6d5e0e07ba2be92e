"""How work tells that it goes on where there is no terminal."""

import pytest

from gradaudit.cli import terminal


def test_lines_are_harmless_and_stop_before_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE", 0)
    monkeypatch.setattr(terminal, "LINE_EVERY", 0)
    with terminal.watcher(quiet=False).task("fc\x1b[31m", 3) as advance:
        advance(1)
        advance(1)
        advance(1)
    assert capsys.readouterr() == ("", "fc\ufffd[31m: 1 of 3\nfc\ufffd[31m: 2 of 3\n")


def test_short_tasks_and_quiet_ones_say_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with terminal.watcher(quiet=False).task("fc", 3) as advance:
        advance(1)
    monkeypatch.setattr(terminal, "PATIENCE", 0)
    with terminal.watcher(quiet=True).task("fc", 3) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")
