"""Lightning and transformers import torchvision, which some torch builds refuse at first."""

import pytest

from gradaudit.user_code import import_torchvision


@pytest.fixture(scope="session")
def torchvision() -> None:
    """Torchvision, ready to be imported."""
    import_torchvision("ops")
