"""Base class of defenses: a name, options, and the change of the shared update.

``gradaudit list`` reads their names from the source, so a defense may import what it needs.
"""

from abc import ABC
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from gradaudit.core.specs import configured
from gradaudit.errors import UsageError
from gradaudit.models.losses import Loss

Scope = Literal["tensor", "update"]


class DefenseOptions(BaseModel):
    """Base of every defense's options; a field is a ``key=value`` of its spec."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    layers: str = Field("*", description="Glob of the layers that the defense changes.")


O = TypeVar("O", bound=DefenseOptions)  # noqa: E741 - O for options


_ACTS = ("apply", "record_factors", "batch_factors", "modify")
"""Methods of which a defense defines at least one."""


class Defense(ABC, Generic[O]):
    """Base of all defenses; a defense's docstring carries its formula and citation.

    A client's update passes through it in this order: single records' gradients are multiplied by
    ``record_factors`` and averaged; the update is multiplied by ``batch_factors``; then ``apply``.

    Attributes:
        name: as in its spec.
        summary: one line for ``gradaudit list``.
        example: a spec.
        positional: the option that ``NAME:value`` sets, if any.
        changes_model: it acts on the model and its training (``modify``), not on the update.
        in_eval: what is missing of it outside training mode, in words; empty if nothing.
        scope: what ``apply`` sees at once: one parameter tensor, or all it defends in a row.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example: ClassVar[str]
    Options: ClassVar[type[DefenseOptions]] = DefenseOptions
    positional: ClassVar[str | None] = None
    changes_model: ClassVar[bool] = False
    in_eval: ClassVar[str] = ""
    scope: ClassVar[Scope] = "tensor"

    def __init__(self, given: O | object = None, /, **values: Any) -> None:
        """Sets the defense's options.

        Args:
            given: the options, or the value of the ``positional`` one, as in ``Prune(0.99)``.
            values: options by name; the others have their defaults.

        Raises:
            UsageError: an option that it does not take or that is missing, a value out of range,
                or a class without any of the methods that change an update.
        """
        if all(getattr(type(self), name) is getattr(Defense, name) for name in _ACTS):
            raise UsageError(f"{type(self).__name__}: defines none of {', '.join(_ACTS)}")
        if given is not None and not isinstance(given, DefenseOptions):
            if self.positional is None:
                raise UsageError(f"{type(self).__name__}: takes options by name alone")
            values = {self.positional: given, **values}
        self.options: O = (
            given  # type: ignore[assignment]
            if isinstance(given, DefenseOptions)
            else configured(self.Options, type(self).__name__, values)
        )

    def __str__(self) -> str:
        given = self.options.model_dump(exclude_unset=True)
        first = [f"{given.pop(self.positional)}"] if self.positional in given else []
        pairs = [f"{key.replace('_', '-')}={value}" for key, value in given.items()]
        return ":".join(filter(None, [self.name, ",".join([*first, *pairs])]))

    def defends(self, parameter: str) -> bool:
        """Whether the defense is applied to the parameter of this qualified name."""
        return fnmatchcase(module_of(parameter), self.options.layers)

    @property
    def of_records(self) -> bool:
        """Whether it acts on single records, so that it must come before defenses that mix them."""
        return False

    @property
    def additive(self) -> bool:
        """Whether ``apply`` adds independent noise to every element and does nothing else."""
        return False

    @property
    def isotropic(self) -> bool:
        """Whether that noise has the same law in every orthonormal basis."""
        return False

    def record_factors(self, norms: Tensor) -> Tensor | None:
        """Returns the factor on each record's gradient; None where single records are unchanged.

        Args:
            norms: (records,) L2 norms of the records' gradients, over all that it defends.
        """
        return None

    def batch_factors(self, norms: Tensor) -> Tensor | None:
        """Returns the factor on each batch's update; None where it is not rescaled as a whole.

        Args:
            norms: (batches,) L2 norms of the updates, over all that it defends.
        """
        return None

    def protecting(self, values: Tensor) -> Self:
        """Returns the defense for updates whose private values it may know, as clients do.

        Args:
            values: (batches,) of the rows that ``apply`` gets, from 0; −1 where none is known.
        """
        return self

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """Defend updates, each separately.

        Args:
            gradients: (batches, elements) of one parameter tensor, or of all it defends side by
                side where ``scope`` is ``update``. Not changed.
            records: how many records an update is the mean of.
            generator: on the device of ``gradients``. Rows must be drawn one after the other, so
                that the numbers do not depend on how many batches come at a time.

        Returns:
            The same shape.
        """
        return gradients

    def modify(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Returns a copy of the model with the defense built in, where it changes the model."""
        return model

    def modified_loss(self, loss: Loss, model: nn.Module) -> Loss:
        """Returns the loss of the model from ``modify``, with the term that the defense adds."""
        return loss


def module_of(parameter: str) -> str:
    """Returns the name of the layer that a parameter belongs to, as reports show it."""
    return parameter.rpartition(".")[0] or "(model)"
