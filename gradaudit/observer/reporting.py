"""The report of an observation: rows of the audit ``observe``, without data."""

import platform
from collections.abc import Mapping, Sequence

import torch
from pydantic import JsonValue

from gradaudit._version import __version__
from gradaudit.attacks.reading import ReadingValue
from gradaudit.attacks.reading.base import linear_of, size_of
from gradaudit.audits.observe import Observe
from gradaudit.audits.observe.measure import rows_of
from gradaudit.audits.rows import Rows
from gradaudit.report import LayerRecord, Report, TargetRecord
from gradaudit.sharing.named import NamedUpdate


def report_of(
    update: NamedUpdate,
    told: Sequence[ReadingValue],
    *,
    model: str,
    loss: str,
    provenance: Mapping[str, JsonValue],
) -> Report:
    """The report of what was read off an update.

    Args:
        update: what leaves.
        told: all that was read, and what was left out, which ``details.left_out`` says.
        model: what to call the model.
        loss: its training loss, as far as it is known.
        provenance: when and how it was observed.
    """
    layers = update.layers()
    sizes = {layer: size_of(update, names) for layer, names in layers.items()}
    return Report(
        tool={"name": "gradaudit", "version": __version__},
        target=TargetRecord(
            model=model,
            parameters=sum(sizes.values()),
            layers=[
                LayerRecord(
                    name=layer,
                    kind="Linear" if linear_of(update, names) else "array",
                    parameters=sizes[layer],
                    position=position,
                )
                for position, (layer, names) in enumerate(layers.items())
            ],
            loss=loss,
            mode="train",
        ),
        data={
            "adapter": "update",
            **({} if update.records is None else {"records": update.records}),
        },
        provenance={
            **provenance,
            "device": str(next(iter(update.after.values())).device),
            "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        },
        measurements=list(rows_of(Rows(Observe, facts={"kind": update.kind}), told)),
    )
