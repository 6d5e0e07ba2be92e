"""Lightning and transformers import torchvision, which some torch builds refuse at first."""

import importlib.util

import pytest

from gradaudit.core.user_code import import_torchvision


@pytest.fixture(scope="session")
def torchvision() -> None:
    """Torchvision, ready to be imported."""
    import_torchvision("ops")


@pytest.fixture
def inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages are made within a task of a run, of which flwr asks from 1.41 on."""
    if importlib.util.find_spec("flwr.supercore.task_identity") is None:
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)
