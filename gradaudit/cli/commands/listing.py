"""``gradaudit list`` lists the available parts; ``gradaudit schema`` prints schemas of files.

JSON has no NaN, but many parsers read one. A number is therefore bounded by the largest double,
which no infinity is, and must not satisfy ``minimum: 1`` and ``maximum: 0`` at once, which only a
NaN does: it is neither below the one nor above the other.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from gradaudit.audits import audits
from gradaudit.audits.explaining import PARTS
from gradaudit.audits.explaining import explain as explained
from gradaudit.cli.reports import print_json
from gradaudit.config import file_model
from gradaudit.core.parts import declared, name_unknown_groups, summaries
from gradaudit.core.specs import pick
from gradaudit.deployment import Deployment
from gradaudit.formats import formats
from gradaudit.formats.base import Stdout, write_out
from gradaudit.formats.explanation import explanation_lines, explanation_markdown
from gradaudit.formats.page import Page
from gradaudit.judging import Policy, known_metrics
from gradaudit.report import Report
from gradaudit.zoo import zoo_names

SCHEMAS = ("report", "policy", "config", "deployment")

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
    """Returns the JSON Schema of ``report``, ``policy``, ``config`` or ``deployment``.

    Raises:
        UsageError: there is no schema of this name.
    """
    models: dict[str, Callable[[], type[BaseModel]]] = {
        "report": lambda: Report,
        "policy": lambda: Policy,
        "config": file_model,
        "deployment": lambda: Deployment,
    }
    model = pick(document, models, document, "schema")()
    mode: JsonSchemaMode = "serialization" if document == "report" else "validation"
    schema = model.model_json_schema(mode=mode, schema_generator=_Generator)
    if "JsonValue" in schema.get("$defs", {}):
        schema["$defs"]["JsonValue"] = ANY_JSON
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


class _Generator(GenerateJsonSchema):
    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {**FINITE, **super().float_schema(schema)}


def schema(
    document: Annotated[
        Literal["report", "policy", "config", "deployment"],
        typer.Argument(help="Kind of document whose schema is printed."),
    ] = "report",
) -> None:
    """Print the JSON Schema of a report or a settings file (draft 2020-12).

    gradaudit schema
    gradaudit schema policy
    """
    print_json(schema_of(document))


KINDS: dict[str, Callable[[], Mapping[str, str]]] = {
    "audits": lambda: {name: audit.summary for name, audit in audits().items()},
    "metrics": lambda: {
        name: metric.title + (f" ({metric.unit})" if metric.unit else "")
        for name, metric in known_metrics().items()
    },
    "zoo": zoo_names,
    "attacks": lambda: {
        **{name: audit.summary for name, audit in audits().items() if name.startswith("attack ")},
        **{f"--method {name}": text for name, text in summaries(PARTS["reconstructions"]).items()},
    },
    **{kind: partial(summaries, package, "example") for kind, package in PARTS.items()},
    "losses": lambda: {name: x["summary"] for name, x in declared(PARTS["losses"]).items()},
    "formats": lambda: {f"{f.name} ({f.suffix})": f.summary for f in formats().values()},
}

_GROUPS = {"audits": "gradaudit.audits", "readings": "gradaudit.attacks.reading"}
_GROUPS |= {kind: package for kind, package in PARTS.items() if kind != "losses"}
"""Packages whose parts entry points may name, by kind."""
ALIASES = {"methods": "reconstructions"}


def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"Kind to list (without it all): {', '.join(KINDS)}.",
        ),
    ] = None,
    shape: Annotated[
        Literal["table", "json"],
        typer.Option("-f", "--format", help="Format of what is printed."),
    ] = "table",
) -> None:
    """List the available parts: audits, metrics, models, data, losses, defenses and so on.

    gradaudit list
    gradaudit list defenses
    """
    chosen = [ALIASES.get(kind, kind)] if kind else list(KINDS)
    name_unknown_groups(_GROUPS.values(), [_GROUPS[each] for each in chosen if each in _GROUPS])
    by_kind = {name: pick(name, KINDS, f"list {kind}", "kind")() for name in chosen}
    if shape == "json":
        print_json(by_kind)
        return
    page = Page(Stdout())
    for name, parts in by_kind.items():
        width = max(map(len, parts), default=0)
        lines = [f"  {part:<{width}}  {summary}".rstrip() for part, summary in parts.items()]
        page.print(map(page.text, [f"{name}:", *lines]))


def explain(
    name: Annotated[
        list[str],
        typer.Argument(
            help="Name of an audit, a metric, a part that `gradaudit list` lists, an error or a "
            "word of reports, as in `attack property`, vinfo.auroc, prune or OPEN.",
        ),
    ],
    shape: Annotated[
        Literal["table", "markdown"],
        typer.Option("-f", "--format", help="Format of what is printed."),
    ] = "table",
) -> None:
    """Explain a listed name or a word of reports, from its declaration.

    gradaudit explain sensitivity
    gradaudit explain prune

    What is printed is the question it answers, its equation, source and limits, and its options.
    Where parts of two kinds share a name, put the kind before it, as in `mechanisms dp`.
    """
    explanation = explained(" ".join(name))
    if shape == "markdown":
        write_out(explanation_markdown(explanation))
    else:
        page = Page(Stdout())
        page.print(explanation_lines(explanation, page))
