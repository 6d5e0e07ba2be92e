"""Subjects of audits, and the rows that audits make of them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradaudit.audits import Audit
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.models.target import Target, choose_layers
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject


def subject_of(
    model: nn.Module | Target,
    records: Records,
    *,
    loss: Loss | None = None,
    show: tuple[str, ...] = (),
    **settings: Any,
) -> Subject:
    """A model with records, by cross-entropy unless it is told; all layers, or those to show."""
    target = model if isinstance(model, Target) else Target(model, loss or CrossEntropy())
    return Subject((target,), records, choose_layers(target.layers, show), **settings)


def rows_by(audit: type[Audit[Any]], **usual: Any) -> Callable[..., list[Measurement]]:
    """What gives the rows of an audit of a subject, by its options over the usual ones."""

    def rows_of(subject: Subject, **options: Any) -> list[Measurement]:
        settled = audit.Options.model_validate({**usual, **options})
        return list(audit(settled).run(subject, Silent()))

    return rows_of


def one(
    rows: Iterable[Measurement], metric: str, layer: str | None = None, **variant: Any
) -> Measurement:
    """The only row of a metric, layer and variant."""
    (row,) = (r for r in rows if (r.metric, r.layer, dict(r.variant)) == (metric, layer, variant))
    return row


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Let torch draw from a seed, and go on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
