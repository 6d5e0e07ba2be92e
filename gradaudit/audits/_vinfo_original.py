"""Usable information about the input itself, from the success of reconstructions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradaudit.audits._vinfo_options import VinfoOptions
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.target import Subject


def original_rows(
    subject: "Subject", options: VinfoOptions, progress: Progress
) -> Iterator[Measurement]:
    """Rows of ``original_vinfo`` and ``original_success`` (Mo et al. 2022, eq. 4-6).

    Raises:
        NotApplicable: not measured in this version.
    """
    raise NotApplicable(
        "--original: information about the input itself is not measured in this version; "
        "gradaudit attack reconstruct shows what reconstructions find"
    )
