"""Makes and reads the results of NVFlare's clients, as its filters see them."""

from typing import Any

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from gradaudit.audits.dp_audit.middleware.payload import Form, Outgoing, messaged, unpacked
from gradaudit.errors import AuditError

_DXO = "DXO"
"""Key of a result's DXO among what a Shareable holds."""
_KINDS: dict[Form, str] = {"differences": DataKind.WEIGHT_DIFF, "weights": DataKind.WEIGHTS}


def context_of(scope: Any = None, number: int = 1) -> FLContext:
    """Make a client's context in which result filters run in a round, without the task's data."""
    context = FLContext()
    context.set_prop(FLContextKey.SCOPE_OBJECT, scope, private=True, sticky=False)
    context.set_prop(FLContextKey.TASK_DATA, None, private=True, sticky=False)
    context.set_prop(AppConstants.CURRENT_ROUND, number - 1, private=True, sticky=False)
    return context


def shareable_of(given: Outgoing) -> Shareable:
    """Make a client's result, of numbers alone where it has no arrays."""
    if not given.arrays:
        return DXO(DataKind.METRICS, dict(given.numbers)).to_shareable()
    data = messaged(given.arrays, given.exchange)
    return DXO(_KINDS[given.form], data, meta=dict(given.numbers)).to_shareable()


def outgoing(left: Shareable, given: Outgoing) -> Outgoing:
    """Read a result that leaves.

    Raises:
        AuditError: it holds neither weights, differences nor metrics.
    """
    dxo = from_shareable(left)
    extras = {key: left[key] for key in left if key != _DXO}
    if dxo.data_kind == DataKind.METRICS:
        return Outgoing({}, given.form, dict(dxo.data), extras={**extras, **dxo.meta})
    form = next((form for form, kind in _KINDS.items() if kind == dxo.data_kind), None)
    if form is None:
        raise AuditError(
            f"leaves a DXO of {dxo.data_kind}; only weights and their differences can be looked at"
        )
    numbers = {k: float(v) for k, v in dxo.meta.items() if isinstance(v, int | float)}
    extras |= {key: value for key, value in dxo.meta.items() if key not in numbers}
    return Outgoing(unpacked(dxo.data), form, numbers, given.exchange, extras)
