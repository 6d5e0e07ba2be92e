"""``gradaudit schema``: the JSON Schemas (draft 2020-12) of reports, policies and config files.

JSON has no NaN, but many parsers read one. A number is therefore bounded by the largest double,
which no infinity is, and must not satisfy ``minimum: 1`` and ``maximum: 0`` at once, which only a
NaN does: it is neither below the one nor above the other.
"""

import sys
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from gradaudit.cli.reports import print_json
from gradaudit.config import file_model
from gradaudit.errors import UsageError
from gradaudit.judging import Policy
from gradaudit.report import Report

SCHEMAS = ("report", "policy", "config")

FINITE: JsonSchemaValue = {
    "type": "number",
    "minimum": -sys.float_info.max,
    "maximum": sys.float_info.max,
    "not": {"minimum": 1, "maximum": 0},
}
ANY_JSON: JsonSchemaValue = {
    "anyOf": [
        {"type": ["null", "boolean", "string"]},
        FINITE,
        {"type": "array", "items": {"$ref": "#/$defs/JsonValue"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/JsonValue"}},
    ]
}


def schema_of(document: str) -> dict[str, Any]:
    """The schema of ``report``, ``policy`` or ``config``.

    Raises:
        UsageError: there is no schema of this name.
    """
    if document == "report":
        return _schema(Report, "serialization")
    if document == "policy":
        return _schema(Policy, "validation")
    if document == "config":
        return _schema(file_model(), "validation")
    raise UsageError(f"no schema of {document!r}; there are: {', '.join(SCHEMAS)}")


class _Generator(GenerateJsonSchema):
    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {**FINITE, **super().float_schema(schema)}


def _schema(model: type[BaseModel], mode: JsonSchemaMode) -> dict[str, Any]:
    schema = model.model_json_schema(mode=mode, schema_generator=_Generator)
    if "JsonValue" in schema.get("$defs", {}):
        schema["$defs"]["JsonValue"] = ANY_JSON
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


def schema(
    document: Annotated[
        Literal["report", "policy", "config"], typer.Argument(help="Whose schema.")
    ] = "report",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a report, a policy or a config file."""
    print_json(schema_of(document))
