"""``gradaudit render``: a saved report in another format."""

from gradaudit.cli.reports import OptionalShape, Output, ReportFile, Verbose, writers
from gradaudit.formats import format_named
from gradaudit.report import Report


def render(
    report: ReportFile,
    output: Output = None,
    shape: OptionalShape = None,
    verbose: Verbose = False,
) -> None:
    """Show a saved report, or write it in other formats.

    Prints the table unless files are asked for; with -f it prints in any case.
    """
    files = writers(output)
    saved = Report.from_file(report)
    for path, format_ in files:
        format_.write(saved, path)
    if shape or not files:
        format_named(shape or "table").show(saved)
