"""Who is left of a process and of all that it started, in a session of its own."""

import time
from contextlib import suppress
from pathlib import Path


def in_session(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            *_, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session:
                found.append(int(path.parent.name))
    return found


def ends_within(seconds: float, session: int) -> None:
    """Fail where anybody of the session is there for longer."""
    until = time.monotonic() + seconds
    while left := in_session(session):
        assert time.monotonic() < until, left
        time.sleep(0.05)
