"""Applies several defenses in order to a client's update."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradaudit.core.parts import source_line
from gradaudit.core.text import listed
from gradaudit.defenses.base import Defense, module_of
from gradaudit.errors import AuditError, UsageError

Update = dict[str, Tensor]
Generators = Callable[[int, str], torch.Generator]

_BLOCK = 1024
"""Elements whose squares are summed in their own precision, for speed."""


@dataclass(frozen=True)
class Chain:
    """Defenses applied in order to the parameters that each of them defends.

    One that acts on single records (``dp`` but for ``per=release``) must be the first to touch a
    parameter: after another defense there are no records left to clip.

    Defenses that change the model are passed over; they are in the model already.

    Attributes:
        defenses: in order.
    """

    defenses: tuple[Defense[Any], ...] = ()

    def __str__(self) -> str:
        return " then ".join(map(str, self.defenses)) or "none"

    @property
    def acting(self) -> tuple[Defense[Any], ...]:
        """The defenses that act on updates."""
        return tuple(defense for defense in self.defenses if not defense.changes_model)

    def of(self, parameter: str) -> tuple[Defense[Any], ...]:
        """Returns the defenses of the parameter of this name, in order."""
        return tuple(defense for defense in self.acting if defense.defends(parameter))

    def idle(self, mode: str) -> str:
        """Names defenses without effect in this mode of the model; empty where all have one."""
        idle = [f"{defense} {defense.in_eval}" for defense in self.defenses if defense.in_eval]
        if mode == "train" or not idle:
            return ""
        return f"{', '.join(idle)} in eval mode; use --mode train"

    def check(self, parameters: Sequence[str]) -> None:
        """Raise an error where the defenses cannot be applied to these parameters in this order.

        Raises:
            UsageError: a glob matches no layer, or a defense of single records comes after
                another defense of the same layer.
        """
        for defense in self.defenses:
            if not any(map(defense.defends, parameters)):
                layers = list(dict.fromkeys(map(module_of, parameters)))
                raise UsageError(
                    f"--defense {defense}: no layer matches layers={defense.options.layers}; "
                    f"the layers are: {listed(layers, 20)}"
                )
        for parameter in parameters:
            for before, after in zip(self.of(parameter), self.of(parameter)[1:], strict=False):
                if after.of_records:
                    raise UsageError(
                        f"--defense {after}: cannot clip single records after {before}, which "
                        "leaves only the update of a batch; use per=release, or put it first"
                    )

    def record_factors(self, squares: Update) -> Update:
        """Returns the factors on records' gradients by parameter, without unchanged parameters.

        Args:
            squares: (records,) squared L2 norms of the gradients, by parameter.
        """
        return _by_parameter(self.acting, squares, lambda d, norms: d.record_factors(norms))

    def apply(
        self,
        update: Update,
        *,
        records: int,
        generators: Generators,
        silent: Container[str] = (),
        values: Tensor | None = None,
    ) -> Update:
        """Apply every defense in turn to updates that are means over records.

        Args:
            update: (batches, elements) by parameter, all that is shared, with record factors
                multiplied in already. Not changed.
            records: how many records an update is the mean of.
            generators: the generator of a defense (by index) and a parameter (empty where the
                defense sees all parameters at once). Numbers do not depend on how many batches
                come at a time if every pair has its own.
            silent: parameters to which defenses that only add noise add none; they clip them all
                the same.
            values: (batches,) private values, see ``Defense.protecting``; None: none is known.
        """
        for index, unaware in enumerate(self.acting):
            defense = unaware if values is None else unaware.protecting(values)
            chosen = {name: rows for name, rows in update.items() if defense.defends(name)}
            if _rescales(defense):
                chosen = _rescaled(defense, chosen)
                update = update | chosen
            if defense.additive:
                chosen = {name: rows for name, rows in chosen.items() if name not in silent}
            update = update | _applied(defense, chosen, records, partial(generators, index))
        return update

    def ends_in_noise(self, parameter: str, *, isotropic: bool) -> bool:
        """Whether all noise on a parameter is added by the last of its defenses.

        ``isotropic``: and has the same law in every orthonormal basis.
        """
        additive = [defense.additive for defense in self.of(parameter)]
        return (
            any(additive)
            and not any(additive[:-1])
            and (self.of(parameter)[-1].isotropic or not isotropic)
        )

    def couples(self, parameter: str) -> bool:
        """Whether a parameter's defended update depends on the batch's other parameters."""
        return any(
            defense.scope == "update" or (not defense.of_records and _rescales(defense))
            for defense in self.of(parameter)
        )


def _rescales(defense: Defense[Any]) -> bool:
    return type(defense).batch_factors is not Defense.batch_factors


def _applied(
    defense: Defense[Any],
    chosen: Update,
    records: int,
    generator: Callable[[str], torch.Generator],
) -> Update:
    if defense.scope == "update" and chosen:
        whole = torch.cat(list(chosen.values()), dim=1)
        done = _defended(defense, whole, records, generator(""))
        sizes = [rows.shape[1] for rows in chosen.values()]
        return dict(zip(chosen, torch.split(done, sizes, dim=1), strict=True))
    return {
        name: _defended(defense, rows, records, generator(name)) for name, rows in chosen.items()
    }


def _defended(
    defense: Defense[Any], rows: Tensor, records: int, generator: torch.Generator
) -> Tensor:
    """Apply a defense to updates (batches, elements).

    Raises:
        AuditError: it returns another shape; the message names it, and its file and line.
    """
    done: Any = defense.apply(rows, records=records, generator=generator)
    if isinstance(done, Tensor) and done.shape == rows.shape:
        return done
    shape = tuple(done.shape) if isinstance(done, Tensor) else type(done).__name__
    raise AuditError(
        f"--defense {defense}: apply returns {shape} for updates of shape {tuple(rows.shape)}"
        f"{source_line(type(defense).apply)}"
    )


def _rescaled(defense: Defense[Any], chosen: Update) -> Update:
    squares = {name: squared_norms(rows) for name, rows in chosen.items()}
    factors = _by_parameter((defense,), squares, lambda d, norms: d.batch_factors(norms))
    return {
        name: rows * factors[name][:, None].to(rows) if name in factors else rows
        for name, rows in chosen.items()
    }


def squared_norms(rows: Tensor) -> Tensor:
    """Returns the squared L2 norms (rows,) of (rows, elements), in float64."""
    count = rows.shape[1] // _BLOCK
    whole = count * _BLOCK
    blocks = rows[:, :whole].reshape(len(rows), count, _BLOCK)
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=2)
    rest: Tensor = torch.linalg.vector_norm(rows[:, whole:], dim=1, dtype=torch.float64)
    return norms.double().square().sum(dim=1) + rest.square()


def _by_parameter(
    defenses: Sequence[Defense[Any]],
    squares: Update,
    factors: Callable[[Defense[Any], Tensor], Tensor | None],
) -> Update:
    """Returns the product of the defenses' factors for each parameter that they defend."""
    product: Update = {}
    for defense in defenses:
        chosen = [name for name in squares if defense.defends(name)]
        if not chosen:
            continue
        factor = factors(defense, sum(squares[name] for name in chosen).sqrt())  # type: ignore[union-attr]
        if factor is not None:
            for name in chosen:
                product[name] = product[name] * factor if name in product else factor
    return product
