"""Reads YAML files that people write into a model; errors name file, line and key."""

import re
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from gradaudit.core.files import read_file
from gradaudit.core.specs import suggest
from gradaudit.errors import UsageError

MAX_BYTES, MAX_NODES = 1 << 20, 30_000
"""Largest size of a file in bytes, and number of its keys, values and lists."""

M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path, model: type[M], schema: str) -> M:
    """Reads a YAML file into a model.

    Args:
        path: the file.
        model: refuses unknown keys.
        schema: how a user asks for the file's schema, for the error's last words.

    Raises:
        UsageError: the file is missing, over a megabyte, not YAML, uses aliases or a key twice,
            or does not fit the model.
    """
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not valid YAML: not UTF-8 text") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values = {} if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UsageError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error
    except Exception as error:  # a tag such as !!bool raises what its constructor happens to meet
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(f"{path}: not valid YAML: a value cannot be made ({said})") from error
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        where = ".".join(str(part) for part in fault["loc"])
        if not where and fault["type"] != "value_error":
            where = "the document"
        what = fault["msg"]
        if fault["type"] == "extra_forbidden":
            what = f"unknown key{_known(model, fault['loc'])}"
        line = "" if node is None else f", line {_line(node, fault['loc'])}"
        message = ": ".join(
            filter(None, (f"{path}{line}", where, what.removeprefix("Value error, ")))
        )
        raise UsageError(f"{message} (see `{schema}`)") from error


class _Loader(yaml.SafeLoader):
    """Loads plain values only: no aliases, which may expand without bound, and no repeated key."""

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are refused", mark)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            words = f"more than {MAX_NODES:,} keys, values and lists"
            raise yaml.composer.ComposerError(None, None, words, mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _date(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Construct a date; one that no calendar has names its line."""
    try:
        return loader.construct_yaml_timestamp(node)
    except ValueError as error:
        raise yaml.constructor.ConstructorError(
            None, None, f"{node.value}: {error}", node.start_mark
        ) from error


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _date)
_Loader.add_implicit_resolver(  # as YAML 1.2 has it; YAML 1.1 takes 1e-8 and 1.0e9 for texts
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    [*"-+.0123456789"],
)


def _known(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Suggests the key that was probably meant, and lists the known keys."""
    *outer, key = location
    for part in outer:
        if isinstance(part, str) and (inner := _model_of(model, part)) is not None:
            model = inner
        elif isinstance(part, str):
            return ""
    keys = [field.alias or name for name, field in model.model_fields.items()]
    meant = suggest(str(key), keys)
    return meant or f"; there are: {', '.join(keys)}"


def _model_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of a key's value, or of the items of its list; None for other values."""
    field = model.model_fields.get(key)
    kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
    models = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return next(models, None)


def _line(node: yaml.Node, location: tuple[int | str, ...]) -> int:
    """Returns the line, from 1, of the innermost part of ``location`` that the file has."""
    mark = node.start_mark
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            pair = (node.value[part], node.value[part])
        else:
            pair = None
        if pair is None:
            break
        mark, node = pair[0].start_mark, pair[1]
    return int(mark.line) + 1
