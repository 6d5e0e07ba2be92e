"""Middleware between a client's training and the network, as a client-level mechanism.

What a framework lets users put there (Flower's mods, NVFlare's filters) sees messages: the model's
whole state dict, buffers and arrays without dimensions too. The two neighbouring inputs are two
clients' updates, or an update and none, whatever the records were.
"""

import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor

from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_gaussian, mu_of_mechanism
from gradaudit.audits.dp_audit.mechanisms import OPTION, Mechanism, Promise, ReleaseLaw, Unit
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Exchange, Form, Layout, Payload
from gradaudit.core.noise_laws import Noise
from gradaudit.core.specs import Spec, arguments, parse_spec
from gradaudit.core.text import first_line, listed
from gradaudit.core.user_code import load_callable
from gradaudit.errors import AuditError, UsageError
from gradaudit.gradients.noise import clipped


@dataclass(frozen=True)
class ClippedGaussian:
    """The middleware clip(u) + σn; scalars count in the norm and leave unchanged.

    So it is in numpy wherever ``for array in arrays: array *= factor`` meets a number and not an
    array. Replacing a client moves clip(u) by up to 2Δ, its absence by Δ, whatever sensitivity σ
    was chosen by.

    Attributes:
        clip: L2 norm Δ that the update is clipped to.
        sigma: deviation of the noise in each element.
        claim: ε and δ that the middleware itself claims for a message; None where it claims none.
    """

    clip: float
    sigma: float
    claim: tuple[float, float] | None = None

    def law(self, layout: Layout) -> ReleaseLaw:
        """Return the law of the message that leaves, in elements of an update."""
        bare = layout.where([key for key, array in layout.received.items() if not array.ndim])

        def noiseless(client: Tensor, companions: Tensor) -> Tensor:
            return torch.where(bare.to(client.device), client, clipped(client, self.clip))

        return ReleaseLaw("gaussian", self.sigma, noiseless, bare)

    def promise(self, relation: Relation, delta: float) -> Promise:
        """The exact epsilon of the worst pair of updates, by the analytic Gaussian mechanism."""
        mu = mu_of_mechanism(self.clip, self.sigma, relation=relation)
        return Promise(mu, epsilon_gaussian(mu, delta), delta)


def named_object(text: str) -> tuple[Any, Spec]:
    """Import the object of ``SCHEME:MODULE:OBJECT?key=value&…``; return it and the spec.

    Raises:
        UsageError: nothing is named, or no such module, file or object.
    """
    scheme, _, named = text.partition(":")
    if not named.strip():
        raise UsageError(
            f"{OPTION} {scheme}: names nothing; write {scheme}:MODULE:NAME or {scheme}:FILE.py:NAME"
        )
    spec = parse_spec(named)
    found = load_callable(spec.name, f"{OPTION} {scheme}:")
    return found, Spec(f"{OPTION} {text}", spec.name, spec.pairs)


def instantiate(found: Callable[..., Any], spec: Spec) -> Any:
    """Call a class or a function with the spec's options.

    Raises:
        UsageError: an option is wrong, or it cannot be made.
    """
    options = arguments(spec, found)
    try:
        return found(**options)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UsageError(f"{spec.text}: {first_line(error)}") from error


def accepts_positions(found: Callable[..., Any], count: int) -> bool:
    """Whether something that is no class can be called with so many values, by position."""
    if inspect.isclass(found):
        return False
    try:
        inspect.signature(found).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the lines that a framework logs for every result."""
    before = logging.root.manager.disable
    if before >= logging.CRITICAL:  # by a caller: to say so again empties the cache of every logger
        yield
        return
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


_NEXT_TO_NOTHING = 1e-6


class Middleware(Mechanism):
    """Middleware that changes a client's message before it leaves.

    Attributes:
        form: in which it wants the model.
        exchange: what the arrays are that it gets.
        exchanges: what they can be, as the framework sends them.
        known: its law, where its class is known; subclasses of a known class are not.
        layout: what the client received; empty before ``receiving``.
    """

    unit: ClassVar[Unit] = "client"
    exchanges: tuple[Exchange, ...] = ("numpy",)
    form: Form
    exchange: Exchange = "numpy"

    def __init__(
        self, description: str, noise: Noise | None = None, known: ClippedGaussian | None = None
    ) -> None:
        self.description, self.known = description, known
        self.noise = noise if known is None else "gaussian"
        self.noise_multiplier = None if known is None else known.sigma / known.clip
        self.layout = Layout({})

    def receiving(self, layout: Layout) -> Self:
        """Bind the middleware to a model that the server sent."""
        other = copy(self)
        other.layout = layout
        return other

    def exchanging(self, exchange: Exchange) -> Self:
        """Copy the middleware for arrays of another format."""
        other = copy(self)
        other.exchange = exchange
        return other

    @property
    def named(self) -> str:
        """The option and its value, as errors name the middleware."""
        return f"{OPTION} {self.description}"

    @abstractmethod
    def deliver(self, received: Arrays, given: Payload) -> Payload:
        """Compute the message that leaves, from the received model and the trained one.

        Whatever the middleware raises passes through.

        Raises:
            AuditError: it refuses the message, or leaves no model in it.
        """

    def sent(self, update: Tensor) -> Payload:
        """Compute the message that leaves for an update (elements,).

        Raises:
            AuditError: the middleware fails, or what leaves does not fit what was received.
        """
        try:
            sent = self._delivered(self.layout, update)
        except AuditError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise AuditError(self._failure(update, error)) from error
        for key, array in sent.arrays.items():
            self._check(key, np.asarray(array))
        return sent

    def release(self, per_sample_gradients: Tensor, generator: Generator) -> Tensor:
        """Compute the update in the message that leaves: (1, elements) to (elements,)."""
        return self.layout.update(self.sent(per_sample_gradients[0])).to(
            per_sample_gradients.device
        )

    def law(self, records: int) -> ReleaseLaw | None:
        """Return the law of the message that leaves; None where it is not known."""
        return self.known.law(self.layout) if self.known and self.lawful else None

    @property
    def lawful(self) -> bool:
        """Whether the law covers the received arrays: noise on whole numbers is truncated."""
        shaped = (array for array in self.layout.received.values() if array.ndim)
        return self.known is not None and all(array.dtype.kind == "f" for array in shaped)

    def promise(
        self, relation: Relation, records: int, elements: int, delta: float
    ) -> Promise | None:
        """Compute the worst case over updates, for the arrays that are clipped and get noise."""
        return self.known.promise(relation, delta) if self.known and self.lawful else None

    def _delivered(self, layout: Layout, update: Tensor) -> Payload:
        """Compute the arrays that leave; the smallest update replaces none if the law is known.

        Mods that divide by the update's norm fail on 0. As clip(v) = v, a pair with v instead of 0
        is at most ‖v‖ farther apart, which is next to nothing beside the clip.
        """
        if self.known and self.lawful and not update.any():
            least = layout.smallest
            update = least if least.norm() <= _NEXT_TO_NOTHING * self.known.clip else update
        return self.deliver(layout.received, layout.payload(update, self.form))

    def _check(self, key: str, array: np.ndarray) -> None:
        """Refuse an array that is none of those received, of another shape, or not finite."""
        named, received = self.named, self.layout.received
        if key not in received:
            raise AuditError(
                f"{named}: sends {key!r}, which the model does not hold; its arrays are: "
                f"{listed(received, 20)}"
            )
        if array.shape != received[key].shape:
            raise AuditError(
                f"{named}: sends {key!r} in the shape {array.shape} instead of "
                f"{received[key].shape}; only arrays in the model's shapes can be compared"
            )
        if array.dtype.kind not in "biuf":
            raise AuditError(f"{named}: sends {key!r} as {array.dtype}, which is no real numbers")
        if not np.isfinite(np.asarray(array, float)).all():
            raise AuditError(f"{named}: sends numbers in {key!r} that are not finite")

    def _failure(self, update: Tensor, error: BaseException) -> str:
        """Make an error that names the arrays that cause it, where these are not real numbers."""
        named, words = self.named, first_line(error)
        if not update.any():
            return (
                f"{named}: fails on a client that changes nothing, which is what no update is: "
                f"{words}; play --relation replace"
            )
        odd = [key for key in self.layout.received if key not in self.layout.real]
        culprits = [
            f"{key} ({self.kind(key)})"
            for key in (odd if self._works_with(odd, update) else [])
            if not self._works_with([other for other in odd if other != key], update)
        ]
        if not culprits:
            return f"{named}: fails with {words}"
        return (
            f"{named}: fails on {listed(culprits)}: {words}; leave out what is no weight with "
            "--unsent, in the client too"
        )

    def kind(self, key: str) -> str:
        """Describe an array's type and shape."""
        array = self.layout.received[key]
        return f"{array.dtype} {'×'.join(map(str, array.shape)) or '0-d'}"

    def _works_with(self, real: list[str], update: Tensor) -> bool:
        try:
            self._delivered(self.layout.as_real(real), update)
        except (Exception, SystemExit):  # as above
            return False
        return True
