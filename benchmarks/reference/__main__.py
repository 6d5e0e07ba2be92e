"""Train and audit the reference models again, and compare them with those that are kept.

    python -m benchmarks.reference [NAMES …] [--write]

Names are those of the files in ``gradaudit/references``; without one all are made, but those whose
data is not there. It ends with status 1 where a value differs by more than its tolerance. With
``--write`` the files, and the page ``docs/reference/index.md``, are written instead.
"""

import sys
import time

from benchmarks.harness import arguments
from benchmarks.reference.audited import differences, kept_report
from benchmarks.reference.page import write_page
from benchmarks.reference.recipes import RECIPES
from gradaudit.core.specs import pick
from gradaudit.references import FOLDER
from gradaudit.report import Report


def main() -> int:
    """Make the references that the command line names."""
    given = arguments(__doc__)
    failed = False
    for name in given.names or RECIPES:
        begun = time.process_time()
        try:
            made = kept_report(name, pick(name, RECIPES, name, "reference"))
        except SystemExit as absent:
            print(f"{name}: left out: {absent}", flush=True)
            continue
        file = FOLDER / f"{name}.json"
        if given.write:
            made.save(file)
            write_page()
        said = differences(Report.from_file(file), made)
        failed = failed or bool(said)
        seconds = time.process_time() - begun
        print(f"{name}: {'; '.join(said) or 'alike'} ({seconds:.0f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
