"""A report without the words of its data: attributes, values, columns and paths. No torch in here.

Numbers, layers, options and metrics stay, so that a redacted report can be judged and compared.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from gradaudit.private_words import split_command, words_of
from gradaudit.report import Measurement, Report

_KEPT_KEYS = {"infinite", "claimed", "exceeded"}


def redact(report: Report, columns: Mapping[str, Sequence[str]] | None = None) -> Report:
    """A copy in which every private word is a placeholder, the same one wherever it stood.

    ``attribute-1``, ``value-1``, ``class-1``, ``column-1`` and ``file-1`` are numbered in order of
    appearance in the report. Numbers and single characters are replaced where they are a whole
    string or stand in quotes or after ``=``, not in the midst of a sentence.

    Args:
        report: any report.
        columns: all columns of the data with their categories; a report alone does not list them.
    """
    told = words_of(report, columns or {}).replace
    return report.model_copy(
        update={
            "target": report.target.model_copy(
                update={
                    "model": told(report.target.model),
                    "loss": told(report.target.loss),
                    "checkpoints": [
                        checkpoint.model_copy(
                            update={
                                "file": told(checkpoint.file),
                                "notes": [told(note) for note in checkpoint.notes],
                            }
                        )
                        for checkpoint in report.target.checkpoints
                    ],
                }
            ),
            "data": {key: _all(value, told) for key, value in report.data.items()},
            "provenance": {
                key: _command(value, told) if key == "command" else _all(value, told, keys=False)
                for key, value in report.provenance.items()
            },
            "measurements": [_row(row, told) for row in report.measurements],
            "findings": [
                finding.model_copy(
                    update={
                        "variant": _all(finding.variant, told, keys=False),
                        "message": told(finding.message),
                    }
                )
                for finding in report.findings
            ],
        }
    )


def _command(value: JsonValue, told: Callable[[str], str]) -> JsonValue:
    return shlex.join(map(told, split_command(value))) if isinstance(value, str) else value


def _all(value: Any, told: Callable[[str], str], *, keys: bool = True) -> Any:
    """A JSON value with all its strings, and the keys of its objects, told."""
    if isinstance(value, str):
        return told(value)
    if isinstance(value, list):
        return [_all(part, told, keys=keys) for part in value]
    if isinstance(value, dict):
        return {
            told(key) if keys and key not in _KEPT_KEYS else key: _all(part, told, keys=keys)
            for key, part in value.items()
        }
    return value


def _row(row: Measurement, told: Callable[[str], str]) -> Measurement:
    return row.model_copy(
        update={
            "variant": _all(row.variant, told, keys=False),
            "reason": None if row.reason is None else told(row.reason),
            "details": _all(row.details, told),
        }
    )
