"""Plan of a scan: each audit's preset by counted work, in a fixed order; no clock is read.

A scan is made for 1, 5 or 60 minutes of two usual cores. An audit runs at the preset that was asked
for if its operations are at most ``SHARE`` of the scan's, else at the largest smaller one that
fits. The least preset, a sample of the layers, runs up to half of the scan's operations.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from pydantic import JsonValue

from gradaudit.audits import Audit, Metric
from gradaudit.audits.presets import Preset
from gradaudit.models.target import Layer
from gradaudit.subject import RATE as RATE
from gradaudit.subject import Subject

log = logging.getLogger(__name__)

CORES = 2
"""Cores of a usual machine."""
SHARE, MOST = 1 / 7, 1 / 2
"""Largest shares of a scan's operations: of one audit, and of one at its least preset."""
_GIANT = 0.25
"""Share of all parameters from which on a layer is not in a sample of the layers."""

Judged = Callable[[Audit[Any], Metric], bool]
"""Whether a policy's rules judge a metric of an audit."""


@dataclass(frozen=True)
class PlannedAudit:
    """An audit at the preset that the plan chose.

    Attributes:
        preset: with the audit's options.
        work: operations; zero where there is nothing to do, or nothing is known.
        asked: whether it is the largest preset that was asked for.
        fits: whether it runs at all.
    """

    preset: Preset
    work: float
    asked: bool = True
    fits: bool = True

    @property
    def audit(self) -> Audit[Any]:
        """The audit with the preset's options."""
        return self.preset.audit


def planned(
    subject: Subject, presets: Sequence[Preset], seconds: float, share: float | None = None
) -> PlannedAudit:
    """Choose the largest preset of an audit whose work fits.

    Args:
        subject: what is audited.
        presets: from the least to the most work.
        seconds: of ``CORES`` usual cores, that all audits are made for.
        share: largest share of them for this audit; ``SHARE`` where none is given.
    """
    total, share = seconds * CORES * RATE, share or SHARE
    for preset in reversed(presets):
        work = work_of(subject, preset)
        if work <= share * total:
            return PlannedAudit(preset, work, preset is presets[-1])
    return PlannedAudit(presets[0], work, len(presets) == 1, work <= max(share, MOST) * total)


def work_of(subject: Subject, preset: Preset) -> float:
    """Count the operations of an audit at a preset; zero where nothing is known."""
    try:
        at = at_preset(subject, preset)
        return at.work(preset.audit.gradients(at))
    except Exception as error:  # whatever a model or a file raises; the audit's run says it
        log.debug("%s: no count: %s", preset.audit.name, error)
        return 0.0


def seconds_of_work(work: float, jobs: int) -> float:
    """Estimate the seconds of some operations on usual cores."""
    return work / RATE / jobs


def at_preset(subject: Subject, preset: Preset) -> Subject:
    """Returns the subject that an audit at a preset measures."""
    layers = sample_of(subject.layers, preset.layers or len(subject.layers))
    subject = subject.in_precision(torch.float32) if preset.single else subject
    return replace(subject, samples=subject.samples or preset.samples, layers=layers)


def is_sampled(subject: Subject, preset: Preset) -> bool:
    """Whether a preset measures a sample of the subject's layers alone."""
    return preset.layers is not None and preset.layers < len(subject.layers)


def in_order(audits: Iterable[PlannedAudit], asked: bool, judged: Judged) -> list[PlannedAudit]:
    """Sort audits: the job's, those judged about a named attribute, judged attacks, the rest.

    Args:
        audits: in any order; within each group they go by ``priority``.
        asked: whether a private attribute is named.
        judged: the policy.
    """

    def turn(each: PlannedAudit) -> tuple[int, int]:
        if each.audit.brings_model:  # a job, which takes seconds
            return -1, each.audit.priority
        metrics = [metric for metric in each.audit.metrics if judged(each.audit, metric)]
        if asked and any(metric.question == "attribute" for metric in metrics):
            return 0, each.audit.priority
        return (1 if metrics and not each.audit.proxy else 2), each.audit.priority

    return sorted(audits, key=turn)


def plan_facts(subject: Subject, audits: Sequence[PlannedAudit]) -> dict[str, JsonValue]:
    """Describe a plan by its audits, and by one hash of all that it fixes."""
    facts: dict[str, JsonValue] = {}
    fixed = []
    for each in sorted(audits, key=lambda each: each.audit.name):
        at = at_preset(subject, each.preset)
        layers = [layer.name for layer in at.layers] if is_sampled(subject, each.preset) else None
        facts[each.audit.name] = {
            "preset": each.preset.name,
            "samples": at.samples,
            "layers": None if layers is None else len(layers),
            "work": each.work,
        }
        options = each.audit.options.model_dump(mode="json")
        fixed.append([each.audit.name, options, at.samples, each.preset.single, layers, each.fits])
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
    return {"hash": digest, "audits": facts}


def sample_of(layers: Sequence[Layer], count: int) -> tuple[Layer, ...]:
    """Choose a number of layers, in the model's order.

    The first, the last and the widest, then the middle one of each kind in a block, which are those
    whose names differ in numbers alone, the most frequent first, and then some at equal distances.
    Layers with more than a quarter of all parameters are left aside where there are enough others:
    the table of GPT-2's tokens takes as long as all else in its sample.
    """
    if count >= len(layers):
        return tuple(layers)
    every, total = layers, sum(layer.parameters for layer in layers)
    layers = [layer for layer in every if layer.parameters <= _GIANT * total]
    layers = layers if len(layers) >= count else every
    places = range(len(layers))
    widest = max(places, key=lambda place: layers[place].parameters)
    blocks: dict[tuple[str, str], list[int]] = {}
    for place, layer in enumerate(layers):
        blocks.setdefault((layer.kind, re.sub(r"\d+", "#", layer.name)), []).append(place)
    frequent = sorted(blocks.values(), key=len, reverse=True)
    chosen = dict.fromkeys((0, len(layers) - 1, widest))
    chosen |= dict.fromkeys(b[len(b) // 2] for b in frequent if not chosen.keys() & {*b})
    spread = (round(n * (len(layers) - 1) / (count - 1)) for n in range(count))
    wanted = dict.fromkeys(chain(chosen, spread, places))
    return tuple(layers[place] for place in sorted([*wanted][:count]))
