"""The user's own mechanism, from a file; its law is unknown."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradaudit.dp.mechanisms.base import Mechanism
from gradaudit.errors import AuditError
from gradaudit.noise import Noise
from gradaudit.user_code import first_line


class FileMechanism(Mechanism):
    """``def mechanism(per_sample_gradients, generator): …`` from the user's file.

    It gets a tensor (records, elements) of its own to work on and a ``torch.Generator``, and
    returns the released gradient (elements,). Where the callable has an attribute ``releases``,
    ``releases(per_sample_gradients, count, generator)`` is called instead and returns
    (count, elements).
    """

    def __init__(
        self, function: Callable[..., Any], description: str, noise: Noise | None = None
    ) -> None:
        self.function = function
        self.noise = noise
        self.batched: Callable[..., Any] | None = getattr(function, "releases", None)
        self.description = description

    def release(self, per_sample_gradients: Tensor, generator: torch.Generator) -> Tensor:
        """Release once: (records, elements) to (elements,).

        Raises:
            AuditError: the user's code fails, or returns something else than a finite gradient.
        """
        elements = per_sample_gradients.shape[1:]
        return self._call(self.function, elements, per_sample_gradients.clone(), generator)

    def releases(
        self, per_sample_gradients: Tensor, count: int, generator: torch.Generator
    ) -> Tensor:
        """Release ``count`` times, (count, elements), by the batched form where there is one.

        Raises:
            AuditError: as ``release``.
        """
        if self.batched is None:
            return super().releases(per_sample_gradients, count, generator)
        shape = (count, *per_sample_gradients.shape[1:])
        return self._call(
            self.batched, torch.Size(shape), per_sample_gradients.clone(), count, generator
        )

    def _call(self, function: Callable[..., Any], shape: torch.Size, *arguments: Any) -> Tensor:
        try:
            released = function(*arguments)
        except Exception as error:
            raise AuditError(
                f"--mechanism {self.description}: fails with {first_line(error)}"
            ) from error
        if not isinstance(released, Tensor) or released.shape != shape:
            found = tuple(released.shape) if isinstance(released, Tensor) else type(released)
            raise AuditError(
                f"--mechanism {self.description}: returned {found}; a released gradient of shape "
                f"{tuple(shape)} is needed"
            )
        if not released.isfinite().all():
            raise AuditError(
                f"--mechanism {self.description}: released a gradient that is not finite"
            )
        return released
