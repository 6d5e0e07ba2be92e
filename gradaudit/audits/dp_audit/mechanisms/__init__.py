"""Mechanisms that release gradients: one in each file, and the user's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Generator, Tensor

from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_gaussian, epsilon_laplace
from gradaudit.core.noise_laws import Noise
from gradaudit.core.parts import discover, source_line
from gradaudit.core.specs import Spec, arguments, required, suggest
from gradaudit.core.text import first_line
from gradaudit.core.user_code import load_callable
from gradaudit.errors import AuditError, UsageError

Unit = Literal["client", "record"]
"""Whose data may differ between neighbours."""
Noiseless = Callable[[Tensor, Tensor], Tensor]
"""The release without noise, differentiable in the record: of its variants' gradients (…, elements)
and those of its companions (others, elements) to (…, elements)."""

Sampler = Callable[[int, Generator], Tensor]
"""So many releases, (count, elements)."""
OPTION = "--mechanism"


@dataclass(frozen=True)
class ReleaseLaw:
    """A release that is a known function of the gradients plus noise of a known law.

    ``scale`` is the deviation (Gaussian) or scale (Laplace) of the noise in each element of a
    release, but for those that are ``bare``, (elements,) bool, and get none.
    """

    noise: Noise
    scale: float
    noiseless: Noiseless
    bare: Tensor | None = None

    def epsilon(self, shifts: Tensor, delta: float) -> float:
        """Exact epsilon of releases that noiseless lie so far apart, the largest of several.

        At δ for Gaussian noise, and at 0 for Laplace noise, whose ‖g1 − g0‖₁/b is little more. The
        shifts are (pairs, elements), and 0 < δ < 1.
        """
        if self.bare is not None and bool(shifts[:, self.bare].any()):
            return math.inf
        if self.noise == "laplace":
            return epsilon_laplace(float(shifts.abs().sum(dim=1).max()), self.scale)
        largest = float(torch.linalg.vector_norm(shifts, dim=1).max())
        if self.scale == 0:
            return math.inf if largest else 0.0
        return epsilon_gaussian(largest / self.scale, delta)


@dataclass(frozen=True)
class Promise:
    """A mechanism's privacy guarantee, for any records.

    ``mu`` is the L2 sensitivity over the noise's scale. Epsilon, exact, is that of the worst pair
    of gradients; it goes with ``delta``, 0 for Laplace noise, of which one at δ says nothing.
    """

    mu: float
    epsilon: float
    delta: float


class Mechanism(ABC):
    """A random function from a step's per-sample gradients to the released gradient.

    One that has a ``name`` and a ``summary`` is found, and made from a spec that begins with its
    name, of which ``example`` is one. Without a ``parse`` of its own its options are the keyword
    parameters of ``__init__``.

    Attributes:
        description: as the user named it.
        unit: whose data neighbours differ in: a record's, whose gradients it gets, or a client's,
            whose update it gets as a batch of one.
        noise: the law of the noise in each element, known or declared; None where it is neither.
        noise_multiplier: σ/Δ of Gaussian noise on the sum of clipped gradients, which composes.
        foreign: whether its releases are made by code that is not known here: they may depend on
            each other, and a pilot of them is a better guide to a threshold than any law.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str]
    unit: ClassVar[Unit] = "record"
    description: str
    noise: Noise | None = None
    noise_multiplier: float | None = None
    foreign: ClassVar[bool] = True

    @classmethod
    def parse(cls, text: str, noise: Noise | None = None) -> Self:
        """Parse ``NAME:key=value,…``; ``noise`` declares the law of a mechanism without one.

        Raises:
            UsageError: an option is missing, unknown or wrong.
        """
        scheme, _, rest = text.partition(":")
        pairs = tuple(_pair(text, item) for item in rest.split(",") if item)
        spec = Spec(f"{OPTION} {text}", scheme, pairs)
        missing = [key for key in required(cls) if not spec.values(key)]
        if missing:
            raise UsageError(f"{spec.text}: no {missing[0]}; write {cls.example}")
        made = cls(**arguments(spec, cls))
        if not hasattr(made, "description"):
            made.description = text
        return made

    def law(self, records: int) -> ReleaseLaw | None:
        """The law of a release of a batch of so many records; None where it is not known.

        Raises:
            UsageError: it is known, but has no simple form.
        """
        return None

    def promise(
        self, relation: Relation, records: int, elements: int, delta: float
    ) -> Promise | None:
        """The mechanism's guarantee for a batch of this size; None where none is known.

        Neighbouring data sets replace one record, or remove one; gradients have ``elements``
        elements, and 0 < δ < 1.
        """
        return None

    def expecting(self, records: int) -> Mechanism:
        """Fit the mechanism to batches of so many records, with the record."""
        return self

    @abstractmethod
    def release(self, per_sample_gradients: Tensor, generator: Generator) -> Tensor:
        """Release once: (records, elements) to (elements,)."""

    def releases(self, per_sample_gradients: Tensor, count: int, generator: Generator) -> Tensor:
        """Release ``count`` times from the same gradients, (count, elements)."""
        return torch.stack([self.release(per_sample_gradients, generator) for _ in range(count)])

    def sampler(self, per_sample_gradients: Tensor) -> Sampler:
        """Make a function that releases these gradients again, with shared work done once."""
        return partial(self.releases, per_sample_gradients)

    def elements_drawn(self, records: int, elements: int) -> int:
        """Estimate how many numbers one release holds in memory."""
        return (records + 1) * elements


def finite(
    mechanism: Mechanism, batches: Sequence[Tensor], releases: Tensor, before: int = 0
) -> Tensor:
    """Return releases, (count, elements), that finite gradients must have made finite.

    Raises:
        AuditError: one is not; it is counted from 1, and ``before`` were made earlier.
    """
    # A sum of what is not finite is not finite; that of finite numbers may be too large.
    if releases.sum().isfinite() or not all(batch.isfinite().all() for batch in batches):
        return releases
    for index in (~releases.isfinite().all(dim=1)).nonzero():
        ours = type(mechanism).__module__.startswith("gradaudit.")
        where = "" if ours else source_line(type(mechanism))
        raise AuditError(
            f"{OPTION} {mechanism.description}{where}: release {before + int(index) + 1} has a "
            "value that is not finite"
        )
    return releases


def mechanisms() -> dict[str, type[Mechanism]]:
    """The mechanisms that have a name of their own."""
    return discover("gradaudit.audits.dp_audit.mechanisms", Mechanism)


def load_mechanism(text: str, noise: Noise | None = None) -> Mechanism:
    """The mechanism that ``NAME:…``, ``FILE.py:NAME`` or ``package.module:NAME`` names.

    ``noise`` is what a mechanism from a file, or middleware, is declared to add.

    Raises:
        UsageError: no such mechanism, file or function, or an option that it does not take.
    """
    scheme = text.partition(":")[0]
    known = mechanisms()
    if scheme in known:
        return known[scheme].parse(text, noise)
    if not scheme.endswith(".py") and "." not in scheme:
        raise UsageError(
            f"{OPTION} {text}: no mechanism {scheme!r}{suggest(scheme, known)}; there are: "
            f"{', '.join(known)}, and your own as FILE.py:NAME"
        )
    found = load_callable(text, OPTION)
    if isinstance(found, type):
        raise UsageError(
            f"{OPTION} {text}: is a class, which is named by an entry point of its package in "
            "gradaudit.dp.mechanisms; FILE.py:NAME names a function"
        )
    return FileMechanism(found, text, noise)


def _pair(text: str, item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise UsageError(f"{OPTION} {text}: {item!r} is no option; write key=value,key=value")
    return key.strip(), value.strip()


class FileMechanism(Mechanism):
    """``def mechanism(per_sample_gradients, generator): …`` from the user's file.

    Its law is unknown. It gets a tensor (records, elements) of its own to work on and a
    ``torch.Generator``, and returns the released gradient (elements,). Where the callable has an
    attribute ``releases``, ``releases(per_sample_gradients, count, generator)`` is called instead
    and returns (count, elements).
    """

    def __init__(
        self, function: Callable[..., Any], description: str, noise: Noise | None = None
    ) -> None:
        self.function, self.description, self.noise = function, description, noise
        self.batched: Callable[..., Any] | None = getattr(function, "releases", None)

    def release(self, per_sample_gradients: Tensor, generator: Generator) -> Tensor:
        """Release once: (records, elements) to (elements,).

        Raises:
            AuditError: the user's code fails, or returns something else than a finite gradient.
        """
        elements = per_sample_gradients.shape[1:]
        return self._call(self.function, elements, per_sample_gradients.clone(), generator)

    def releases(self, per_sample_gradients: Tensor, count: int, generator: Generator) -> Tensor:
        """Release ``count`` times, (count, elements), by the batched form where there is one.

        Raises:
            AuditError: as ``release``.
        """
        if self.batched is None:
            return super().releases(per_sample_gradients, count, generator)
        shape = torch.Size((count, *per_sample_gradients.shape[1:]))
        return self._call(self.batched, shape, per_sample_gradients.clone(), count, generator)

    def _call(self, function: Callable[..., Any], shape: torch.Size, *arguments: Any) -> Tensor:
        named = f"{OPTION} {self.description}"
        try:
            released = function(*arguments)
        except (Exception, SystemExit) as error:
            raise AuditError(f"{named}: fails with {first_line(error)}") from error
        if not isinstance(released, Tensor) or released.shape != shape:
            what = tuple(released.shape) if isinstance(released, Tensor) else type(released)
            raise AuditError(
                f"{named}: returned {what}; a released gradient of shape {tuple(shape)} is needed"
            )
        # A sum of what is not finite is not finite; that of finite numbers may be too large.
        if not released.sum().isfinite() and not released.isfinite().all():
            raise AuditError(f"{named}: released a gradient that is not finite")
        return released
