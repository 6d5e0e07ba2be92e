"""Where the bundled sample model lies, and how it is audited."""

import sysconfig
from pathlib import Path
from typing import Any

from gradaudit.errors import UsageError

FOLDER = "sample_models"


def sample_folder() -> Path:
    """The folder of sample models, of the checkout or of the installation.

    Relative to the working directory where it lies in it.

    Raises:
        UsageError: neither holds one.
    """
    places = (
        Path(__file__).parents[1] / FOLDER,
        Path(sysconfig.get_path("data")) / "share" / "gradaudit" / FOLDER,
    )
    for place in places:
        if (place / "models.py").is_file():
            here = Path.cwd()
            return place.relative_to(here) if place.is_relative_to(here) else place
    raise UsageError("the sample models are not installed; name --model and --data")


def sample_settings() -> dict[str, Any]:
    """Settings that audit the bundled digits model after its last round."""
    folder = sample_folder()
    return {
        "model": f"{folder / 'models.py'}:digits_cnn",
        "checkpoint": (max((folder / "digits").glob("round-*.safetensors")),),
        "data": "digits",
        "attribute": ("slant",),
    }
