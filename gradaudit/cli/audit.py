"""One command for each audit, made from the audit's class."""

from collections.abc import Callable
from typing import Any

from gradaudit.audits import Audit
from gradaudit.cli.options import CONFIG, options_of, with_options
from gradaudit.cli.perform import compare_with_claim, insist, perform, show
from gradaudit.config import (
    OutputSettings,
    RunSettings,
    SubjectSettings,
    read_file,
    section,
    settle,
)


def audit_command(audit: type[Audit[Any]]) -> Callable[..., None]:
    """Make the command that runs this audit alone."""
    original = {renamed: name for name, renamed in audit.renames.items()}

    def command(**flags: Any) -> None:
        file = read_file(flags.pop("config"))
        own = {name: flags.pop(name) for name in audit.Options.model_fields}
        options = settle(audit.Options, own, section(file, audit.name))
        of_run = {original.get(name, name): value for name, value in flags.items()}
        settings = settle(RunSettings, of_run, file)
        report = perform(settings, [audit(options)])
        show(report, settings)
        insist(report)
        compare_with_claim(report)

    return with_options(
        command,
        [
            *options_of(audit.Options, "Options"),
            *options_of(SubjectSettings, "Subject", renames=audit.renames),
            CONFIG,
            *options_of(OutputSettings, "Output"),
        ],
    )
