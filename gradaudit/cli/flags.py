"""Builds command line options from the fields of settings, so that each is declared once."""

import inspect
import types
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gradaudit.audits.explaining import described
from gradaudit.cli.help import escaped
from gradaudit.config import deployed, read_file
from gradaudit.core.files import FOUND
from gradaudit.core.text import listed
from gradaudit.deployment import Deployment, read_deployment
from gradaudit.trust import expect_trusted, trust


def parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """Makes a command's keyword parameter, None where its option or argument is not given."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


CONFIG = parameter(
    "config",
    Path | None,
    typer.Option(
        "--config",
        help="YAML file of options; flags win over it, and --no-NAME turns off an option that "
        f"it turns on (default: {FOUND} if it exists).",
    ),
)


def configured(flags: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """Returns the configuration file and its values by field name, over those of the federation.

    Args:
        flags: of a command, from which ``config`` is taken.

    Raises:
        UsageError: a file cannot be read, or a key is unknown or its value out of range.
    """
    path, file = read_configuration(flags)
    federation = read_federation(flags, file)
    return path, file if federation is None else deployed(file, federation)


def read_configuration(flags: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """Returns the configuration file with its values alone, and announces one that was found."""
    named: Path | None = flags.pop("config")
    path = named or (FOUND if FOUND.is_file() else None)
    file, dropped = without_replaced(read_file(path), flags)
    if path is not None and path.resolve() == FOUND.resolve():
        given = [name for name, value in flags.items() if value is not None]
        trust(path, file) if named else expect_trusted(path, file, given)
    remarks = [f"options of {path} (flags win over it)"] if path is not named else []
    if dropped:
        names = listed([name.replace("_", "-") for name in dropped])
        remarks.append(f"{names} of {path} left out: they describe what the command line replaces")
    for line in remarks if not flags.get("quiet") else ():
        typer.echo(f"gradaudit: {line}", err=True)
    return path, file


_BELONGING = {
    "model": ("checkpoint", "prefix", "partial", "loss", "layer", "hide", "expected_accuracy"),
    "checkpoint": ("prefix", "partial", "expected_accuracy"),
    "data": ("attribute", "expected_accuracy"),
}
"""Settings that describe another one, and lose their meaning where that one is replaced."""


def without_replaced(
    file: dict[str, Any], flags: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns a config file's values without those about something that the command line replaces.

    An attribute is one of the file's data, checkpoints are the model's, and so on: where a flag
    names other data, the file's attribute says nothing of it. Data is other data where it is read
    from elsewhere; other options of the same source are not.

    Args:
        file: as ``read_file`` gives it.
        flags: values by field name; None means that the flag was not given.

    Returns:
        The values that are left, and the names of the settings that were dropped.
    """
    replaced = [
        name
        for name in _BELONGING
        if name in file and flags.get(name) is not None and _is_other(name, file[name], flags[name])
    ]
    belonging = dict.fromkeys(part for name in replaced for part in _BELONGING[name])
    dropped = tuple(p for p in belonging if p in file and p not in replaced and not flags.get(p))
    return {name: value for name, value in file.items() if name not in dropped}, dropped


def _is_other(name: str, before: Any, now: Any) -> bool:
    if name == "data":
        return bool(before.partition("?")[0] != now.partition("?")[0])
    if name == "model":
        return bool(before != now)
    return list(map(str, before)) != list(map(str, now))


def read_federation(flags: Mapping[str, Any], file: Mapping[str, Any]) -> Deployment | None:
    """Returns the federation that a flag or the configuration names, if the command takes one."""
    path = flags.get("deployment") or file.get("deployment")
    heeds = "deployment" in flags
    return read_deployment(path) if heeds and path is not None else None


def options_of(
    model: type[BaseModel],
    panel: str,
    *,
    renames: Mapping[str, str] = MappingProxyType({}),
    without: Collection[str] = (),
) -> list[inspect.Parameter]:
    """Returns one keyword option for each field; None stands for "not given".

    Fields of a class come before those that it inherits, as they are its own.

    Args:
        model: settings whose fields have descriptions.
        panel: the heading under which ``--help`` shows them.
        renames: other names for some fields.
        without: fields that get no option.
    """
    fields = model.model_fields
    declared = (name for kind in model.__mro__ for name in inspect.get_annotations(kind))
    return [
        _option(renames.get(name, name), fields[name], panel)
        for name in dict.fromkeys(declared)
        if name in fields and name not in without
    ]


def with_options(
    command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Give a ``**kwargs`` command the signature that Typer reads."""
    vars(command)["__signature__"] = inspect.Signature(parameters, return_annotation=None)
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def _option(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    kind = _plain(field.annotation)
    flag = "--" + name.replace("_", "-")
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if kind is bool and "short" not in extra:
        flag += "/--no-" + name.replace("_", "-")
    flags = [flag, *([str(extra["short"])] if "short" in extra else [])]
    text = escaped(described(name, field))
    option = typer.Option(*flags, help=text, rich_help_panel=panel, show_default=False)
    return parameter(name, kind | None, option)


def _plain(annotation: Any) -> Any:
    """Returns the type that Typer parses: without None, and a list of texts for a tuple."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (kind for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is tuple:
        return list[str]
    return annotation
