"""``gradaudit schema``: the JSON Schemas of what gradaudit reads and writes."""

import json
from typing import Annotated, Literal

import typer

from gradaudit.schemas import schema_of


def schema(
    document: Annotated[
        Literal["report", "policy", "config"], typer.Argument(help="Whose schema.")
    ] = "report",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a report, a policy or a config file."""
    typer.echo(json.dumps(schema_of(document), indent=2))
