import os
import signal
from pathlib import Path
from textwrap import dedent

import pytest
from forked import Forked

pytestmark = pytest.mark.processes


def program(folder: Path, text: str) -> Forked:
    (folder / "program.py").write_text(dedent(text))
    return Forked(["program.py"], folder)


def test_it_has_the_environment_as_it_is_now_and_not_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "").communicate()  # from here on there is the process that forks
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    shows = """
        import os
        print(*(os.environ.get(name + "_NUM_THREADS") for name in ("OMP", "MKL")))
    """
    assert program(tmp_path, shows).communicate() == ("None 3\n", "")


def test_streams_are_read_beside_each_other_and_the_status_is_its_own(tmp_path: Path) -> None:
    process = program(
        tmp_path,
        """
            import sys
            sys.stderr.write("x" * 300_000)
            print("done")
            sys.exit(7)
        """,
    )
    out, err = process.communicate(timeout=60)
    assert (out, len(err), process.returncode) == ("done\n", 300_000, 7)


def test_streams_that_somebody_holds_are_not_waited_for_without_end(tmp_path: Path) -> None:
    process = program(
        tmp_path,
        """
            import os, time
            if os.fork():
                os._exit(0)
            time.sleep(60)
        """,
    )
    try:
        with pytest.raises(TimeoutError, match="held"):
            process.communicate(timeout=0.5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_it_ends_as_a_process_of_its_own_does(tmp_path: Path) -> None:
    process = program(
        tmp_path,
        """
            import atexit, threading, time
            atexit.register(print, "last")
            threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
            print("main")
            raise SystemExit(5)
        """,
    )
    assert (process.communicate(), process.returncode) == (("main\nthread\nlast\n", ""), 5)
