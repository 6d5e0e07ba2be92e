"""The faults of a federated job, as every readable format lists them."""

from collections.abc import Iterator
from dataclasses import dataclass

from gradaudit.measurement import text_of
from gradaudit.report import Report


@dataclass(frozen=True)
class FaultLine:
    """A fault of a job with its repair.

    Attributes:
        level: ``error``, ``warning`` or ``note``.
        name: its name in words joined by hyphens.
        task: the task or chain that it is found in.
        says: what is wrong.
        repair: what to change.
        place: file, line where it is known, and key.
        path: of the file.
        line: in that file; None where it is not known.
    """

    level: str
    name: str
    task: str
    says: str
    repair: str
    place: str
    path: str
    line: int | None

    @property
    def heading(self) -> str:
        """The fault's name, and where it is found."""
        return f"{self.name} ({self.task or 'job'})"

    @property
    def sentence(self) -> str:
        """The fault and its repair."""
        return f"{self.heading}: {self.says}. Repair: {self.repair} [{self.place}]"


def faults_of(report: Report) -> Iterator[FaultLine]:
    """List the faults of a report's job, errors first."""
    found = [row.details for row in report.select("job.faults") if "fault" in row.variant]
    levels = ("error", "warning", "note")
    for fault in sorted(found, key=lambda fault: levels.index(text_of(fault.get("level")))):
        texts = {
            name: text_of(fault.get(name)) for name in ("level", "name", "task", "says", "repair")
        }
        line = fault.get("line")
        number = line if isinstance(line, int) else None
        file = f"{fault.get('file')}{'' if number is None else f':{number}'}"
        place = f"{file}: {fault.get('key')}"
        yield FaultLine(**texts, place=place, path=text_of(fault.get("path")), line=number)
