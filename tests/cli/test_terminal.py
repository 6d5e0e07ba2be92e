"""How work tells that it goes on where there is no terminal."""

import pytest
from rich.progress import Progress as Bar

from gradaudit.cli import terminal


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the terminal's clock shows."""
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_lines_are_harmless_and_stop_before_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE", 0)
    monkeypatch.setattr(terminal, "LINE_EVERY", 0)
    with terminal.watcher(quiet=False).task("fc\x1b[31m", 3) as advance:
        advance(1)
        advance(1)
        advance(1)
    assert capsys.readouterr() == (
        "",
        "fc\ufffd[31m: 1 of 3; less than a second left\n"
        "fc\ufffd[31m: 2 of 3; less than a second left\n",
    )


def test_lines_name_all_open_tasks_and_the_time_left(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = terminal.Lines()
    with lines.task("sweep, settings", 6) as outer:
        for number in (1, 2):
            with (
                lines.task(f"setting {number} of 6 (seed={number})", 1),
                lines.task("dlg", 300) as step,
            ):
                for _ in range(300):
                    now[0] += 0.1
                    step(1)
            outer(1)
    printed = capsys.readouterr().err.splitlines()
    assert printed == [
        "sweep, settings: 0 of 6; setting 1 of 6 (seed=1); dlg: 20 of 300",
        "sweep, settings: 1 of 6; setting 2 of 6 (seed=2); dlg: 20 of 300; about 3 min left",
    ]


def test_lines_come_at_most_every_half_minute(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = terminal.Lines()
    for _ in range(100):
        with lines.task("batch", 60) as step:
            for _ in range(60):
                now[0] += 0.05
                step(1)
    assert len(capsys.readouterr().err.splitlines()) == 1 + (300 - 2) // 30


def test_short_tasks_and_quiet_ones_say_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with terminal.watcher(quiet=False).task("fc", 3) as advance:
        advance(1)
    monkeypatch.setattr(terminal, "PATIENCE", 0)
    with terminal.watcher(quiet=True).task("fc", 3) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_one_bar_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bar, "start", lambda _: None)
    bars = terminal.LiveBars()
    seen: list[tuple[str, float, float | None]] = []

    def look() -> None:
        (bar,) = bars._bars.tasks
        seen.append((bar.description, bar.completed, bar.total))

    with bars.task("scan", 10) as advance:
        with bars.task("vinfo\x1b", 4) as step, bars.task("forest", 2):
            step(2)
            look()
        advance(8)
        look()
    assert seen == [("scan · forest", 0, 10), ("scan", 8, 10)]
    assert bars._bars.tasks == []
