"""Names the faults of a job from what its chains do, each with its repair."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from gradaudit.audits.dp_audit.law.theory import mu_gaussian
from gradaudit.audits.job.epsilon import epsilon_laplace_composed
from gradaudit.audits.job.loading.chains import Fault, JobChain, Level, Link, LoadedJob, fault
from gradaudit.audits.job.probing import LeftNumbers, Probe, idle
from gradaudit.core.files import read_file
from gradaudit.core.text import listed
from gradaudit.errors import UsageError

_DECLARED = ("noise_multiplier", "sigma_multiplier", "multiplier")
_DEVIATIONS = ("sigma", "noise_std", "noise_scale", "std")
_CLIPS = ("clip", "clipping_norm", "max_grad_norm", "max_norm", "clip_norm")
"""Attributes by which filters and mods commonly say what they promise: noise in clips; noise in
clips or as it is; the clip."""
_MOST_BYTES = 1 << 22
_SPARSE = "SVTPrivacy"
_ROUNDING = 1e-6
"""Relative rounding of an exact epsilon."""
_OF_A_PROMISE = 0.9
"""Measured noise below this share of what is declared is too little: 16 draws are within 5 %."""
_IDLE: Mapping[str, str] = {
    "ExcludeVars": "pattern-matches-nothing",
    "PercentilePrivacy": "filter-fails-open",
    "ConvertWeights": "converts-nothing",
}
"""NVFlare's filters that leave results as they are, by class, and the fault's name."""


def faults_of(
    chain: JobChain, probe: Probe, *, private: bool, fixed_seed: bool, delta: float
) -> Iterator[Fault]:
    """List the faults of a chain that carries arrays.

    Args:
        chain: of a task.
        probe: what it does.
        private: whether the server adds noise, so that the chain need not.
        fixed_seed: whether a job that is loaded anew draws the same noise again.
        delta: that epsilon is for.
    """
    yield from _idle_links(chain)
    yield from _claims(chain)
    if private:
        return
    yield from _ledgers(chain, delta)
    links = listed([link.name for link in chain.links])
    if set(probe.untouched) >= {change.key for change in probe.carrying}:
        name = "model-unfiltered" if chain.carries == "model" else "update-unfiltered"
        through = f" through {links}" if links else ", as nothing filters it"
        yield chain.fault("secure-sum-without-noise" if chain.masked else name, through=through)
        return
    if probe.on_weights:
        yield chain.fault("noise-on-weights")
    if probe.repeats and not probe.on_weights:
        yield chain.fault("noise-fixed-seed" if fixed_seed else "noise-reused")
    elif not probe.noisy:
        yield chain.fault("no-noise", links=links)
    else:
        yield from _clip_faults(chain, probe)
    if probe.untouched:
        yield chain.fault("untouched-arrays", arrays=listed(probe.untouched, 6))
    if probe.bare:
        yield chain.fault("arrays-without-noise", arrays=listed(probe.bare, 6))
    if probe.noisy:
        yield from number_faults(chain, probe.numbers, probe.counts)


def _claims(chain: JobChain) -> Iterator[Fault]:
    """Find a mod whose own claim its exact epsilon of one message exceeds, under any relation."""
    if chain.known is None or chain.known.claim is None or not chain.lawful:
        return
    claimed, delta = chain.known.claim
    exact = [chain.known.promise(relation, delta).epsilon for relation in ("remove", "replace")]
    if exact[0] <= claimed * (1 + _ROUNDING):
        return
    needed = chain.known.clip / mu_gaussian(claimed, delta)
    facts = {"claimed": claimed, "delta": delta, "removed": exact[0], "replaced": exact[1]}
    sensitivity = needed * claimed / math.sqrt(2 * math.log(1.25 / delta))
    facts |= {"needed": sensitivity, "twice": 2 * sensitivity}
    (link,) = (link for link in chain.links if getattr(link.part, "epsilon", None) is not None)
    yield _of_link("claim-exceeded", chain, link, **facts)


def number_faults(
    chain: JobChain, numbers: LeftNumbers, counts: Sequence[str] = (), name: str = ""
) -> Iterator[Fault]:
    """List numbers that leave in clear, under noise, assumed, or constant."""
    lists = {
        name or "numbers-in-clear": numbers.clear,
        "counters-in-clear": counts,
        "numbers-under-noise": numbers.noisy,
        "numbers-assumed": numbers.assumed,
        "numbers-constant": numbers.constant,
    }
    for kind, each in lists.items():
        if each:
            declared = " ".join(f"--replies {quote(name)}" for name in each[:6])
            yield chain.fault(kind, numbers=listed(each, 6), declared=declared)


def format_faults(
    chain: JobChain, probe: Probe, other: Mapping[str, Sequence[str]], *, private: bool
) -> Iterator[Fault]:
    """List the arrays that pass a chain of filters in a format other than the chain's."""
    for exchange, arrays in other.items():
        more = [key for key in arrays if key not in probe.untouched]
        if more and not private:
            level: Level = "note" if chain.exchange_known else "warning"
            facts = {"exchange": exchange, "handled": chain.exchange}
            facts["links"] = listed([link.name for link in chain.links])
            name = "untouched-in-other-format"
            yield chain.fault(name, level, arrays=listed(more, 6), **facts)


def _clip_faults(chain: JobChain, probe: Probe) -> Iterator[Fault]:
    declared = [_attribute(link.part, _CLIPS) for link in chain.links]
    clips = [clip for clip in declared if clip is not None]
    beyond = any(probe.sensitivity > 2.1 * clip for clip in clips)
    if probe.fixed_length:
        yield chain.fault("clip-after-noise")
    elif probe.own_clip and not probe.on_weights:
        yield chain.fault("clip-from-own-data")
    elif not probe.clipped:
        yield chain.fault("no-clip")
    elif probe.by_parts and (beyond or not clips):
        level: Level = "error" if beyond else "warning"
        most = max(span.value for span in probe.alone.values())
        yield chain.fault("clip-per-array", level, whole=probe.sensitivity, one=most)
    if probe.halved:
        yield chain.fault(f"float16-{'before' if probe.halved_first else 'after'}-noise")
    if probe.clipped and not probe.fixed_length:
        yield from _below_declared(chain, probe)


def _below_declared(chain: JobChain, probe: Probe) -> Iterator[Fault]:
    """Find noise below the amount that the filter's or mod's attributes declare."""
    for link in chain.links:
        declared, noise = max(_declared(link.part), _claimed(chain, link)), probe.noise[-2]
        if noise < _OF_A_PROMISE * declared:
            facts = {"said": declared, "noise": noise, "times": declared / noise}
            yield _of_link("noise-below-declared", chain, link, **facts)


def _claimed(chain: JobChain, link: Link) -> float:
    """Compute the least noise by which the claim of a mod of known law holds; 0 without any."""
    known = chain.known if getattr(link.part, "epsilon", None) is not None else None
    if known is None or known.claim is None:
        return 0.0
    return known.clip / mu_gaussian(*known.claim)


def _declared(part: object) -> float:
    """Compute the least noise that a filter's or mod's attributes can mean; 0 without any."""
    clip = _attribute(part, _CLIPS)
    if clip is None:
        return 0.0
    multiplier, deviation = _attribute(part, _DECLARED), _attribute(part, _DEVIATIONS)
    return multiplier * clip if multiplier else (deviation or 0.0) * min(1.0, clip)


def _attribute(part: object, names: tuple[str, ...]) -> float | None:
    values = [getattr(part, name, None) for name in names]
    return next((float(v) for v in values if isinstance(v, int | float) and v > 0), None)


def _idle_links(chain: JobChain) -> Iterator[Fault]:
    """Find NVFlare's privacy filters that leave a long update unchanged."""
    for link in chain.links:
        kinds = getattr(link.part, "data_kinds", None)
        sent = "WEIGHT_DIFF" if chain.form == "differences" else "WEIGHTS"
        passed_over = kinds is not None and len(kinds) > 0 and sent not in kinds
        if not (passed_over or (link.alone and link.name in _IDLE and idle(chain, link.alone, 0))):
            continue
        kept = "filter-passes-kind" if passed_over else _IDLE[link.name]
        yield _of_link(kept, chain, link, sent=sent)


def _of_link(name: str, chain: JobChain, link: Link, **facts: Any) -> Fault:
    """Make a fault of one filter or mod, with the file and key that configure it."""
    file, _, key = link.source.partition(" ")
    return fault(name, file, key or link.name, chain.task, part=link.name, **facts)


def _ledgers(chain: JobChain, delta: float) -> Iterator[Fault]:
    """Find NVFlare's sparse vector filters, whose stated epsilon is too small (nvflare 2.9).

    Of so many elements that pass a threshold the filter charges for those that it sends, and half
    of all pass: noise of selection is far wider than what it clips to. A number that is sent has
    Laplace noise of 2 clips over ``noise_var``, so the worst pair is ``noise_var`` of epsilon.
    """
    for link in chain.links:
        ledger = getattr(link.part, "get_privacy_ledger", None)  # not before nvflare 2.9
        entries = ledger() if link.name == _SPARSE and ledger else []
        for entry in entries[-1:]:
            sent, total = entry["n_upload"], entry["epsilon_total"]
            worth = epsilon_laplace_composed(entry["epsilon_release"] / sent, sent, delta)
            facts = {"sent": sent, "total": total, "worth": worth, "delta": delta}
            passes = 0.5 / link.part.fraction
            yield _of_link("svt-ledger", chain, link, passes=passes, **facts)


def located(fault: Fault, folder: Path) -> Fault:
    """Add the line of a fault's key in its file, where one line alone holds it."""
    word = re.match(r"[\w.@-]+=?", fault.key)
    try:
        text = read_file(folder / fault.file, _MOST_BYTES).decode("utf-8", "replace")
    except UsageError:  # as of a site's policy, which lies elsewhere
        return fault
    if word is None or fault.line is not None:
        return fault
    end = "" if word[0].endswith("=") else r"(?!\w)"
    pattern = re.compile(rf"(?<!\w){re.escape(word[0])}{end}")
    lines = [i for i, line in enumerate(text.splitlines(), start=1) if pattern.search(line)]
    return replace(fault, line=lines[0]) if len(lines) == 1 else fault


def weaker_scope(job: LoadedJob, strength: Mapping[str, float]) -> Iterator[Fault]:
    """Report the job's privacy scope where another scope of the site protects more.

    ``strength`` is the noise over the sensitivity of the training's chain, by scope.
    """
    chosen = next((chain.scope for chain in job.chains if chain.chosen), "")
    if not strength or chosen not in strength:
        return
    best = max(strength, key=lambda name: strength[name])
    if strength[best] > strength[chosen] * 1.1:
        yield fault("weaker-scope", "meta.json", "scope", chosen=chosen, best=best)
