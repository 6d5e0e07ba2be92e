"""The Python API: ``gradaudit.audit(model, records)`` gives the report that ``scan`` writes."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from gradaudit.audits import Audit
from gradaudit.audits import audits as all_audits
from gradaudit.config import SubjectSettings, settle
from gradaudit.errors import UsageError
from gradaudit.loading.losses import Loss
from gradaudit.loading.records import Records
from gradaudit.progress import Progress
from gradaudit.report import Report
from gradaudit.runner import run
from gradaudit.subject import open_subject
from gradaudit.target import Mode


def audit(
    model: nn.Module | str,
    data: Records | tuple[Tensor, Tensor] | str,
    *,
    audits: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    loss: str | Loss = "cross-entropy",
    mode: Mode = "eval",
    layers: Sequence[str] = (),
    hide: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Audit a model that is already in memory, or one named as on the command line.

    Args:
        model: a module with its weights, on its device; it is not changed.
        data: records, a pair of inputs (records, …) and labels (records,), or a spec.
        audits: names of audits, or their options by name; every audit without it.
        loss: the training loss, by name or as an object.
        mode: how BatchNorm and dropout run.
        layers: only layers that match one of these globs.
        hide: leave out layers that match one of these globs.
        samples: how many records each audit looks at.
        seed: root of all randomness.
        progress: who is told how far the work is.

    Returns:
        The report, as ``gradaudit scan`` makes it.

    Raises:
        GradauditError: as on the command line.

    Example:
        >>> import gradaudit
        >>> report = gradaudit.audit("zoo:mlp?inputs=10", "diabetes", audits=["sensitivity"])
        >>> report.select("sensitivity.input_f", layer="fc1")[0].status
        'measured'
    """
    settings = settle(
        SubjectSettings,
        {
            "model": model if isinstance(model, str) else None,
            "data": data if isinstance(data, str) else None,
            "loss": loss if isinstance(loss, str) else None,
            "mode": mode,
            "layer": tuple(layers),
            "hide": tuple(hide),
            "samples": samples,
            "seed": seed,
        },
        {},
    )
    subject = open_subject(
        settings,
        model=None if isinstance(model, str) else model,
        records=_records(data),
        loss=None if isinstance(loss, str) else loss,
    )
    return run(subject, _configured(audits), progress=progress)


def _records(data: Records | tuple[Tensor, Tensor] | str) -> Records | None:
    if isinstance(data, str):
        return None
    if isinstance(data, Records):
        return data
    inputs, labels = data
    return Records(inputs=inputs, labels=labels, adapter="memory")


def _configured(
    chosen: Sequence[str] | Mapping[str, Mapping[str, Any]] | None,
) -> list[Audit[Any]]:
    known = all_audits()
    options = chosen if isinstance(chosen, Mapping) else {name: {} for name in chosen or known}
    for name in options:
        if name not in known:
            raise UsageError(f"audits: no audit {name!r}; there are: {', '.join(known)}")
    return [
        known[name](settle(known[name].Options, dict(values), {}))
        for name, values in options.items()
    ]
