"""``gradaudit schema``: the JSON Schemas of what gradaudit reads and writes."""

from typing import Annotated, Literal

import typer

from gradaudit.cli.reports import print_json
from gradaudit.schemas import schema_of


def schema(
    document: Annotated[
        Literal["report", "policy", "config"], typer.Argument(help="Whose schema.")
    ] = "report",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a report, a policy or a config file."""
    print_json(schema_of(document))
