"""One table of hostile files, each with the command that reads it and what it must say."""

from hostile.case import Case
from hostile.checkpoints import CHECKPOINTS, UPDATES
from hostile.data import DATA_CASES
from hostile.documents import DOCUMENTS
from hostile.folders import FOLDER_CASES

HOSTILE: tuple[Case, ...] = (*CHECKPOINTS, *UPDATES, *DATA_CASES, *DOCUMENTS, *FOLDER_CASES)

__all__ = ["HOSTILE", "Case"]
