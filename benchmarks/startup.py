"""CPU seconds that commands take before their work begins, beside those of ``import torch``.

Every command audits the sample model and is run in turn with the others, each in a process of its
own; what is told are medians. The work itself is timed within the process, as the second of two
equal runs: the first finds nothing loaded.

    python benchmarks/startup.py [--repeats 5] [--root OTHER_CHECKOUT]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
SAMPLE = (
    *("--model", "sample_models/models.py:digits_cnn", "--data", "digits"),
    *("--checkpoint", "sample_models/digits/round-10.safetensors"),
)
COMMANDS = {
    "--help": ("--help",),
    "list": ("list",),
    "forward": ("forward", *SAMPLE, "--samples", "16"),
    "sensitivity": ("sensitivity", *SAMPLE, "--samples", "16"),
    "vinfo": (
        *("vinfo", *SAMPLE, "--samples", "200", "--attribute", "ink"),
        *("--layer", "fc2", "--repeats", "2", "--family", "logistic"),
    ),
    "dp-audit": (
        *("dp-audit", "--model", "sample_models/models.py:diabetes_mlp", "--data", "diabetes"),
        *("--attribute", "sex", "--mechanism", "dp:clip=1,sigma=1", "--trials", "100"),
    ),
    "scan --dry-run": ("scan", "--dry-run"),
    "scan --quick": ("scan", "--quick"),
}
TWICE = """
import os, sys, time
from gradaudit.__main__ import main
for _ in range(2):
    begun = time.process_time()
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
print(time.process_time() - begun, file=sys.stderr)
"""


def seconds(command: list[str], root: Path) -> tuple[float, str]:
    """CPU seconds of a process and its children, and the last line that it wrote to stderr."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return spent, (done.stderr.splitlines() or [""])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--root", type=Path, default=HERE)
    parser.add_argument("names", nargs="*", default=list(COMMANDS))
    asked = parser.parse_args()
    names: list[str] = asked.names
    torch: list[float] = []
    whole: dict[str, list[float]] = {name: [] for name in names}
    again: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(asked.repeats):
        torch.append(seconds([sys.executable, "-c", "import torch"], asked.root)[0])
        for name in names:
            command = [*COMMANDS[name], *([] if name in ("--help", "list") else ["--jobs", "1"])]
            both, told = seconds([sys.executable, "-c", TWICE, *command], asked.root)
            again[name].append(float(told))
            whole[name].append(both - float(told))
    alone = statistics.median(torch)
    print(f"import torch {alone:.2f}")
    for name in names:
        total, work = statistics.median(whole[name]), statistics.median(again[name])
        print(f"{name:15} {total:6.2f}, start {total - work:5.2f} = {(total - work) / alone:.2f} ×")


if __name__ == "__main__":
    main()
