"""Executors of units of work, one kind a file; a new file is a new ``--executor``."""

from __future__ import annotations

from concurrent.futures import Executor

from gradaudit.core.parts import discover
from gradaudit.core.specs import suggest
from gradaudit.errors import UsageError
from gradaudit.executors.base import Cluster, GivenExecutor

__all__ = ["DEFAULT", "Cluster", "GivenExecutor", "clusters", "load_cluster"]

DEFAULT = "joblib"
_USER_CODE = "file"


def clusters() -> dict[str, type[Cluster]]:
    """Every kind by its name."""
    return discover(__name__, Cluster)


def load_cluster(executor: str | Executor) -> Cluster:
    """The cluster that ``--executor`` names; it is not contacted yet.

    Args:
        executor: ``joblib``, ``dask:tcp://…``, ``FILE.py:NAME``, … as ``gradaudit list`` shows
            them, or an executor as it is.

    Raises:
        UsageError: there is none of this name, or what it takes is wrong.
    """
    if isinstance(executor, Executor):
        return GivenExecutor(type(executor).__name__, executor)
    kind, _, target = executor.partition(":")
    known = clusters()
    if executor.rpartition(":")[0].endswith(".py"):
        return known[_USER_CODE](executor)
    if kind not in known or kind == _USER_CODE:
        forms = ", ".join(cluster.example for cluster in known.values())
        raise UsageError(
            f"--executor {executor}: no such executor{suggest(kind, known)}; name one of: {forms}"
        )
    return known[kind](target)
