"""Makes and reads the messages of Flower's servers and clients, in both of its formats.

Source: flwr 1.41, ``client/mod/utils.py`` (``make_ffn``), ``compat/common/recorddict_compat.py``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import make_message
from flwr.client.mod.utils import make_ffn
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
)
from flwr.compat.common import recorddict_compat as compat

from gradaudit.audits.dp_audit.middleware import quiet
from gradaudit.audits.dp_audit.middleware.payload import Arrays, Outgoing, ReplyError
from gradaudit.errors import AuditError

MASKING = ("secagg_mod", "secaggplus_mod")
"""Mods that mask what leaves, so that the server sees the sum of all clients alone."""
_DAY = 86400.0
_OK = Status(Code.OK, "")


def context_of(config: Mapping[str, Any], node: int, state: RecordDict | None = None) -> Context:
    """Make the context of an app on one node, with the state that it kept."""
    return Context(
        run_id=1,
        node_id=node,
        node_config={"partition-id": 0, "num-partitions": 2},
        state=RecordDict() if state is None else state,
        run_config=dict(config),
    )


def asked(content: Any, kind: str, node: int, number: int = 1) -> Message:
    """Make a server's message to a client in a round."""
    metadata = Metadata(
        run_id=1,
        message_id=f"m{node}",
        src_node_id=1,
        dst_node_id=node,
        reply_to_message_id="",
        group_id=str(number),
        created_at=time.time(),
        ttl=_DAY,
        message_type=kind,
    )
    return make_message(metadata, content)


def record_of(arrays: Arrays) -> ArrayRecord:
    """Convert arrays to a record as Flower sends it."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def arrays_of(record: Mapping[str, Any], keys: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Read a record's arrays under its keys, or in order under given keys."""
    arrays = [np.array(array.numpy()) for array in record.values()]
    return dict(zip(keys or record, arrays, strict=True))


def reply_of(
    given: Outgoing, asked_by: Message, kind: str = "train", *, legacy: bool = False
) -> RecordDict:
    """Make the content of a client's reply; its arrays have the server's name for them."""
    numbers: dict[str, Any] = {
        key: int(v) if float(v).is_integer() else v for key, v in given.numbers.items()
    }
    if not legacy:
        content = RecordDict({"metrics": MetricRecord(numbers)})
        if given.arrays:
            key = next(iter(asked_by.content.array_records), "arrays")
            content[key] = record_of(given.arrays)
        return content
    count, metrics = int(numbers.pop("num_examples", 1)), numbers
    if kind == "evaluate":
        loss = float(metrics.pop("loss", 0.0))
        return compat.evaluateres_to_recorddict(EvaluateRes(_OK, loss, count, metrics))
    parameters = ndarrays_to_parameters(list(given.arrays.values()))
    return compat.fitres_to_recorddict(FitRes(_OK, parameters, count, metrics), keep_input=True)


def outgoing(answer: Message, keys: Sequence[str] = ()) -> Outgoing:
    """Read a reply: its arrays under their own keys, or in order under given keys.

    A number has the name of its record before its own where several records have that name.

    Raises:
        ReplyError: it is an error.
        AuditError: two records hold an array of the same key.
    """
    if answer.has_error():
        raise ReplyError(f"the reply is an error: {answer.error.reason}")
    arrays: dict[str, np.ndarray] = {}
    for name, record in answer.content.array_records.items():
        more = arrays_of(record, keys)
        if twice := arrays.keys() & more.keys():
            raise AuditError(f"the record {name!r} sends {min(twice)!r} a second time")
        arrays |= more
    values: dict[str, Any] = {}
    # legacy replies have their metrics in a record of settings
    others: dict[str, Any] = {**answer.content.metric_records, **answer.content.config_records}
    for name, each in others.items():
        values |= {f"{name}.{k}" if k in values else k: value for k, value in each.items()}
    numbers = {k: float(value) for k, value in values.items() if isinstance(value, int | float)}
    extras = {k: value for k, value in values.items() if k not in numbers}
    return Outgoing(arrays, "weights", numbers, extras=extras)


def name_of(mod: Any) -> str:
    """Return the name of a mod: its function's, or its class's."""
    return str(getattr(mod, "__name__", type(mod).__name__))


def answered(
    message: Message,
    mods: Sequence[Any],
    config: Mapping[str, Any],
    content: Any,
    state: RecordDict | None = None,
) -> Any:
    """Compute a client's reply after its mods, without those that mask it for a secure sum."""

    def trained(incoming: Message, context: Context) -> Message:
        return Message(content, reply_to=incoming)

    plain = [mod for mod in mods if name_of(mod) not in MASKING]
    context = context_of(config, message.metadata.dst_node_id, state)
    return make_ffn(trained, plain)(message, context)


def through(
    mods: Sequence[Any],
    config: Mapping[str, Any],
    message: Callable[[Arrays], Message],
    kind: str,
    legacy: bool,
    state: RecordDict | None,
    received: Arrays,
    given: Outgoing,
) -> Outgoing:
    """Run mods on a result by Flower's own ``make_ffn``; they keep what they want in a state."""
    incoming = message(received)
    content = reply_of(given, incoming, kind, legacy=legacy)
    with quiet():
        answer = answered(incoming, mods, config, content, state)
    sent = outgoing(answer, tuple(given.arrays) if legacy else ())
    changed = {
        f"metadata.{name}": str(value)
        for name in ("group_id", "message_type")
        if (value := getattr(answer.metadata, name)) != getattr(incoming.metadata, name)
    }
    return replace(sent, extras={**sent.extras, **changed})


def usual(kind: str, number: int = 1, *, legacy: bool) -> RecordDict:
    """Make the content of a server's message as Flower's templates do, without arrays."""
    if not legacy:
        config = ConfigRecord({"server-round": number})
        return RecordDict({"arrays": ArrayRecord({}), "config": config})
    nothing = Parameters([], "numpy.ndarray")
    if kind == "train":
        return compat.fitins_to_recorddict(FitIns(nothing, {}), keep_input=True)
    return compat.evaluateins_to_recorddict(EvaluateIns(nothing, {}), keep_input=True)


def holding(content: Mapping[str, Any], received: Arrays, settings: Mapping[str, Any]) -> Any:
    """Copy a message's content with these arrays in it, and more settings in its configuration."""
    records: dict[str, Any] = {}
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            records[key] = record_of(received)
        else:
            more = settings if isinstance(record, ConfigRecord) else {}
            records[key] = type(record)({**record, **more})
    return RecordDict(records)
