"""The commands ``attest``, ``verify``, ``commit`` and ``history``: evidence over time."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gradaudit.cli.reports import All, Quiet, Verbose, remark
from gradaudit.core.files import expect_other_files, read_file, write_atomically
from gradaudit.core.text import printable
from gradaudit.errors import UsageError
from gradaudit.evidence import annex, commit, stamp, statement_of, verify
from gradaudit.evidence.changes import MOST_ROWS
from gradaudit.evidence.commitment import STAMPED, read_commitment, stamped_time
from gradaudit.evidence.history import read_history
from gradaudit.evidence.signing import sign
from gradaudit.evidence.statement import Kind
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Page
from gradaudit.report import Report
from gradaudit.sweeping.sweep_table import write_table

ALTERED = 1
COMMITMENT = Path("commitment.json")
MAX_STAMP = 1 << 20
_WORDS = {True: "ok", False: "ALTERED", None: "note"}


def attest(
    report: Annotated[
        Path,
        typer.Argument(help="Judged JSON report, as `gradaudit gate -o judged.json` writes it."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File of the statement, as JSON.")
    ] = Path("statement.json"),
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Policy file that judged the report.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", help="Earlier JSON report that excused known findings."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Audit file that the report was made by.")
    ] = None,
    commitment: Annotated[
        Path | None,
        typer.Option("--commitment", help="Commitment to the policy and the audit file."),
    ] = None,
    with_annex: Annotated[
        Path | None,
        typer.Option("--annex", help="Markdown file to write with a row for each class of attack."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--sign", help="PEM file of the private key that signs.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write an in-toto statement of a judged report, signed where a key is named.

    gradaudit attest judged.json -o statement.json
    gradaudit attest judged.json --policy policy.yaml --sign signer.pem -o statement.json

    The statement names the checkpoints by SHA-256, the result (PASSED, FAILED, or WARNED where the
    verdict is UNDECIDED), every test, and the files by digest. Signed, it is a DSSE envelope.
    `gradaudit verify` checks a folder that holds the statement and all the files.
    """
    named: dict[Kind, Path | None] = {
        "report": report,
        "policy": policy,
        "baseline": baseline,
        "config": config,
        "commitment": commitment,
        "annex": with_annex,
    }
    stamped = stamp(commitment) if commitment else None
    if commitment and stamped:
        named["timestamp"] = commitment.with_name(commitment.name + STAMPED)
    files = {kind: path for kind, path in named.items() if path is not None}
    read = [*(path for kind, path in files.items() if kind != "annex"), key]
    expect_other_files([output, *([with_annex] if with_annex else [])], read)
    if with_annex is not None:
        expect_other_files([output], [with_annex])
        statement_of({kind: path for kind, path in files.items() if kind != "annex"})
        if key is not None:
            sign(b"", key)  # a key that cannot sign is refused before anything is written
        committed = read_commitment(commitment) if commitment else None
        write_atomically(with_annex, annex(Report.from_file(report), committed, stamped))
    statement = statement_of(files)
    made = json.dumps(statement, indent=1, ensure_ascii=False)
    written = made if key is None else json.dumps(sign(made.encode(), key), indent=1)
    write_atomically(output, written + "\n")
    if key is None:
        remark(f"{output} is not signed; --sign KEY lets others see who wrote it", quiet)


def verify_pack(
    folder: Annotated[
        Path, typer.Argument(help="Folder with a statement and the files that it names.")
    ],
    key: Annotated[
        Path | None, typer.Option("--key", help="PEM file of the signer's public key.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Verify that a statement, its signature and the files that it names belong together.

    gradaudit verify pack
    gradaudit verify pack --key signer.pub

    Prints one line for each file and claim: ok, ALTERED, or a note. Exits with 1 where anything
    was altered or is missing.
    """
    checks = verify(folder, key)
    for check in checks:
        typer.echo(
            f"{_WORDS[check.sound]:<8} {printable(f'{check.what}: {check.words}', limit=None)}"
        )
    if any(check.sound is False for check in checks):
        raise typer.Exit(ALTERED)


def commit_files(
    policy: Annotated[Path, typer.Argument(help="Policy file that will judge.")],
    others: Annotated[
        list[Path] | None, typer.Argument(help="Further files to fix, such as the audit file.")
    ] = None,
    timestamp: Annotated[
        Path | None,
        typer.Option(
            "--timestamp", help="Answer of a timestamp authority (RFC 3161) to keep beside it."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File of the commitment, as JSON.")
    ] = COMMITMENT,
    verbose: Verbose = False,
) -> None:
    """Fix a policy and an audit file before the numbers: write their digests with the date.

    gradaudit commit policy.yaml audit.yaml
    gradaudit commit policy.yaml audit.yaml -o fixed.json

    `gradaudit gate --commitment` then says in the report whether the policy was fixed first. The
    date is of this machine's clock; with --timestamp the commitment that is there is kept, and the
    authority's answer about it lies beside it.
    """
    made = commit(policy, others or ())
    if timestamp is None:
        if output.exists():
            raise UsageError(
                f"{output}: exists, and its date would be lost; name another file with -o"
            )
        write_atomically(output, made.model_dump_json(indent=1) + "\n")
        return
    kept = read_commitment(output)
    if (kept.files, kept.rules) != (made.files, made.rules):
        raise UsageError(f"{output}: is about other files; commit to these first")
    stamped_time(timestamp, output)
    content, beside = read_file(timestamp, MAX_STAMP), output.with_name(output.name + STAMPED)
    if beside.exists() and read_file(beside, MAX_STAMP) != content:
        raise UsageError(
            f"{beside}: is another timestamp, which would be overwritten; move it away first"
        )
    write_atomically(beside, content)


def history(
    folder: Annotated[
        Path, typer.Argument(help="Folder with JSON reports, one a round or version.")
    ],
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Metric to follow (default: all that answer a question)."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o", "--output", help="File to write: .html with pictures, or .csv with every row."
        ),
    ] = None,
    every: All = False,
    verbose: Verbose = False,
) -> None:
    """Follow leakage by layer over rounds or versions, and flag what the intervals show.

    gradaudit history reports
    gradaudit history reports -o history.html -o history.csv

    The reports are taken in the order of the numbers in their names. A change is flagged where the
    interval lies beyond that of the last report flagged, or of the first; ten are shown.
    """
    for path in output or ():
        if path.suffix.lower() not in (".html", ".csv"):
            raise UsageError(f"{path}: a history is written as .html or .csv")
    found = read_history(folder, metric)
    for path in output or ():
        if path.suffix.lower() == ".csv":
            write_table(path, found.merged(), found.metrics[0])
        else:
            write_atomically(path, found.page())
    shown = found.turns if every else found.turns[:MOST_ROWS]
    page = Page(Stdout())
    page.print(page.prose(found.summary))
    for turn in shown:
        page.print(page.prose(str(turn), rest="  "))
    if left := len(found.turns) - len(shown):
        page.print(page.prose(f"{left} more changes (--all shows them)"))
