"""Check a part of your own against the contract of its kind: ``check_part`` in a test.

A part keeps the contract if what its base class promises holds on small inputs: shapes, finite
numbers, inputs that stay unchanged, and random numbers of the given generator or seed alone.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from gradaudit.api import AuditTarget, audit
from gradaudit.attacks.reading import Reading
from gradaudit.attacks.reconstruction.base import Reconstruction
from gradaudit.audits import Audit
from gradaudit.audits.base import Question
from gradaudit.audits.contract import breaches
from gradaudit.audits.dp_audit.mechanisms import FileMechanism, Mechanism
from gradaudit.audits.presets import OF_SUBJECT, PRESETS
from gradaudit.core.parts import source_line
from gradaudit.core.specs import parse_spec
from gradaudit.data.base import DataAdapter
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records, fingerprint
from gradaudit.defenses import Defense, made
from gradaudit.defenses.dp import DpNoise
from gradaudit.defenses.prune import Prune
from gradaudit.defenses.sign import Sign
from gradaudit.errors import GradauditError, NotApplicable, UsageError, foreign, one_line
from gradaudit.families import Family
from gradaudit.federation.algorithms import Algorithm
from gradaudit.formats import Format
from gradaudit.progress import Silent

Fault = tuple[Any, str]
"""The function or class at fault, and its fault."""
Options = Mapping[str, Any]
Check = Callable[[Any, AuditTarget, Options], Iterator[Fault]]
_TRIED_ON_NOTHING = "does not apply to what it was tried on, so give it a target= for that"
_DRAWS = 400
_AS_MECHANISM = "tried as a mechanism(per_sample_gradients, generator): "
_QUESTIONS = get_args(Question)
_STRONG: tuple[Defense[Any], ...] = (DpNoise(clip=0.01, sigma=1.0), Prune(share=0.9), Sign())
"""Defenses of which one at least moves any number that is of shared updates."""
_FAR = 7.0
"""Standard errors by which moments of single and batched releases may differ."""


def check_part(
    part: type[Any] | Callable[..., Any], *, target: AuditTarget | None = None, **options: Any
) -> None:
    """Check that a part keeps the contract of its kind.

    Args:
        part: a class of any kind of part, or a function, which is tried as a mechanism.
        target: model and records that an audit or an attack is tried on; without it a small fully
            connected network on a table of random numbers.
        options: of the part, where some have no default.

    Raises:
        UsageError: ``part`` is of no kind.
        AssertionError: the contract is broken; each line names the part, its file and line, and
            the fault. Of its behaviour the first fault is named, as others may follow from it.

    Example:
        >>> from gradaudit.defenses.prune import Prune
        >>> check_part(Prune, share=0.9)
    """
    check, target = _check_of(part), target or _small_target()
    faults = [*declaration_faults(part)]
    if not inspect.isabstract(part):
        faults += _example_faults(part)
        faults += islice(_behaviour_faults(part, check, target, options), 1)
    if faults:
        name = getattr(part, "__name__", str(part))
        lines = (f"{name}{source_line(_own(place, part))}: {what}" for place, what in faults)
        raise AssertionError("\n".join(lines))


def _own(place: Any, part: Any) -> Any:
    """Return the part instead of a method that it inherits from gradaudit's base classes."""
    inherited = str(getattr(place, "__module__", "")).startswith("gradaudit.")
    return part if inherited else place


def declaration_faults(part: type[Any] | Callable[..., Any]) -> Iterator[Fault]:
    """Yield what a class fails to declare: name, summary, docstring, options, metrics."""
    if not inspect.isclass(part):
        return
    if inspect.isabstract(part):
        missing = ", ".join(sorted(getattr(part, "__abstractmethods__", ())))
        yield part, f"does not define {missing}"
    name, summary = getattr(part, "name", None), getattr(part, "summary", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]*([ -][a-z0-9]+)*", name):
        yield part, f"name is {name!r}; lower-case words are needed"
    if not isinstance(summary, str) or not summary or "\n" in summary:
        yield part, f"summary is {summary!r}; one line is needed"
    first, *_ = inspect.cleandoc(part.__dict__.get("__doc__") or "").split("\n\n")
    if not first.rstrip().endswith((".", ":")):
        yield part, "has no docstring that begins with a sentence"
    options = getattr(part, "Options", None)
    fields = getattr(options, "model_fields", {})
    for option in (key for key, field in fields.items() if not field.description):
        yield options, f"option {option} has no description"
    if issubclass(part, Audit):
        yield from _metric_faults(part)


def _example_faults(part: type[Any] | Callable[..., Any]) -> Iterator[Fault]:
    """Yield what is wrong with the spec that shows how a part is written."""
    if not inspect.isclass(part) or not issubclass(part, Defense | Mechanism | DataAdapter):
        return
    name, example = getattr(part, "name", ""), str(getattr(part, "example", ""))
    if re.split("[:?]", example)[0] != name:
        yield part, f"example is {example!r}; a spec begins with the name {name!r}"
        return
    try:
        if issubclass(part, Mechanism):
            part.parse(example)
        elif issubclass(part, DataAdapter):
            part.of(parse_spec(example))
        else:
            made(part, example.partition(":")[2], example)
    except Exception as error:
        told = error if isinstance(error, GradauditError) else one_line(error)
        yield part, f"example is not understood: {told}"


def _metric_faults(part: type[Audit[Any]]) -> Iterator[Fault]:
    ids = [metric.id for metric in getattr(part, "metrics", ())]
    if not ids or len(set(ids)) < len(ids):
        yield part, "metrics are needed, each with an id of its own"
    if unknown := set(getattr(part, "headline", ())) - set(ids):
        yield part, f"headline names {', '.join(sorted(unknown))}, which is no metric"
    for metric in getattr(part, "metrics", ()):
        limited = metric.warning is not None or metric.error is not None
        needed = (
            ("riskier", "why", "question", "helps", "finding", "asks", "noun") if limited else ()
        )
        if missing := [field for field in needed if not getattr(metric, field)]:
            yield part, f"metric {metric.id} has a default limit and no {', '.join(missing)}"
        if metric.question not in (None, *_QUESTIONS):
            one = ", ".join(_QUESTIONS)
            yield part, f"metric {metric.id} has the question {metric.question!r}, not one of {one}"
    for preset in PRESETS:
        values = {k: v for k, v in getattr(part, preset).items() if k not in OF_SUBJECT}
        try:
            part.Options.model_validate(values)
        except ValueError as error:
            yield part, f"preset {preset}: {one_line(error)}"


def _behaviour_faults(
    part: Any, check: Check, target: AuditTarget, options: Options
) -> Iterator[Fault]:
    """Yield what a part does against its base class's promises, or the error that it raises."""
    try:
        with foreign():
            yield from check(part, target, options)
    except GradauditError as error:
        yield part, f"{_AS_MECHANISM if check is _mechanism else ''}{error}"
    except Exception as error:
        yield part, f"raises {one_line(error)}"


def _check_of(part: Any) -> Check:
    """Return the check of a part's kind.

    Raises:
        UsageError: it is of no kind.
    """
    if inspect.isclass(part):
        for base, check in _CHECKS.items():
            if issubclass(part, base):
                return check
    elif callable(part):
        return _mechanism
    kinds = ", ".join(base.__name__ for base in _CHECKS)
    raise UsageError(
        f"{part!r} is no part: give a class that extends one of {kinds}, or a function"
    )


def _defense(part: type[Defense[Any]], target: AuditTarget, options: Options) -> Iterator[Fault]:
    defense, rows = part(**options), _rows(3, 40)
    given = rows.clone()

    def applied(some: Tensor) -> Tensor:
        return defense.apply(some, records=2, generator=_seeded(0))

    shared = applied(given)
    if not torch.equal(given, rows):
        yield part.apply, "apply changes its input; work on a copy"
    yield from _shape_faults(part.apply, shared, rows)
    if not torch.equal(applied(rows.clone()), shared):
        yield part.apply, "apply gives other numbers with the same generator; draw from it alone"
    draws = _seeded(0)
    single = [defense.apply(row.clone()[None], records=2, generator=draws) for row in rows]
    if not torch.allclose(torch.cat(single), shared, rtol=1e-9, atol=1e-12):
        yield part.apply, "apply mixes updates, or draws for several at a time; each is separate"
    norms = torch.rand(3, generator=_seeded(2), dtype=torch.float64)
    for method in (part.record_factors, part.batch_factors):
        factors = method(defense, norms)
        if factors is not None:
            yield from _shape_faults(method, factors, norms)
    if part.changes_model:
        model = _network()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        outputs = defense.modify(model, _seeded(0))(_rows(2, 6).float())
        if not isinstance(outputs, Tensor) or len(outputs) != 2 or not outputs.isfinite().all():
            yield part.modify, "the model of modify gives no finite row for each record"
        if any(not torch.equal(before[k], value) for k, value in model.state_dict().items()):
            yield part.modify, "modify changes the model that it is given; return a copy"


def _mechanism(part: Any, target: AuditTarget, options: Options) -> Iterator[Fault]:
    own = inspect.isclass(part)
    mechanism: Mechanism = part(**options) if own else FileMechanism(part, part.__name__)
    mechanism = mechanism.expecting(4)
    single, batched = part, getattr(part, "releases", part)
    if own:
        single = part.release
    rows = _rows(4, 10)
    given = rows.clone()
    released = mechanism.release(given, _seeded(0))
    if not torch.equal(given, rows):
        yield single, "a release changes the gradients that it is given; work on a copy"
    yield from _shape_faults(single, released, rows[0])
    if not torch.equal(mechanism.release(rows.clone(), _seeded(0)), released):
        yield single, "releases differ with the same generator; draw from it alone"
    many = mechanism.releases(rows.clone(), _DRAWS, _seeded(1))
    yield from _shape_faults(batched, many, rows[:1].expand(_DRAWS, -1))
    draws = _seeded(2)
    alone = torch.stack([mechanism.release(rows.clone(), draws) for _ in range(_DRAWS)])
    if many.shape == alone.shape:
        spread = torch.maximum(alone.std(dim=0), many.std(dim=0)).clamp_min(1e-12)
        means = (alone.mean(dim=0) - many.mean(dim=0)).abs() / spread
        ratios = (alone.std(dim=0) - many.std(dim=0)).abs() / spread
        if max(float(means.max()), float(ratios.max())) > _FAR * (2 / _DRAWS) ** 0.5:
            yield (
                batched,
                "batched releases have another mean or spread than single ones",
            )


def _attack(
    part: type[Reconstruction[Any]], target: AuditTarget, options: Options
) -> Iterator[Fault]:
    attack, records = part(restarts=2, **options), target.subject.records
    update = target.update(records.inputs[:1], records.labels[:1])
    before = {name: value.clone() for name, value in update.items()}
    try:
        found = attack(target, update)
    except NotApplicable as reason:
        yield part.run, f"{_TRIED_ON_NOTHING}: {reason}"
        return
    if any(not torch.equal(before[name], update[name]) for name in update):
        yield part.run, "run changes the update that it is given"
    starts = len(found.inputs)
    parts = {"scores": found.scores, "diverged": found.diverged, "labels": found.labels}
    for name, value in parts.items():
        if value is not None and value.shape[:1] != (starts,):
            yield part.run, f"{name} are {tuple(value.shape)} for {starts} restarts"
    if not torch.equal(attack(target, update).finite.nan_to_num(), found.finite.nan_to_num()):
        yield (
            part.run,
            "run gives other records with the same seed; draw from execution.generator()",
        )


def _audit(part: type[Audit[Any]], target: AuditTarget, options: Options) -> Iterator[Fault]:
    subject = target.subject
    try:
        rows, again = (list(part(**options).run(subject, Silent())) for _ in range(2))
    except NotApplicable as reason:
        yield part.run, f"{_TRIED_ON_NOTHING}: {reason}"
        return
    for breach in breaches(part, rows, [layer.name for layer in subject.layers]):
        yield part.run, breach
    if rows != again:
        yield part.run, "run gives other rows with the same seed"
        return
    moving = None
    for defense in _STRONG:
        try:
            behind = [*part(**options).run(replace(subject, defenses=(defense,)), Silent())]
        except NotApplicable:
            return
        if [(r.key, r.value) for r in behind] != [(r.key, r.value) for r in rows]:
            moving = defense
            break
    if part.applies_defenses and moving is None:
        names = ", ".join(map(str, _STRONG))
        yield (
            part.run,
            f"applies_defenses is True, and rows are the same behind each --defense of {names}",
        )
    elif not part.applies_defenses and moving is not None:
        yield (
            part.run,
            f"rows are others behind --defense {moving}; declare applies_defenses = True",
        )


def _family(part: type[Family], target: AuditTarget, options: Options) -> Iterator[Fault]:
    labels = np.arange(90) % 3
    features = np.random.default_rng(0).normal(size=(90, 5)) + labels[:, None]
    given, chosen = features.copy(), part(**options)

    def scores() -> np.ndarray:
        read = chosen.reads(given)
        return chosen.fit(read, labels, 3, 0).log_probabilities(read[:7])

    first = scores()
    if not np.array_equal(given, features):
        yield part.train, "train changes the features that it is given; work on a copy"
    if first.shape != (7, 3):
        yield part.train, f"log-probabilities are {first.shape}, not (rows, classes) of (7, 3)"
    elif not np.isfinite(first).all():
        yield (
            part.train,
            "a log-probability is infinite or NaN; give no class the probability 0",
        )
    elif not np.allclose(np.exp(first).sum(axis=1), 1, atol=1e-6):
        yield part.train, "probabilities of a row do not sum to 1"
    elif not np.array_equal(scores(), first):
        yield part.train, "the same seed fits another member; draw from the generator alone"


def _format(part: type[Format], target: AuditTarget, options: Options) -> Iterator[Fault]:
    if not str(getattr(part, "suffix", "")).startswith("."):
        yield part, "has no suffix that begins with a point"
    report = audit(target, ["forward", "copa-metric"])
    text: Any = part(**options).render(report)
    if not isinstance(text, str) or not text.endswith("\n"):
        yield part.render, "render returns no text that ends with a newline"
    elif part(**options).render(report) != text:
        yield part.render, "render gives another text for the same report"


def _adapter(part: type[DataAdapter], target: AuditTarget, options: Options) -> Iterator[Fault]:
    records: Any = part(**options).load()
    if not isinstance(records, Records):
        yield part.load, f"load returns {type(records).__name__}; Records are needed"
        return
    records_of(records, part.name)
    if fingerprint(part(**options).load()) != fingerprint(records):
        yield part.load, "load gives other records the second time"


def _declared_alone(part: Any, target: AuditTarget, options: Options) -> Iterator[Fault]:
    """Make the part; nothing else of its kind can be tried by itself."""
    part(**options)
    yield from ()


_CHECKS: Mapping[type[Any], Check] = {
    Audit: _audit,
    Reconstruction: _attack,
    Defense: _defense,
    Mechanism: _mechanism,
    Family: _family,
    Format: _format,
    DataAdapter: _adapter,
    Reading: _declared_alone,
    Algorithm: _declared_alone,
}


def _shape_faults(place: Any, found: Any, like: Tensor) -> Iterator[Fault]:
    """Yield a fault where a result is no finite tensor of this shape."""
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != tuple(like.shape):
        yield place, f"returns {shape}, not a tensor of {tuple(like.shape)}"
    elif not bool(found.isfinite().all()):
        yield place, "returns numbers that are not finite"


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _rows(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=_seeded(3), dtype=torch.float64)


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, 3))


def _small_target() -> AuditTarget:
    """A small network on random records, with a private attribute."""
    inputs, labels = _rows(60, 6).float(), torch.arange(60) % 3
    parts = {"inputs": inputs, "labels": labels, "attributes": {"half": inputs[:, 0] > 0}}
    return AuditTarget(_network(), records_of(parts, "records"), attributes=["half"])
