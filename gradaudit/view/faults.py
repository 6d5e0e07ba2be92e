"""The chains, epsilons and faults of a federated job, as every readable format lists them."""

from collections.abc import Iterator
from dataclasses import dataclass

from gradaudit.measurement import dict_of, list_of, text_of, texts_of
from gradaudit.report import Measurement, Report


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


def job_lines(report: Report) -> tuple[str, ...]:
    """List a job's chains, its epsilons, and what these stand on; nothing without a job."""
    epsilons = [*report.select("job.epsilon_client"), *report.select("job.epsilon_record")]
    remarks = (text for row in epsilons for text in texts_of(row.details.get("remarks")))
    chains = [row for row in report.select("job.chain") if row.status == "measured"]
    if not chains:
        return ()
    return tuple(dict.fromkeys([*map(_chain, chains), *map(_epsilon, epsilons), *remarks]))


def _chain(row: Measurement) -> str:
    links = map(dict_of, list_of(row.details.get("links")))
    names = [text_of(link.get("name")) for link in links]
    scope = f" (scope {row.variant['scope']})" if "scope" in row.variant else ""
    task, passed = text_of(row.variant.get("task")), " -> ".join([*names, "server"])
    return f"{task}{scope}: training -> {passed}"


def _epsilon(row: Measurement) -> str:
    unit, details = row.metric.removeprefix("epsilon_"), row.details
    how = "added or removed" if row.variant else "replaced"
    if "rounds" not in details:
        return f"epsilon: not known; {row.reason}"
    value = (
        "not known" if row.number is None else "infinite" if row.infinite else f"{row.value:.4g}"
    )
    other = details.get("without_this_fault")
    without = f"; {other:.4g} without what leaves in clear" if isinstance(other, float) else ""
    rounds = f"{details['rounds']} round{'' if details['rounds'] == 1 else 's'}"
    about = f"{rounds}, delta {details['delta']:g}"
    return f"epsilon, a {unit} {how}: {value} ({about}{without})"
