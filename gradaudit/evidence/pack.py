"""Verifies a folder that holds a statement and the files that it names."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from gradaudit.core.files import digest_of, once, read_file
from gradaudit.errors import UsageError
from gradaudit.evidence.commitment import read_commitment, stamp
from gradaudit.evidence.signing import UnsignedError, signed
from gradaudit.evidence.statement import (
    KIND,
    STATEMENT,
    Json,
    Kind,
    checkpoint_digest,
    statement_of,
)
from gradaudit.report import Report

MAX_BYTES = 64 << 20
MAX_NAME = 255
"""Most bytes that file systems let a name have."""


class PackCheck(NamedTuple):
    """What was found of one file or claim of a pack.

    Attributes:
        sound: whether it is as the statement says; None where the statement does not say.
        what: the file or the claim.
        words: what matches or what was altered.
    """

    sound: bool | None
    what: str
    words: str


def verify(folder: Path, key: Path | None = None) -> list[PackCheck]:
    """Returns a check of the signature, each file, the statement's claims and the commitment.

    Args:
        folder: with one statement or envelope, and the files that it names.
        key: PEM file of the public key of whoever must have signed the statement.

    Raises:
        UsageError: the folder holds no statement, several, or one with a key twice, or it is signed
            and no key is named.
    """
    path, document = _statement_in(folder)
    if "payload" not in document:
        says = "is not signed: whoever can alter the files can write another statement"
        return [
            PackCheck(None if key is None else False, path.name, says),
            *_claims(folder, path, document),
        ]
    if key is None:
        raise UsageError(f"{path}: is signed; name the public key of who must have signed: --key")
    try:
        statement = json.loads(signed(document, key), object_pairs_hook=once)
    except (UnsignedError, ValueError, RecursionError):
        return [
            PackCheck(False, path.name, f"was altered, or was not signed by the owner of {key}")
        ]
    sound = PackCheck(True, path.name, f"signed by the owner of {key}")
    return [sound, *_claims(folder, path, statement)]


def _statement_in(folder: Path) -> tuple[Path, dict[str, Any]]:
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder; name the one that holds the statement")
    found = [
        (path, document)
        for path in sorted(folder.glob("*.json"))
        if isinstance(document := read_json(path), dict) and _is_statement(document)
    ]
    if len(found) != 1:
        message = f"holds {len(found)} statements; it must hold the one of `gradaudit attest`"
        raise UsageError(f"{folder}: {message}")
    path, document = found[0]
    try:
        json.loads(read_file(path, MAX_BYTES), object_pairs_hook=once)
    except ValueError as error:
        message = (
            "so that programs may read it differently; ask for a statement of `gradaudit attest`"
        )
        raise UsageError(f"{path}: has the {error}, {message}") from error
    return path, document


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file; None where it cannot be read as one."""
    try:
        return json.loads(read_file(path, MAX_BYTES))
    except (UsageError, ValueError, RecursionError):
        return None


def _is_statement(document: Mapping[str, Any]) -> bool:
    return document.get("_type") == STATEMENT or {"payload", "signatures"} <= document.keys()


def _claims(folder: Path, own: Path, statement: Json) -> Iterator[PackCheck]:
    """Yields a check of each file that the statement names, then of what it says of them."""
    try:
        named = _named(statement)
    except (AttributeError, KeyError, TypeError, ValueError):
        yield PackCheck(False, "the statement", "is not as `gradaudit attest` writes it")
        return
    files: dict[Kind, Path] = {}
    for name, digest, kind in named:
        yield _of_file(folder / Path(name).name, digest, subject=not kind)
        if kind in get_args(Kind):
            files[cast("Kind", kind)] = folder / Path(name).name
    yield _of_result(files, statement)
    if "commitment" in files and "report" in files:
        yield _of_commitment(files["commitment"], files["report"])
    known = {own.name, *(Path(name).name for name, _, _ in named)}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            yield PackCheck(None, path.name, "is not named by the statement, and was not checked")


def _named(statement: Json) -> list[tuple[str, str, str]]:
    """Returns name, SHA-256 and kind of the subjects and of the configuration's files.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the statement has another form.
    """
    every = cast("Any", statement)
    subjects = [(each["name"], each["digest"]["sha256"], "") for each in every["subject"]]
    configuration = [
        (each["name"], each["digest"]["sha256"], each["mediaType"].removeprefix(KIND))
        for each in every["predicate"]["configuration"]
        if "sha256" in each["digest"]
    ]
    named = [*subjects, *configuration]
    for name, digest, _ in named:
        if not re.fullmatch("[0-9a-f]{64}", digest) or len(os.fsencode(name)) > MAX_NAME:
            raise ValueError
    return named


def _of_file(path: Path, digest: str, *, subject: bool) -> PackCheck:
    if not path.exists():
        return PackCheck(False, path.name, "is missing: the statement names it")
    try:
        found = checkpoint_digest(path) if subject else digest_of(path)
    except UsageError as error:
        return PackCheck(False, path.name, str(error))
    if found == digest:
        return PackCheck(True, path.name, f"matches, SHA-256 {digest[:12]}…")
    return PackCheck(False, path.name, f"was altered: SHA-256 is {found[:12]}…, was {digest[:12]}…")


def _of_result(files: Mapping[Kind, Path], statement: Json) -> PackCheck:
    """Checks that the statement is the one that the files give."""
    what = "the result"
    try:
        made = statement_of(files)
    except (UsageError, KeyError) as error:
        return PackCheck(False, what, f"does not follow from the files: {error}")
    if made == statement:
        result = cast("Any", statement)["predicate"]["result"]
        if "policy" not in files:
            message = "is what the report says; no policy is named to judge its numbers by"
            return PackCheck(None, what, f"{result} {message}")
        return PackCheck(True, what, f"{result} follows from the report and the policy")
    return PackCheck(False, what, "is not what the report says")


def _of_commitment(path: Path, report: Path) -> PackCheck:
    try:
        commitment, judged, stamped = read_commitment(path), Report.from_file(report), stamp(path)
    except UsageError as error:
        return PackCheck(False, path.name, str(error))
    first = commitment.came_first(judged, stamped)
    return PackCheck(first or None, "the policy", commitment.order(judged, stamped))
