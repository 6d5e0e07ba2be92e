"""Names the faults of a job from what its chains do, each with its repair."""

from collections.abc import Iterator, Mapping

from gradaudit.audits.job.epsilon import epsilon_laplace_composed
from gradaudit.audits.job.loading.chains import Fault, JobChain, LoadedJob, fault
from gradaudit.audits.job.probing import Probe, idle
from gradaudit.text import listed

_DECLARED = ("noise_multiplier", "sigma_multiplier", "multiplier")
_CLIPS = ("clip", "clipping_norm", "max_grad_norm", "max_norm", "clip_norm")
"""Attributes by which filters and mods commonly say what they promise."""
_SPARSE = "SVTPrivacy"
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
    """The faults of a chain that carries arrays.

    Args:
        chain: of a task.
        probe: what it does.
        private: whether the server adds noise, so that the chain need not.
        fixed_seed: whether a job that is loaded anew draws the same noise again.
        delta: that epsilon is for.
    """
    yield from _idle_links(chain)
    if private:
        return
    yield from _ledgers(chain, delta)
    if set(probe.untouched) >= {fate.key for fate in probe.carrying}:
        yield _unfiltered(chain)
        return
    yield from _noise_faults(chain, probe, fixed_seed)
    if probe.untouched:
        yield chain.fault(
            "untouched-arrays",
            f"{listed(probe.untouched, 6)} leave bit for bit as training made them",
        )
    if probe.bare:
        yield chain.fault(
            "arrays-without-noise",
            f"{listed(probe.bare, 6)} leave without noise, though others get some",
        )
    numbers = [*probe.numbers, *probe.counts]
    if probe.noisy and numbers:
        yield chain.fault(
            "numbers-in-clear",
            f"{listed(numbers)} leave as they are: counts and metrics follow from the data",
        )


def _unfiltered(chain: JobChain) -> Fault:
    if chain.masked:
        says = f"the result of {chain.task} leaves masked, and no noise protects the sum"
        return chain.fault("secure-sum-without-noise", says)
    passes = listed([link.name for link in chain.links])
    through = f" through {passes}" if passes else ", as nothing filters it"
    return chain.fault(
        "model-unfiltered" if chain.carries == "model" else "update-unfiltered",
        f"the result of {chain.task} leaves as training made it{through}",
    )


def _noise_faults(chain: JobChain, probe: Probe, fixed_seed: bool) -> Iterator[Fault]:
    if probe.on_weights:
        yield chain.fault(
            "noise-on-weights",
            "clipping acts on the weights and not on their difference to those received",
        )
    if probe.repeats and not probe.on_weights:
        yield chain.fault(
            "noise-fixed-seed" if fixed_seed else "noise-reused",
            "every round draws the same noise from a fixed seed, and differences cancel it"
            if fixed_seed
            else "the noise of the first round is used again, and differences cancel it",
        )
    elif not probe.noisy:
        yield chain.fault(
            "no-noise",
            f"{listed([link.name for link in chain.links])} draw no noise",
        )
    else:
        yield from _clip_faults(chain, probe)


def _clip_faults(chain: JobChain, probe: Probe) -> Iterator[Fault]:
    if probe.fixed_length:
        yield chain.fault(
            "clip-after-noise",
            "what leaves has the same norm in every round, so the clip acts after the noise",
        )
    elif probe.own_clip and not probe.on_weights:
        yield chain.fault(
            "clip-from-own-data",
            "the clip follows from the client's own update, so it bounds nothing",
        )
    elif not probe.clipped:
        yield chain.fault(
            "no-clip",
            "longer updates leave longer: nothing bounds what a client can change",
        )
    elif probe.by_parts and _beyond_declared(chain, probe) is not False:
        yield chain.fault(
            "clip-per-array",
            f"arrays are clipped one by one: together two updates lie {probe.sensitivity:.3g} "
            f"apart, where one array gives {max(probe.alone.values()):.3g}",
            level="error" if _beyond_declared(chain, probe) else "warning",
        )
    if probe.halved:
        first = probe.halved_first
        yield chain.fault(
            "float16-before-noise" if first else "float16-after-noise",
            "the update is rounded to half precision before noise of half precision is added"
            if first
            else "what leaves is rounded to half precision after the noise, which costs no privacy",
        )
    if probe.clipped and not probe.fixed_length:
        yield from _below_declared(chain, probe)


def _beyond_declared(chain: JobChain, probe: Probe) -> bool | None:
    """Whether the sensitivity is beyond that of the clip that a filter or mod declares.

    None where none declares any.
    """
    declared = [_attribute(link.part, _CLIPS) for link in chain.links]
    clips = [clip for clip in declared if clip is not None]
    return any(probe.sensitivity > 2.1 * clip for clip in clips) if clips else None


def _below_declared(chain: JobChain, probe: Probe) -> Iterator[Fault]:
    """Noise that is less than the filter or mod itself says, by its attributes."""
    for link in chain.links:
        multiplier = _attribute(link.part, _DECLARED)
        clip = _attribute(link.part, _CLIPS)
        noise = probe.noise[-2]
        if multiplier is None or clip is None or noise >= _OF_A_PROMISE * multiplier * clip:
            continue
        times = multiplier * clip / noise
        yield fault(
            "noise-below-declared",
            f"{link.name} says noise of {multiplier * clip:.3g} and adds {noise:.3g}, "
            f"{times:.3g} times less, as where it is divided by the number of clients",
            link.source.split()[0],
            link.name,
            chain.task,
        )


def _attribute(part: object, names: tuple[str, ...]) -> float | None:
    values = [getattr(part, name, None) for name in names]
    return next((float(v) for v in values if isinstance(v, int | float) and v > 0), None)


def _idle_links(chain: JobChain) -> Iterator[Fault]:
    """Privacy filters of NVFlare that leave a long update exactly as it is."""
    for i, link in enumerate(chain.links):
        kinds = getattr(link.part, "data_kinds", None)
        sent = "WEIGHT_DIFF" if chain.form == "differences" else "WEIGHTS"
        passed_over = kinds is not None and len(kinds) > 0 and sent not in kinds
        if not (passed_over or (link.name in _IDLE and idle(chain, i, 0))):
            continue
        kept = "filter-passes-kind" if passed_over else _IDLE[link.name]
        file, _, key = link.source.partition(" ")
        says = f"{link.name} leaves results of {chain.task} ({sent}) exactly as they are"
        yield fault(kept, says, file, key or link.name, chain.task)


def _ledgers(chain: JobChain, delta: float) -> Iterator[Fault]:
    """NVFlare's sparse vectors, whose own ledger is not what they are worth (nvflare 2.9).

    Of so many elements that pass a threshold the filter charges for those that it sends, and half
    of all pass: noise of selection is far wider than what it clips to. A number that is sent has
    Laplace noise of 2 clips over ``noise_var``, so the worst pair is ``noise_var`` of epsilon.
    """
    for link in chain.links:
        entries = link.part.get_privacy_ledger() if link.name == _SPARSE else []
        for entry in entries[-1:]:
            sent, total = entry["n_upload"], entry["epsilon_total"]
            worth = epsilon_laplace_composed(entry["epsilon_release"] / sent, sent, delta)
            yield fault(
                "svt-ledger",
                f"the ledger of {link.name} counts an epsilon of {total:.6g} a round; the {sent:,} "
                f"numbers that it sends are worth {worth:.4g} with the worst pair (delta "
                f"{delta:g}), and about {0.5 / link.part.fraction:.2g} times as many pass the "
                "selection as it charges for",
                link.source.split()[0],
                link.name,
                chain.task,
            )


def numbers_fault(chain: JobChain, numbers: tuple[str, ...]) -> Fault:
    """The fault of a task whose metrics leave as they are."""
    says = f"{listed(numbers)} of {chain.task} leave as they are"
    return chain.fault("metrics-unfiltered", says)


def failing(chain: JobChain, why: str) -> Fault:
    """The fault of a chain that fails on every result, so that its task gives nothing."""
    return chain.fault("chain-fails", f"results of {chain.task} become errors: {why}")


def weaker_scope(job: LoadedJob, strength: Mapping[str, float]) -> Iterator[Fault]:
    """The scope that the job runs in, where another of the site protects more.

    ``strength`` is the noise over the sensitivity of the training's chain, by scope.
    """
    chosen = next((chain.scope for chain in job.chains if chain.chosen), "")
    if not strength or chosen not in strength:
        return
    best = max(strength, key=lambda name: strength[name])
    if strength[best] > strength[chosen] * 1.1:
        says = f"the job runs in the scope {chosen!r}, and the site's scope {best!r} protects more"
        repair = f'write "scope": "{best}" in meta.json, or let the site remove {chosen!r}'
        yield fault("weaker-scope", says, "meta.json", "scope", repair=repair)
