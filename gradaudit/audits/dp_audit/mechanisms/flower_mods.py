"""A Flower client mod, run on messages as Flower's clients send them."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from gradaudit.audits.dp_audit.mechanisms import OPTION
from gradaudit.audits.dp_audit.middleware import (
    ClippedGaussian,
    Middleware,
    accepts_positions,
    instantiate,
    named_object,
    quiet,
)
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Form, Outgoing, Payload
from gradaudit.core.noise_laws import Noise
from gradaudit.core.parts import library
from gradaudit.core.specs import Spec, arguments
from gradaudit.core.text import listed
from gradaudit.errors import AuditError, UsageError

_A_MOD_TAKES = 3
_LARGEST_DELTA = 1.25
"""The δ from which on the classical formula has no noise to give."""


class FlowerMod(Middleware):
    """A mod ``(Message, Context, call_next) -> Message``, outermost in its client.

    The server sends the model's state dict and a ``ConfigRecord``, the client answers with what its
    training made of the arrays and a ``MetricRecord``. A class, or a function that makes the mod,
    is called with the spec's options; those of a mod that takes none are in the server's
    ``ConfigRecord``, as ``clipping_norm`` for ``fixedclipping_mod``. Its instance lives through all
    releases, as in a client; its context is fresh each time.

    ``LocalDpMod`` clips the update as a whole and adds noise of S √(2 ln(1.25/δ))/ε with whatever
    sensitivity S it is given, so its exact ε follows from its clip; it leaves arrays without
    dimensions as they are, and fails on whole numbers that it has to clip.

    Attributes:
        mod: what is called.
        config: what the server sends beside the model.

    Source: D. Beutel et al., "Flower: A friendly federated learning research framework" (2020); C.
    Dwork and A. Roth, "The algorithmic foundations of differential privacy" (2014), theorem A.1;
    B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy" (2018),
    theorem 8.
    """

    name = "flower"
    summary = "A Flower mod, flower:MODULE:OBJECT or flower:FILE.py:OBJECT."
    example: ClassVar[str] = (
        "flower:flwr.clientapp.mod:LocalDpMod?clipping_norm=1&sensitivity=2&epsilon=1&delta=1e-5"
    )
    form: Form = "weights"

    def __init__(
        self,
        mod: Callable[..., Any],
        description: str,
        noise: Noise | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        law = _LAWS.get(f"{type(mod).__module__}.{type(mod).__qualname__}")
        super().__init__(description, noise, None if law is None else law(mod))
        self.mod, self.config = mod, dict(config or {})
        library("flwr.app", "flower", f"{OPTION} flower")

    @classmethod
    def parse(cls, text: str, noise: Noise | None = None) -> Self:
        """The mod that ``flower:MODULE:OBJECT?key=value&…`` names.

        Raises:
            UsageError: Flower is missing, there is no such object, it is no mod, or it can draw
                no noise from its options.
        """
        library("flwr.app", "flower", f"{OPTION} flower")
        found, spec = named_object(text)
        if accepts_positions(found, _A_MOD_TAKES) and not _options_of(found, spec):
            return cls(found, text, noise, _typed(spec))
        mod = instantiate(found, spec)
        if not callable(mod) or not accepts_positions(mod, _A_MOD_TAKES):
            raise UsageError(
                f"{OPTION} {text}: makes a {type(mod).__name__}, which is no mod; a mod is called "
                "as mod(message, context, call_next)"
            )
        return cls(mod, text, noise)

    def deliver(self, received: Arrays, given: Payload) -> Payload:
        """Run the mod on the client's message, and return the message that leaves.

        Raises:
            AuditError: it answers with an error, or without arrays.
        """
        try:
            return self._delivered_in(received, given, legacy=False)
        except KeyError as error:
            if "fitins" not in str(error):
                raise
            return self._delivered_in(received, given, legacy=True)  # as mods of flwr.client read

    def _delivered_in(self, received: Arrays, given: Payload, *, legacy: bool) -> Payload:
        """Run the mod on messages of today's format, or of the legacy one."""
        from flwr.app import Message

        from gradaudit.audits.dp_audit.middleware import flower_messages as flower

        incoming = flower.holding(flower.usual("train", legacy=legacy), received, self.config)
        message = flower.asked(incoming, "train", 2)
        result = Outgoing(given.arrays, "weights", {"num-examples": 1.0})
        content = flower.reply_of(result, message, legacy=legacy)
        with quiet():
            answer = flower.answered(message, [self.mod], {}, content)
        if not isinstance(answer, Message):
            raise AuditError(
                f"{OPTION} {self.description}: returns a {type(answer).__name__}; a mod returns "
                "the message that call_next gave it, or another"
            )
        if answer.has_error():
            raise AuditError(f"{OPTION} {self.description}: refuses: {answer.error.reason}")
        left = flower.outgoing(answer, tuple(received) if legacy else ())
        if not left.arrays:
            raise AuditError(
                f"{OPTION} {self.description}: leaves no arrays in the message; its records are: "
                f"{listed(answer.content) or 'none'}"
            )
        return Payload(left.arrays, "weights")


def _options_of(found: Callable[..., Any], spec: Spec) -> bool:
    """Whether the spec's options fit a function, which then makes a mod and is none itself."""
    code = getattr(found, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    return any(key in names for key, _ in spec.pairs)


def _typed(spec: Spec) -> dict[str, object]:
    """Convert options to numbers where they are written as numbers."""

    def options(**values: object) -> dict[str, object]:
        return values

    return dict(arguments(spec, options))


def _local_dp(mod: Any) -> ClippedGaussian | None:
    """σ = S √(2 ln(1.25/δ)) / ε with the sensitivity S that the user states; None without noise.

    Raises:
        UsageError: the formula gives no number, and the mod fails on every message.
    """
    if not (mod.epsilon > 0 and 0 < mod.delta <= _LARGEST_DELTA):
        raise UsageError(
            f"{OPTION} flower: LocalDpMod has no noise for epsilon={mod.epsilon:g} and "
            f"delta={mod.delta:g}: give epsilon above 0 and delta above 0, at most {_LARGEST_DELTA}"
        )
    spread = math.sqrt(2 * math.log(_LARGEST_DELTA / mod.delta)) / mod.epsilon
    sigma = mod.sensitivity * spread
    claim = (mod.epsilon, mod.delta)
    return ClippedGaussian(clip=mod.clipping_norm, sigma=sigma, claim=claim) if sigma else None


_LAWS: Mapping[str, Callable[[Any], ClippedGaussian | None]] = {
    f"flwr.{side}.mod.localdp_mod.LocalDpMod": _local_dp for side in ("clientapp", "client")
}
"""The laws of the mods whose source was read."""
