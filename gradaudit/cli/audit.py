"""The command of an audit alone, made from its class."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, get_origin

from pydantic import BaseModel

from gradaudit.audits import Audit
from gradaudit.audits.presets import Preset
from gradaudit.cli.flags import CONFIG, configured, options_of, with_options
from gradaudit.cli.perform import (
    asked,
    expect_writable,
    finish,
    opened,
    time_left,
    unjudged,
)
from gradaudit.cli.scanning import presets_of, print_plan, survey
from gradaudit.cli.terminal import watcher
from gradaudit.config import (
    BudgetSettings,
    OutputSettings,
    RunSettings,
    SubjectSettings,
    section,
    settle,
)
from gradaudit.judging import read_policy


def audit_command(audit: type[Audit[Any]]) -> Callable[..., None]:
    """Make the command that runs this audit alone."""

    def command(**flags: Any) -> None:
        config, file = configured(flags)
        of_run, given = dealt(audit, flags)
        settings = settle(BudgetSettings, of_run, file)
        seconds = settings.seconds
        left = time_left(seconds) if seconds else None
        presets = presets_within(audit, given, file, within=seconds)
        policy = read_policy(settings.policy) if settings.policy else None
        expect_writable(settings, config, settings, [each.audit.options for each in presets])
        if settings.dry_run:
            print_plan(settings, [presets], seconds or math.inf, share=1.0)
            return
        if seconds is not None:
            survey(
                settings, config, [presets], seconds, left, share=1.0, policy=policy, single=True
            )
            return
        (preset,) = presets
        with opened(settings) as subject:
            from gradaudit.run.runner import run

            watch = watcher(settings.quiet)
            facts = {**asked(config), **unjudged(preset.audit, policy)}
            report = run(subject, [preset.audit], progress=watch, provenance=facts)
        finish(report, settings, subject, policy)

    return with_options(command, parameters(audit))


def parameters(audit: type[Audit[Any]]) -> list[inspect.Parameter]:
    """Returns the options of a command that runs this audit."""
    return [
        *options_of(audit.Options, "Options"),
        *options_of(SubjectSettings, "Subject", renames=audit.renames),
        *options_of(BudgetSettings, "Subject", without=RunSettings.model_fields),
        CONFIG,
        *options_of(OutputSettings, "Output"),
    ]


def presets_within(
    audit: type[Audit[Any]], given: dict[str, Any], file: dict[str, Any], within: float | None
) -> tuple[Preset, ...]:
    """Returns the presets of an audit that may run: without a budget the options as given."""
    if within is None:
        return (Preset("plain", audit(_settled(audit, given, file))),)
    return presets_of(audit, "thorough", {**section(file, audit.name), **given})


def dealt(
    audit: type[Audit[Any]], flags: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the given flags by field name into those of the run and those of the audit."""
    original = {renamed: name for name, renamed in audit.renames.items()}
    given = {name: value for name, value in flags.items() if value is not None}
    own = {name: given.pop(name) for name in audit.Options.model_fields if name in given}
    of_run = {original.get(name, name): value for name, value in given.items()}
    return _shaped(BudgetSettings, of_run), _shaped(audit.Options, own)


def _settled(audit: type[Audit[Any]], given: dict[str, Any], file: dict[str, Any]) -> BaseModel:
    return settle(audit.Options, given, section(file, audit.name))


def _shaped(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Turns a single text for a field of several values into a list of that one value."""
    return {
        name: (value,)
        if isinstance(value, str) and get_origin(model.model_fields[name].annotation) is tuple
        else value
        for name, value in values.items()
    }
