"""The command line with ``counting`` as its only audit."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from command_line import Result, invoke
from fake_audit import Counting

from gradaudit.cli import guarded
from gradaudit.cli.audit import audit_command
from gradaudit.cli.commands.scan import scan
from gradaudit.config import file_model


@pytest.fixture
def only_counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``counting`` is the only audit there is."""
    monkeypatch.setattr("gradaudit.audits.discover", lambda *_: {"counting": Counting})
    file_model.cache_clear()
    yield
    file_model.cache_clear()


@cache
def build() -> typer.Typer:
    """``gradaudit scan`` and ``gradaudit counting``."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("scan")(guarded(scan))
    app.command("counting")(guarded(audit_command(Counting)))
    return app


def run(*arguments: object) -> Result:
    """Run ``gradaudit scan`` or ``gradaudit counting`` in this process, without a terminal."""
    return invoke(build(), *arguments)


def write_distribution(folder: Path) -> None:
    """An installed distribution, of files in ``folder``, that offers the audit."""
    info = folder / "fake_audit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-audit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gradaudit.audits]\ncounting = fake_audit:Counting\n")
