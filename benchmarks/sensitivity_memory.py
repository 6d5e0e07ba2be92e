"""Peak memory and time of estimated input and label F norms of large networks, 16 records each.

Every network is measured in a process of its own, on one thread, in float64.

    python benchmarks/sensitivity_memory.py [--probes 64] [--records 16]
"""

import argparse
import resource
import subprocess
import sys
import time

MODELS = {
    "zoo:vgg16-gn?classes=10": (3, 32, 32),
    "torchvision:resnet18?num_classes=10": (3, 64, 64),
}


def measure(spec: str, shape: tuple[int, ...], records: int, probes: int) -> None:
    import torch

    torch.set_num_threads(1)

    from gradaudit.audits.sensitivity import Sensitivity, SensitivityOptions
    from gradaudit.data.records import Records
    from gradaudit.models.building import load_model
    from gradaudit.models.losses import CrossEntropy
    from gradaudit.models.target import Target
    from gradaudit.progress import Silent
    from gradaudit.subject import Subject

    generator = torch.Generator().manual_seed(0)
    data = Records(
        inputs=torch.rand(records, *shape, generator=generator), labels=torch.arange(records) % 10
    )
    target = Target(load_model(spec), CrossEntropy())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    audit = Sensitivity(SensitivityOptions(probes=probes))
    rows = list(audit.run(Subject((target,), data, target.layers), Silent()))
    taken = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = {row.layer for row in rows if row.metric == "input_f" and row.status == "measured"}
    size = sum(p.numel() for p in target.model.parameters())
    print(
        f"{spec:40}{size / 1e6:9.1f} M{len(measured):8}{before / 2**20:10.2f}{peak / 2**20:10.2f}"
        f"{taken:10.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--records", type=int, default=16)
    parser.add_argument("--model", choices=MODELS)
    arguments = parser.parse_args()
    if arguments.model:
        measure(arguments.model, MODELS[arguments.model], arguments.records, arguments.probes)
        return
    print(f"{arguments.records} records, {arguments.probes} probes; resident GiB")
    print(
        f"{'':40}{'elements':>11}{'layers':>8}{'before':>10}{'peak':>10}{'seconds':>10}", flush=True
    )
    for model in MODELS:
        command = [sys.executable, __file__, "--model", model]
        options = [f"--probes={arguments.probes}", f"--records={arguments.records}"]
        subprocess.run([*command, *options], check=True)


if __name__ == "__main__":
    main()
