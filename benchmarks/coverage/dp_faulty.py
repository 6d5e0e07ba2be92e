"""Faulty mechanisms under the audit, with the claim that an honest one could make.

    python -m benchmarks.coverage.dp_faulty [--seeds 5] [--only '']

Every mechanism claims the epsilon of clipping to 0.5 and noise of 1 on the sum (μ = 2Δ/σ = 1,
ε = 4.38 at δ = 1e-5). Records are crafted in the free domain on scikit-learn's diabetes data and an
MLP with five hidden layers. Per mechanism: how often the claim is exceeded over the seeds, the
median bound, and the gap that the canary reached in units of the 2Δ that an honest one allows.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.harness import arguments
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.data import load_records
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.subject import Subject

HIDDEN, WIDTH, CLIP, DELTA = 5, 16, 0.5, 1e-5
CLAIM = epsilon_gaussian(2 * CLIP, DELTA)

MECHANISMS = f"""
import torch

WIDTHS = [10] + [{WIDTH}] * {HIDDEN} + [2]
SIZES = [size for a, b in zip(WIDTHS, WIDTHS[1:]) for size in (a * b, b)]

def clip(gradients):
    return gradients / (gradients.norm(dim=1, keepdim=True) / {CLIP}).clamp(min=1)

def by_layer(gradients):
    return torch.cat([clip(part) for part in gradients.split(SIZES, dim=1)], dim=1)

def drawn(count, elements, generator):
    return torch.randn(count, elements, generator=generator)

def noisy(mean, sigma, noise=drawn):
    def mechanism(gradients, generator):
        return releases(gradients, 1, generator)[0]
    def releases(gradients, count, generator):
        scale = sigma / len(gradients)
        return mean(gradients) + scale * noise(count, gradients.shape[1], generator)
    mechanism.releases = releases
    return mechanism

honest = noisy(lambda g: clip(g).mean(0), 1)
eighth = noisy(lambda g: clip(g).mean(0), 1 / 8)
half = noisy(lambda g: clip(g).mean(0), 1 / 2)
unclipped = noisy(lambda g: g.mean(0), 1)
layered = noisy(lambda g: by_layer(g).mean(0), 1)
late = noisy(lambda g: clip(g.mean(0, keepdim=True))[0], 1)

def seeded(gradients, generator):
    noise = torch.randn(gradients.shape[1], generator=torch.Generator().manual_seed(0))
    return clip(gradients).mean(0) + noise / len(gradients)

shared = noisy(lambda g: clip(g).mean(0), 1, lambda count, of, r: drawn(count, 1, r))
stepped = noisy(
    lambda g: clip(g).mean(0), 1, lambda *shape: (100 * drawn(*shape)).round() / 100
)
seldom = noisy(
    lambda g: clip(g).mean(0), 1,
    lambda count, of, r: drawn(count, of, r) * (torch.rand(count, 1, generator=r) > 1e-3),
)
def median(gradients, generator):
    norms = gradients.norm(dim=1, keepdim=True)
    bound = norms.median()
    noise = 2 * bound * drawn(1, gradients.shape[1], generator)[0]
    return ((gradients / (norms / bound).clamp(min=1)).sum(0) + noise) / len(gradients)
"""

CASES: dict[str, dict[str, object]] = {
    "honest": {},
    "honest, 7 companions": {"companions": 7},
    "sigma an eighth": {"mechanism": "eighth"},
    "sigma half, 5,000 trials": {"mechanism": "half"},
    "sigma half, 300,000 trials": {"mechanism": "half", "trials": 300_000},
    "clipping forgotten": {"mechanism": "unclipped"},
    "each layer clipped, 5,000 trials": {"mechanism": "layered"},
    "each layer clipped, 20,000 trials": {"mechanism": "layered", "trials": 20_000},
    "clipped after averaging, 7 companions": {"mechanism": "late", "companions": 7},
    "the same noise every step": {"mechanism": "seeded"},
    "one number for all elements": {"mechanism": "shared"},
    "noise in steps of a hundredth": {"mechanism": "stepped"},
    "no noise once in a thousand, 5,000 trials": {"mechanism": "seldom"},
    "no noise once in a thousand, 300,000 trials": {"mechanism": "seldom", "trials": 300_000},
    "clipped at the median, 7 companions": {"mechanism": "median", "companions": 7},
    "the honest one, a record removed of 8": {"companions": 7, "relation": "remove"},
}


def subject(seed: int) -> Subject:
    records = load_records("diabetes", attributes=("sex",))
    hidden = ",".join([str(WIDTH)] * HIDDEN)
    model = load_model(f"zoo:mlp?inputs=10&hidden={hidden}&classes=2", seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
    target = Target(model, CrossEntropy())
    return Subject((target,), records, target.layers, attributes=("sex",), seed=seed)


def audit(file: Path, seed: int, options: dict[str, object]) -> tuple[float, float]:
    """The bound, and the canary's gap over what an honest mechanism allows."""
    settled = DpAudit.Options.model_validate(
        {
            "domain": "free",
            "restarts": 24,
            "iterations": 400,
            **options,
            "mechanism": f"{file}:{options.get('mechanism', 'honest')}",
        }
    )
    rows = list(DpAudit(settled).run(subject(seed), Silent()))
    bound, gap = (
        next(row.number for row in rows if row.metric == metric and not row.variant)
        for metric in ("epsilon_lower", "canary_gap")
    )
    records = 1 + int(str(options.get("companions", 0)))
    return float(bound or 0), float(gap or 0) / (2 * CLIP / records)


def main() -> None:
    given = arguments(__doc__)
    print(
        f"claimed epsilon {CLAIM:.3f} at delta {DELTA:g}, 5,000 trials where nothing else is said"
    )
    print(f"{'mechanism':40s} {'exceeded':>9s} {'bound':>7s} {'gap/2Δ':>8s}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mechanisms.py"
        file.write_text(MECHANISMS)
        for name in (name for name in CASES if given.only in name):
            options = CASES[name]
            found = np.array([audit(file, seed, options) for seed in range(given.seeds)])
            exceeded = int((found[:, 0] > CLAIM).sum())
            bound, gap = np.median(found, axis=0)
            print(f"{name:40s} {exceeded:4d} of {len(found)} {bound:7.2f} {gap:8.2f}")


if __name__ == "__main__":
    main()
