"""Rows of what a mechanism promises, to stand beside what its audit found."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._dp_options import DpAuditOptions
from gradaudit.audits._dp_rows import row, skip
from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.dp.mechanisms import AdditiveMechanism, Mechanism
    from gradaudit.dp.theory import Relation

_CLASSICAL_RANGE = "proved only up to epsilon = 1"


def theory_rows(
    mechanism: "Mechanism",
    options: DpAuditOptions,
    *,
    records: int,
    elements: int,
    columns: int,
    base: Variant,
) -> Iterator[Measurement]:
    """What the mechanism promises for a replaced (headline) and for a removed record.

    Args:
        mechanism: that is audited.
        options: of the audit.
        records: size of the batch.
        elements: length of the gradient.
        columns: columns of the table; Li24 divide epsilon by their number, which has no basis.
        base: the variant of the main rows.
    """
    from gradaudit.dp.mechanisms import AdditiveMechanism

    if not isinstance(mechanism, AdditiveMechanism):
        reason = (
            "a deterministic defense promises no finite epsilon"
            if mechanism.deterministic
            else "a mechanism from a file promises nothing known; name it as dp:clip=C,sigma=S"
        )
        yield skip("epsilon_theory", reason, base)
        yield skip("epsilon_classical", reason, base)
        return
    yield from _relation_rows(mechanism, options, "replace", records, elements, base)
    other: Variant = {**base, "relation": "remove"}
    yield from _relation_rows(mechanism, options, "remove", records, elements, other)
    if mechanism.noise == "gaussian" and columns:
        yield _per_column_row(mechanism, options, records, columns, other)


def composition_rows(mechanism: "Mechanism", options: DpAuditOptions) -> Iterator[Measurement]:
    """Epsilon of ``--steps`` steps, to compare a claimed budget with that of one.

    Raises:
        UsageError: composition is asked for a mechanism that has none here, or dp-accounting is
            missing.
    """
    from gradaudit.dp.accounting import epsilon_composed
    from gradaudit.dp.mechanisms import AdditiveMechanism

    if options.steps is None:
        return
    if not isinstance(mechanism, AdditiveMechanism) or (mechanism.noise, mechanism.per) != (
        "gaussian",
        "sum",
    ):
        raise UsageError("--steps: only Gaussian noise on the sum of clipped gradients composes")
    composed = epsilon_composed(
        mechanism.sigma / mechanism.clip,
        options.steps,
        options.delta,
        sampling_rate=options.sampling_rate,
    )
    variant: Variant = {"steps": options.steps, "sampling_rate": options.sampling_rate}
    yield row("epsilon_theory", composed, variant, details={"delta": options.delta})


def _relation_rows(
    mechanism: "AdditiveMechanism",
    options: DpAuditOptions,
    relation: "Relation",
    records: int,
    elements: int,
    variant: Variant,
) -> Iterator[Measurement]:
    from gradaudit.dp.promises import promised_epsilon, worst_mu
    from gradaudit.dp.theory import epsilon_classical

    gaussian = mechanism.noise == "gaussian"
    mu = worst_mu(mechanism, relation, records)
    promised = promised_epsilon(mechanism, relation, records, elements, options.delta)
    details: dict[str, JsonValue] = {
        "unit": "record",
        "relation": relation,
        "sensitivity_over_noise": mu if math.isfinite(mu) else None,
        "delta": options.delta if gaussian else 0.0,
    }
    yield row("epsilon_theory", promised, variant, details=details)
    if gaussian:
        classical = epsilon_classical(mu, options.delta)
        details |= {"in_range": classical.in_range, "range": _CLASSICAL_RANGE}
        if not classical.in_range:
            details["remark"] = f"out of range: {_CLASSICAL_RANGE}"
        yield row("epsilon_classical", classical.value, variant, details=details)
    else:
        yield skip("epsilon_classical", "the classical formula is for Gaussian noise", variant)


def _per_column_row(
    mechanism: "AdditiveMechanism",
    options: DpAuditOptions,
    records: int,
    columns: int,
    variant: Variant,
) -> Measurement:
    from gradaudit.dp.promises import worst_mu
    from gradaudit.dp.theory import epsilon_classical

    classical = epsilon_classical(worst_mu(mechanism, "remove", records), options.delta)
    return row(
        "epsilon_classical",
        classical.value / columns,
        {**variant, "per": "column"},
        details={"columns": columns, "note": "Li24's figure 8; dividing by columns has no basis"},
    )
