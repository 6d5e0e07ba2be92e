"""Commitments: a dated file with the digests of a policy and an audit file, before the numbers.

The date is that of the clock of the machine. A timestamp of an authority (RFC 3161) over the
commitment's file is kept beside it and shows the date to others.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, JsonValue, ValidationError

from gradaudit.core.files import read_file
from gradaudit.core.parts import library
from gradaudit.core.text import printable
from gradaudit.errors import UsageError
from gradaudit.judging import Policy, read_policy
from gradaudit.measurement import Document
from gradaudit.report import Report, utc_now

MAX_BYTES = 1 << 20
STAMPED = ".tsr"
"""Suffix that the file of a timestamp has after the commitment's name."""
EXTRA = "evidence"


class Commitment(Document):
    """Digests of files that were fixed at a time.

    Attributes:
        time: in UTC, ISO 8601, by the clock of the machine.
        rules: SHA-256 of the policy's rules, as reports name it.
        files: SHA-256 by name of each file.
    """

    gradaudit_commitment: Literal[1] = 1
    time: AwareDatetime
    rules: str
    files: dict[str, str]

    def order(self, report: Report, stamped: datetime | None = None) -> str:
        """Returns whether the files were fixed before the report's numbers, as a clause."""
        time = stamped or self.time
        clock = "a timestamp authority" if stamped else "the clock of the machine that fixed it"
        first = self.came_first(report, stamped)
        if first is None:
            return f"fixed {time.isoformat()} by {clock}; the report does not say when it began"
        before = "before" if first else "only after"
        started = report.provenance["started"]
        return printable(
            f"fixed {time.isoformat()} by {clock}, {before} the numbers, begun {started}"
        )

    def came_first(self, report: Report, stamped: datetime | None = None) -> bool | None:
        """Whether the files were fixed before the numbers; None where nobody can tell."""
        try:
            began = datetime.fromisoformat(str(report.provenance.get("started")))
        except ValueError:
            return None
        return (stamped or self.time) <= began if began.tzinfo else None


def with_order(judged: Report, commitment: Path, policy: Policy | None) -> Report:
    """Returns a judged report that says whether its policy was fixed before the numbers.

    Raises:
        UsageError: the file cannot be read, or is about another policy than the one that judges.
    """
    read = read_commitment(commitment)
    if policy is None or read.rules != policy.sha256:
        message = "is about another policy than the one that judges; name its own with --policy"
        raise UsageError(f"{commitment}: {message}")
    by = judged.provenance.get("policy")
    noted: dict[str, JsonValue] = {
        **(by if isinstance(by, dict) else {}),
        "fixed": read.order(judged, stamp(commitment)),
    }
    return judged.model_copy(update={"provenance": {**judged.provenance, "policy": noted}})


def commit(policy: Path, others: Sequence[Path] = ()) -> Commitment:
    """Returns the commitment to a policy and to other files, dated now.

    Raises:
        UsageError: a file cannot be read, the first is no policy, or two have one name.
    """
    contents = {path.name: read_file(path, MAX_BYTES) for path in (policy, *others)}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if len(files) <= len(others):
        raise UsageError("two files of a commitment have one name; rename one of them")
    now = datetime.fromisoformat(utc_now())
    return Commitment(time=now, rules=read_policy(policy).sha256, files=files)


def read_commitment(path: Path) -> Commitment:
    """Reads a commitment.

    Raises:
        UsageError: the file cannot be read or is none.
    """
    try:
        return Commitment.model_validate_json(read_file(path, MAX_BYTES))
    except ValidationError as error:
        message = "no commitment; write one with `gradaudit commit policy.yaml audit.yaml`"
        raise UsageError(f"{path}: {message}") from error


def stamp(commitment: Path) -> datetime | None:
    """Returns the time of the timestamp beside a commitment; None where there is no timestamp.

    Who signed it is not checked here: ``openssl ts -verify`` does that, given the authority's
    certificate.

    Raises:
        UsageError: the timestamp is of other content, or is none.
    """
    path = commitment.with_name(commitment.name + STAMPED)
    return stamped_time(path, commitment) if path.exists() else None


def stamped_time(timestamp: Path, commitment: Path) -> datetime:
    """Returns the time that an RFC 3161 response gives to a commitment's file.

    Raises:
        UsageError: rfc3161-client is not installed, the response was refused or cannot be read,
            or it is of other content than this file's, by SHA-256.
    """
    client = library("rfc3161_client", EXTRA, str(timestamp))
    try:
        answer = client.decode_timestamp_response(read_file(timestamp, MAX_BYTES)).tst_info
    except ValueError as error:
        message = f"no timestamp of RFC 3161 ({printable(str(error))}); ask the authority anew"
        raise UsageError(f"{timestamp}: {message}") from error
    imprint = hashlib.sha256(read_file(commitment, MAX_BYTES)).digest()
    if answer.message_imprint.message != imprint:
        message = (
            f"is of other content than {commitment} has now (SHA-256); ask for a new timestamp"
        )
        raise UsageError(f"{timestamp}: {message}")
    time: datetime = answer.gen_time
    return time
