"""Loads a job, runs its chains on simulated updates, and reports."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

import torch
from pydantic import JsonValue

from gradaudit._version import __version__
from gradaudit.audits.dp_audit.game.hypotheses import reproducible
from gradaudit.audits.dp_audit.law.theory import Relation
from gradaudit.audits.dp_audit.middleware import quiet
from gradaudit.audits.dp_audit.middleware.array_changes import LEAVES
from gradaudit.audits.dp_audit.middleware.payload import Layout, ReplyError, simulated
from gradaudit.audits.job import Job, JobOptions
from gradaudit.audits.job.epsilon import (
    RELATIONS,
    UNKNOWN,
    NoiseStrength,
    by_accountant,
    strength_of,
    strength_of_release,
)
from gradaudit.audits.job.findings import (
    faults_of,
    format_faults,
    located,
    number_faults,
    weaker_scope,
)
from gradaudit.audits.job.job_rounds import (
    RoundKind,
    chosen_rounds,
    played_rounds,
    representatives,
    rounds_text,
)
from gradaudit.audits.job.loading.chains import Fault, JobChain, LoadedJob
from gradaudit.audits.job.probing import (
    LeftNumbers,
    Probe,
    left_numbers,
    probe,
    untouched_in_other_formats,
)
from gradaudit.audits.job.replies import declare, expect_texts, replies_of
from gradaudit.audits.rows import Rows
from gradaudit.core.randomness import sequence
from gradaudit.core.text import UNBOUNDED, listed
from gradaudit.errors import AuditError, NotApplicable, UsageError, one_line
from gradaudit.progress import Progress
from gradaudit.report import LayerRecord, Measurement, Report, TargetRecord, Variant, utc_now
from gradaudit.subject import Subject

_ROUNDING = 1e-3
"""Relative distance of two releases of the same noise, around other weights of single precision."""
_HOW = "name the folder of a job: gradaudit job JOB, or scan --job JOB"
_ASSUMED = (
    "assumes replies without {}, which no training was run to see (--replies declares what they "
    "hold)"
)
_ADDED = "assumes that no record decides {}, which filters or mods add ({} declares it)"
_UNPLAYED = "assumes of the other rounds what is seen in those played: {} played, of {}"
_FIGURE = re.compile(r"(?<= )[+-]?\d[\d.,]*(e[+-]?\d+)?(?=[ ,;:)]|$)")
_CLAIM = (
    "one round at delta {1:g}, as dp-audit's epsilon_theory: {2:.3g} of a client added or removed, "
    "{3:.3g} of one replaced; the mod claims {0:g}, which holds for {4}"
)
_LARGER = (
    "a record added or removed replaces its client's update by another, which moves it by up to "
    "twice the clip"
)
_SAMPLING = "{} of {} clients take part in a round; what sampling them hides is not counted"
_ELSEWHERE = "the job's model has no such layer"


def run(audit: Job, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Audit the job in the folder that the options name, beside other audits of its model.

    Raises:
        NotApplicable: no folder is named.
        UsageError: the job cannot be loaded.
    """
    folder = _named(audit)
    rows = list(rows_of(audited(folder, audit.options), audit.options))
    here = {layer.name for layer in subject.layers}
    yield from (row for row in rows if row.layer is None or row.layer in here)
    missing = [layer for layer in here if all(row.layer != layer for row in rows)]
    yield from Rows(Job).skipped(_ELSEWHERE, ["untouched"], missing)


def gradients(audit: Job, subject: Subject) -> float:
    """Count one for a job, whose chains take seconds whatever the model.

    Raises:
        NotApplicable: no folder is named.
    """
    _named(audit)
    return 1.0


def _named(audit: Job) -> Path:
    if audit.options.folder is None:
        raise NotApplicable(f"a job brings its own model; {_HOW}")
    return audit.options.folder


@dataclass
class Audited:
    """An audited job: its chains' probes, its faults and its epsilon.

    Attributes:
        job: as it was loaded.
        folder: of the job.
        rounds: that epsilon is computed for.
        probes: of the chains that carry arrays in their first round, by position in ``job.chains``.
        played: rounds that were looked at, by position.
        unplayed: chains that other rounds are not known of, by position.
        untouched: of the chains that carry arrays, those that leave as training made them in any
            round, by position.
        faults: each with its repair.
        other_formats: of these chains, arrays that leave as training made them in formats other
            than the chain's, by position and format.
        numbers: of every chain, those that leave, by position.
        strength: of the training's chain by scope.
        central: of the server's release, where it adds noise.
        server: noise of the released mean, where the job has a strategy that adds any.
    """

    job: LoadedJob
    folder: Path
    rounds: int = 1
    probes: dict[int, Probe] = field(default_factory=dict)
    played: dict[int, list[int]] = field(default_factory=dict)
    unplayed: list[int] = field(default_factory=list)
    untouched: dict[int, list[str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    other_formats: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    numbers: dict[int, LeftNumbers] = field(default_factory=dict)
    strength: dict[str, NoiseStrength] = field(default_factory=dict)
    central: NoiseStrength | None = None
    server: object = None

    def clear(self, i: int) -> list[str]:
        """List a chain's arrays that the server receives bit for bit as training made them."""
        masked = self.job.chains[i].masked
        return [] if masked else list(dict.fromkeys(self.untouched.get(i, [])))

    def names(self, kind: str) -> list[str]:
        """List the numbers of one kind that the job's clients send."""
        lists = [getattr(self.numbers.get(i, LeftNumbers()), kind) for i in self.own_chains]
        return list(dict.fromkeys(name for each in lists for name in each))

    @property
    def own_chains(self) -> list[int]:
        """Positions of the chains that decide what the job's clients send."""
        return [i for i, chain in enumerate(self.job.chains) if chain.chosen and not self.central]

    @property
    def errors(self) -> list[Fault]:
        """List the faults by which privacy is lost."""
        return [fault for fault in self.faults if fault.level == "error"]


def load(folder: Path, options: JobOptions) -> LoadedJob:
    """Load a job folder by the framework that it is of.

    Raises:
        UsageError: it is no job, its framework is not installed, or a file in it is wrong.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name that of a Flower app or an NVFlare job")
    if options.site is not None and not options.site.exists():
        raise UsageError(f"--site {options.site}: no such file; name the site's privacy.json")
    replies = replies_of(options.replies)
    if any(folder.glob("meta.*")):
        loader = _loader("NVFlare", "nvflare_job")
        job: LoadedJob = loader.load(folder, options.site, options.model, options.client)
    elif (folder / "pyproject.toml").exists():
        if options.site is not None:
            raise UsageError("--site: a Flower app runs under no site's policy; leave it out")
        loader = _loader("Flower", "flower_app")
        job = loader.load(folder, options.model, options.clients)
    else:
        raise UsageError(
            f"{folder}: neither meta.json (an NVFlare job) nor pyproject.toml (a Flower app) is "
            "there"
        )
    declare(job, replies)
    return job


def _loader(framework: str, name: str) -> ModuleType:
    try:
        return _with_framework(f"loading.{name}")
    except ImportError as error:
        raise UsageError(
            f"job: {framework} is not installed ({error}); install gradaudit[{framework.lower()}]"
        ) from error


def _with_framework(name: str) -> ModuleType:
    """Import the module of this folder that needs the job's framework."""
    return import_module(f"gradaudit.audits.job.{name}")


def audited(folder: Path, options: JobOptions) -> Audited:
    """Load a job, and probe what leaves its clients and its server.

    Raises:
        UsageError: it cannot be loaded.
    """
    with reproducible(sequence(options.seed, "load"), torch.device("cpu")):
        job = load(folder, options)
    found = Audited(job, folder, options.rounds or job.rounds or 1, faults=list(job.faults))
    central = job.server is not None and bool(_with_framework("server").adds_noise(job))
    with quiet():
        for i, chain in enumerate(job.chains):
            _look(found, i, chain, options, private=central)
        if central:
            _look_at_server(found, options)
    expect_texts(
        replies_of(options.replies),
        {name for each in found.numbers.values() for name in (*each.declared, *each.constant)},
    )
    ranks = {name: s.multiplier or s.measured for name, s in found.strength.items()}
    found.faults += weaker_scope(job, ranks)
    found.faults = [located(fault, found.folder) for fault in dict.fromkeys(found.faults)]
    return found


def _look(found: Audited, i: int, chain: JobChain, options: JobOptions, *, private: bool) -> None:
    """Probe one chain in its rounds and list the faults; those of scopes not the job's have none.

    Rounds in which the same message leaves are probed once; a fault names its rounds where it is
    not one of all.
    """
    kinds = [RoundKind(chain)]
    if chain.chosen and not private:
        kinds = played_rounds(chain, found.rounds, options.seed) or kinds
    faults: dict[tuple[str, str], tuple[Fault, list[int]]] = {}
    strengths = list[tuple[NoiseStrength, tuple[int, ...]]]()
    looked = representatives(kinds)
    found.played[i] = sorted(number for kind in looked for number in kind.numbers)
    few = chosen_rounds(found.rounds, chain.layout.elements)
    if len(looked) < len(kinds) or (len(few) < found.rounds and chain.chosen and not private):
        found.unplayed += [] if chain.known and len(chain.links) == 1 else [i]
    for kind in looked:
        made, strength = _look_at_kind(found, i, kind, options, private=private)
        for fault in made:
            key = fault.name, _FIGURE.sub("", fault.says)  # rounds differ by what is measured
            faults.setdefault(key, (fault, []))[1].extend(kind.numbers)
        strengths += [(strength, kind.numbers)] if strength else []
    if strengths:
        weakest, numbers = min(strengths, key=lambda each: each[0].rank)
        alike = all(each.rank == weakest.rank for each, _ in strengths)
        found.strength[chain.scope] = weakest if alike else weakest.of_rounds(rounds_text(numbers))
    for fault, rounds in faults.values() if chain.chosen else ():
        about = "" if len(rounds) == len(found.played[i]) else f" ({rounds_text(rounds)})"
        found.faults.append(replace(fault, says=f"{fault.says}{about}"))


def _look_at_kind(
    found: Audited, i: int, kind: RoundKind, options: JobOptions, *, private: bool
) -> tuple[list[Fault], NoiseStrength | None]:
    """Probe a chain in rounds of one kind: its faults, and the protection of an update."""
    chain, faults, strength = kind.chain, list[Fault](), None
    try:
        if chain.carries == "numbers":
            numbers = left_numbers(chain, (), options.seed)
            if not private:
                faults += number_faults(chain, numbers, name="metrics-unfiltered")
        else:
            done = probe(chain, options.seed)
            numbers = done.numbers
            first = found.probes.setdefault(i, done)
            once = [key for key in kind.message.untouched if key not in done.untouched]
            differs = done.steady and not once and kind.again != kind.message
            if once:
                faults.append(chain.fault("untouched-arrays", arrays=listed(once, 6)))
            elif differs:
                faults.append(chain.fault("message-differs"))
            seeded = done.repeats and not private and _same_again(found, i, options)
            faults += faults_of(
                chain, done, private=private, fixed_seed=seeded, delta=options.delta
            )
            found.untouched.setdefault(i, []).extend([*done.untouched, *once])
            if done is first:
                other = found.other_formats[i] = untouched_in_other_formats(chain, options.seed)
                faults += format_faults(chain, done, other, private=private)
            if chain.carries == "update":
                strength = strength_of(chain, done, options.noise)
                if once:
                    reason = f"these arrays leave in clear: {listed(once, 6)}"
                    strength = NoiseStrength.infinite([reason], strength)
                elif differs:
                    strength = NoiseStrength(None, f"{UNKNOWN}the message differs when played anew")
        found.numbers[i] = found.numbers.get(i, LeftNumbers()) + numbers
    except (Exception, SystemExit) as error:  # whatever the user's filters and mods raise
        words = str(error) if isinstance(error, AuditError) else one_line(error)
        name = "result-unmeasured"
        if "KeyError: 'fitins." in words:
            name = "legacy-mod"
        elif chain.carries == "numbers":
            name = "error-reply" if isinstance(error, ReplyError) else "chain-fails"
        faults.append(chain.fault(name, what=f"what leaves of {chain.task}", why=words))
    return faults, strength


def _same_again(found: Audited, i: int, options: JobOptions) -> bool:
    """Whether a reloaded job draws the same noise, whatever seeds the global generators have."""
    with reproducible(sequence(options.seed, "load", "again"), torch.device("cpu")):
        chain, again = found.job.chains[i], load(found.folder, options).chains[i]
    update = simulated(chain.layout, options.seed).float()
    released = []
    for number, each in enumerate((chain, again)):
        with reproducible(sequence(options.seed, "again", number), update.device):
            released.append(each.layout.update(each.sent(update)))
    return bool(torch.dist(released[0], released[1]) < _ROUNDING * released[0].norm())


def _look_at_server(found: Audited, options: JobOptions) -> None:
    """Measure what the strategy releases, and name its faults."""
    server = _with_framework("server")
    chain = next((c for c in found.job.chains if c.carries == "update"), None)
    if chain is None:
        return
    try:
        measured = server.multiplier(found.job, chain, options.seed)
    except AuditError as error:
        found.faults.append(server.unmeasured(found.job, error))
        found.central = NoiseStrength(None, f"{UNKNOWN}the released mean could not be measured")
        return
    found.server = measured
    found.faults += server.server_faults(found.job, chain, measured)
    found.faults += server.wrong_way(found.job, chain, options.seed)
    found.central = strength_of_release(found.job, measured, options.heaviest_share)


def report_of(folder: Path, options: JobOptions, provenance: dict[str, JsonValue]) -> Report:
    """Audit a job and report it.

    Raises:
        UsageError: it cannot be loaded.
    """
    started = utc_now()
    found = audited(folder, options)
    return Report(
        tool={"name": "gradaudit", "version": __version__},
        target=target_of(found.job),
        data={"adapter": "no data: updates are simulated"},
        provenance={
            "seed": options.seed,
            "started": started,
            "finished": utc_now(),
            "audits": {"job": options.model_dump(mode="json")},
            "model_notes": list(found.job.notes),
            "versions": {"torch": str(torch.__version__)},
            "broken": {},
            **provenance,
        },
        measurements=list(rows_of(found, options)),
    )


def target_of(job: LoadedJob) -> TargetRecord:
    """Make the job's target: its arrays grouped by their layer."""
    sizes = Counter[str]()
    for key, array in job.layout.received.items():
        sizes[layer_of(key)] += array.size
    return TargetRecord(
        model=f"{job.framework}: {job.model}",
        parameters=sizes.total(),
        layers=[
            LayerRecord(name=name, kind="arrays", parameters=size, position=i)
            for i, (name, size) in enumerate(sizes.items())
        ],
        loss="none",
        mode="train",
    )


def layer_of(key: str) -> str:
    """Return the layer that an array belongs to: its key without the last part."""
    return key.rpartition(".")[0] or "(model)"


def rows_of(found: Audited, options: JobOptions) -> Iterator[Measurement]:
    """Make every row of the report."""
    rows = Rows(Job)
    names: list[JsonValue] = [f"{fault.name} ({fault.level})" for fault in found.faults]
    yield _faults_row(rows, found, names)
    for i, fault in enumerate(found.faults, start=1):
        variant: Variant = {"fault": fault.name, "number": i}
        path = {"path": str((options.folder or found.folder) / fault.file)}
        yield rows.of(variant).measured("faults", 1.0, details=_json({**asdict(fault), **path}))
    for i, chain in enumerate(found.job.chains):
        yield from _chain_rows(rows, found, i, chain)
    yield from _untouched_rows(rows, found)
    yield from _array_rows(rows, found)
    yield from _server_rows(rows, found)
    yield from _scope_rows(rows, found)
    yield from _epsilon_rows(rows, found, options)


def _faults_row(rows: Rows, found: Audited, names: list[JsonValue]) -> Measurement:
    """Make the row of the number of faults, without an upper end where epsilon is not known."""
    details: dict[str, JsonValue] = {"faults": names}
    unknown = _unknown(found)
    if found.errors or not unknown:
        return rows.measured("faults", float(len(found.errors)), details=details)
    details["warning"] = unknown
    return rows.measured("faults", 0.0, interval=(0.0, UNBOUNDED), details=details)


def _unknown(found: Audited) -> str:
    """Say why a job's epsilon is not known, or stands on assumptions; empty where neither."""
    strength = _strength(found)
    if strength is None:
        return "no training task's result could be looked at"
    if strength.multiplier is None and not strength.clear:
        return f"epsilon is {strength.why}"
    return "; ".join(f"epsilon {each}" for each in _open_assumptions(found))


def _open_assumptions(found: Audited) -> list[str]:
    """List what epsilon assumes that nobody declared and no message showed, a clause each."""
    clauses = []
    if assumed := found.names("assumed"):
        clauses.append(_ASSUMED.format(listed(assumed)))
    if added := found.names("constant"):
        declared = " ".join(f"--replies {quote(each)}" for each in added[:4])
        clauses.append(_ADDED.format(listed(added), declared))
    for i in found.own_chains:
        if i in found.unplayed:
            played, task = rounds_text(found.played[i]), found.job.chains[i].task
            clauses.append(_UNPLAYED.format(f"{played} of {found.rounds}", task))
    return clauses


def _strength(found: Audited) -> NoiseStrength | None:
    """Look up the protection of the whole job, other tasks' results included."""
    chosen = next((c.scope for c in found.job.chains if c.chosen and c.carries == "update"), "")
    strength = found.central or found.strength.get(chosen)
    return None if strength is None else _with_others(found, strength)


def _json(value: object) -> Any:
    return json.loads(json.dumps(value))


def _chain_rows(rows: Rows, found: Audited, i: int, chain: JobChain) -> Iterator[Measurement]:
    variant: Variant = {"task": chain.task}
    of = rows.of({**variant, "scope": chain.scope} if chain.scope else variant)
    links: list[JsonValue] = [{"name": x.name, "source": x.source} for x in chain.links]
    details: dict[str, JsonValue] = {"links": links, "chosen": chain.chosen, "key": chain.key}
    yield of.measured("chain", float(len(links)), details=details)
    numbers, done = found.numbers.get(i, LeftNumbers()), found.probes.get(i)
    arrays, names = found.clear(i), asdict(numbers)
    seen = {"arrays": arrays, "numbers": names.pop("clear"), **names}
    value = float(len(arrays) + len(numbers.clear))
    yield of.measured("unfiltered", value, details=_json(seen))
    if done is None:
        return
    exact = {"exact": done.steady, "clipped_by_parts": done.by_parts}
    ends = None if done.steady or not done.clipped else done.largest.interval
    facts = _json(exact)
    confidence = None if ends is None else 0.95
    yield of.measured(
        "sensitivity", done.sensitivity, interval=ends, confidence=confidence, details=facts
    )
    noise = {change.key: change.noise for change in done.array_changes}
    yield of.measured("noise", done.noise[-2], details={"by_array": _json(noise)})
    yield of.measured("repeats", float(done.repeats))


def _array_rows(rows: Rows, found: Audited) -> Iterator[Measurement]:
    """Make a row of each array of the training's result: whether it leaves, clipped and noised."""
    for i, done in found.probes.items():
        chain = found.job.chains[i]
        for change in done.array_changes if chain.chosen and chain.carries == "update" else ():
            says = {"says": LEAVES} if change.key in done.counts else {}
            of = rows.of({"key": change.key}, {"task": chain.task, **change.details, **says})
            value = float(change.carries_on and not chain.masked)
            yield of.measured("untouched", value, layer=layer_of(change.key))


def _untouched_rows(rows: Rows, found: Audited) -> Iterator[Measurement]:
    """Make a row for each layer of its arrays that leave unchanged, in the job's own scope."""
    done = [i for i, chain in enumerate(found.job.chains) if i in found.probes and chain.chosen]
    keys = {key for i in done for key in found.clear(i)}
    others: dict[str, set[str]] = {}
    for formats in (found.other_formats.get(i, {}) for i in done):
        for exchange, arrays in formats.items():
            others.setdefault(exchange, set()).update(arrays)
    layout: Layout = found.job.layout
    for layer in dict.fromkeys(map(layer_of, layout.received)):
        for exchange, passed in others.items():
            own = [key for key in layout.received if key in passed and layer_of(key) == layer]
            of, details = rows.of({"exchange": exchange}), _json({"arrays": own})
            yield of.measured("untouched", float(len(own)), layer=layer, details=details)
        own = [key for key in layout.received if key in keys and layer_of(key) == layer]
        if done:
            yield rows.measured(
                "untouched", float(len(own)), layer=layer, details=_json({"arrays": own})
            )
        else:
            yield from rows.skipped("no task's result could be looked at", ["untouched"], [layer])


def _server_rows(rows: Rows, found: Audited) -> Iterator[Measurement]:
    if found.server is None:
        yield from rows.skipped("no strategy of the server adds noise", ["server_multiplier"])
        return
    values = asdict(found.server)  # type: ignore[call-overload]
    yield rows.measured("server_multiplier", min(values["even"], values["uneven"]), details=values)


def _scope_rows(rows: Rows, found: Audited) -> Iterator[Measurement]:
    """Make rows of the training chain's protection under each scope of the site.

    The weakest is that of the least noise over what a client moves; 0 where nothing bounds it.
    """
    chosen = next((c.scope for c in found.job.chains if c.chosen), "")
    values = {name: s.multiplier or s.measured for name, s in found.strength.items() if name}
    if not values:
        why = "no chain was composed under a site's policy (--site privacy.json)"
        yield from rows.skipped(why, ["scope"])
        return
    weakest = min(values, key=lambda name: values[name])
    for name, value in values.items():
        facts: dict[str, JsonValue] = {"scope": name, "chosen": name == chosen}
        facts |= {"weakest": weakest, "why": found.strength[name].why}
        variants: list[Variant] = [{"scope": name}, *([{}] if name == chosen else [])]
        for variant in variants:
            yield rows.of(variant).measured("scope", value, details=facts)


def _epsilon_rows(rows: Rows, found: Audited, options: JobOptions) -> Iterator[Measurement]:
    """Make rows of epsilon under both units and relations; the headline is a client replaced."""
    rounds, strength = found.rounds, _strength(found)
    metrics = ("epsilon_client", "epsilon_record")
    if strength is None:
        yield from rows.skipped("no training task's result could be looked at", metrics)
        return
    details: dict[str, JsonValue] = {"rounds": rounds, "delta": options.delta, "why": strength.why}
    details["adversary"] = (
        "sees the released means" if found.central else "sees each client's result"
    )
    if assumed := [*found.names("assumed"), *found.names("constant")]:
        details["assumed"] = _json(assumed)
    played = {found.job.chains[i].task: found.played[i] for i in found.unplayed}
    details |= {"rounds_played": _json(played)} if played else {}
    details |= _accountant(found, rounds)
    details["remarks"] = _json(list(_remarks(found, strength)))
    for metric, relation in product(metrics, RELATIONS):
        of = rows.of({} if relation == "replace" else {"relation": relation}, details)
        # a record may turn its client's update into any other
        moved: Relation = "replace" if metric == "epsilon_record" else relation
        value = strength.epsilon(rounds, options.delta, moved)
        more = dict[str, JsonValue]()
        if strength.without is not None:
            other = strength.without.epsilon(rounds, options.delta, moved)
            more["without_this_fault"] = strength.without.why if other is None else other
        known = strength.without or strength
        if known.claim is not None:
            more["one_round"] = known.epsilon(1, options.delta, moved)
            more["mod_claims"] = {"epsilon": known.claim[0], "delta": known.claim[1]}
        if value is None:
            yield from of.skipped(strength.why, [metric], details=more)
        else:
            yield of.measured(metric, value, details=more)


def _remarks(found: Audited, strength: NoiseStrength) -> Iterator[str]:
    """Say what all of a job's epsilons stand on, a clause each."""
    yield from (f"infinite, because {reason}" for reason in strength.reasons)
    known = strength.without or strength
    if strength.clear and known.multiplier is None and known.why not in strength.reasons:
        yield f"without what leaves in clear: {known.why}"
    elif not strength.clear or known.multiplier is not None:
        yield known.why
    if known.claim is not None and known.multiplier is not None:
        claimed, delta = known.claim
        removed, replaced = (known.epsilon(1, delta, relation) or 0.0 for relation in RELATIONS)
        holds = [
            name
            for name, value in (("the first", removed), ("the second", replaced))
            if value <= claimed
        ]
        yield _CLAIM.format(claimed, delta, removed, replaced, " and ".join(holds) or "neither")
    if known.multiplier is not None:
        yield _LARGER
    online, clients = found.job.online, found.job.clients
    if known.multiplier is not None and online and clients and clients < online:
        yield _SAMPLING.format(clients, online)
    if declared := found.names("declared"):
        yield f"assumes that no record decides {listed(declared)}, as declared"
    yield from _open_assumptions(found)


def _with_others(found: Audited, strength: NoiseStrength) -> NoiseStrength:
    """Return this protection, or none where another task's result leaves in clear."""
    if found.central is not None:
        return strength
    for i, chain in enumerate(found.job.chains):
        numbers = found.numbers.get(i, LeftNumbers())
        clear = [*numbers.clear, *found.clear(i)]
        if not chain.chosen or chain.carries == "update":
            continue
        if clear:
            reason = f"these of {chain.task} leave in clear: {listed(clear, 6)}"
            without = strength.without or strength
            strength = NoiseStrength.infinite([*strength.reasons, reason], without)
            continue
        if numbers.noisy and not strength.clear:
            why = f"{UNKNOWN}the noise on {numbers.noisy[0]} of {chain.task}"
            return NoiseStrength(None, why)
    return strength


def _accountant(found: Audited, rounds: int) -> dict[str, JsonValue]:
    if found.central is None:
        return {}
    value = by_accountant(found.job.server.outermost, rounds)
    return {} if value is None or math.isinf(value) else {"framework_accountant": value}
