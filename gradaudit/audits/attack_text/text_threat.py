"""The update that an attacker of texts gets, and the attacker's view of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_text.presence import Texts
from gradaudit.audits.attack_text.view import (
    InputCapture,
    Task,
    TextView,
    mask_among,
    resized,
    tokens_among,
)
from gradaudit.core.text import listed
from gradaudit.data.common.packing import InputPart
from gradaudit.data.records import IGNORED, Records
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer, Target, layers_of
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import seen
from gradaudit.subject import seen_by_outsiders


@dataclass(frozen=True)
class TextThreat:
    """The update that clients with texts share, and the attacker's view of it.

    Attributes:
        layers: those whose updates the attacker uses.
        earlier: earlier rounds, oldest first, in which the same texts made an update.
    """

    target: Target
    sharing: SharingProtocol
    layers: tuple[Layer, ...]
    earlier: tuple[TextThreat, ...] = ()

    def view(self, batch: Records, generator: torch.Generator) -> TextView:
        """Make the attacker's view of a batch in float32, the precision that text models train in.

        Raises:
            AuditError: the model cannot be run on the batch.
            UsageError: the defenses cannot be applied to this model.
        """
        made = self.target, batch.inputs, batch.labels, self.sharing, generator
        view = self.view_of(batch, seen(*made, dtype=torch.float32))
        earlier = tuple(threat.view(batch, generator) for threat in self.earlier)
        knowledge = {**view.knowledge, **({"rounds": len(earlier) + 1} if earlier else {})}
        return replace(view, earlier=earlier, knowledge=knowledge)

    def view_of(self, batch: Records, update: dict[str, Tensor]) -> TextView:
        """Make the view of an update; of its batch, only the lengths are used.

        Raises:
            AuditError: the model cannot be run on the batch.
        """
        model = FunctionalModel.of(seen_by_outsiders(self.target), dtype=torch.float32)
        texts, task, vocabulary = texts_of(batch), task_of(batch), _vocabulary(model, batch)
        if model.stochastic(model.cast(batch.inputs[:1])):
            model = replace(model, mode="eval")  # nobody knows the masks that dropout drew
        shown = {
            name
            for layer in layers_of(self.target.model, with_bias=True)
            if layer.name in {shown.name for shown in self.layers}
            for name in layer.parameter_names
        }
        kept = {name: part.to(model.device, model.dtype) for name, part in update.items()}
        longest = int(texts.lengths.max())
        view = TextView(
            model=replace(model, parts=resized(model.parts, longest)),
            update={name: part for name, part in kept.items() if name in shown},
            lengths=tuple(texts.lengths.tolist()),
            length=longest,
            task=task,
            vocabulary=vocabulary,
        )
        return replace(view, knowledge=self._knowledge(view))

    def _knowledge(self, view: TextView) -> dict[str, JsonValue]:
        shown = [layer.name for layer in self.layers]
        return {
            "model": "weights, architecture, vocabulary and loss",
            "layers": "all" if len(shown) == len(self.target.layers) else list(shown),
            "batch_size": view.sequences,
            "positions": view.length,
            "lengths": "known" if view.task != "next-token" else "their sum",
            "update": self.sharing.knowledge(view.sequences),
            "defense": [str(defense) for defense in self.sharing.defenses],
        }


def texts_of(records: Records) -> Texts:
    """Read the records' tokens, and how many positions each fills.

    Raises:
        NotApplicable: the records are no texts.
    """
    if not records.discrete:
        raise NotApplicable("the records are no texts: their inputs are no tokens")
    parts = records.parts or (InputPart("", tuple(records.inputs.shape[1:]), "tokens"),)
    blocks = torch.split(records.inputs, [p.size for p in parts], dim=1)
    by_name = {part.name: x for part, x in zip(parts, blocks, strict=True)}
    tokens, filled = tokens_among(parts), mask_among(parts)
    if tokens is None:
        raise NotApplicable(
            f"which of the inputs {listed(list(by_name))} are a text's tokens is not clear from "
            "their names; call these input_ids, and what says which are filled attention_mask"
        )
    if any("type" in part.name and bool(by_name[part.name].any()) for part in parts):
        raise NotApplicable(
            "the texts are pairs, distinguished by token types, which the attack does not look "
            "for; name one column by text="
        )
    others = [part.name for part in parts if part.shape != tokens.shape]
    if others:
        raise NotApplicable(
            f"inputs of another shape than the tokens: {listed(others)}; the attack fills in "
            "tokens, masks, types and positions alone"
        )
    ids = by_name[tokens.name]
    mask = torch.ones_like(ids) if filled is None else by_name[filled.name]
    if bool((mask.diff(dim=1) > 0).any()):
        raise NotApplicable("a text has padding before its end; pad texts behind their last token")
    return Texts(ids, mask.sum(dim=1).clamp(min=1))


def ids_of(records: Records) -> list[list[int]]:
    """List the tokens of each text, without padding.

    Raises:
        NotApplicable: the records are no texts.
    """
    texts = texts_of(records)
    pairs = zip(texts.ids.tolist(), texts.lengths.tolist(), strict=True)
    return [ids[:length] for ids, length in pairs]


def task_of(records: Records) -> Task:
    """Infer from the labels which loss a text model is trained with."""
    if records.labels.dim() == 1:
        return "class"
    ids, labels = texts_of(records).ids, records.labels
    if labels.shape != ids.shape:
        raise NotApplicable("the labels are neither a class of each text nor one of each token")
    asked = labels[:, :-1] != IGNORED
    return "next-token" if bool((labels[:, :-1] == ids[:, 1:])[asked].all()) else "masked"


def _vocabulary(model: FunctionalModel, batch: Records) -> int:
    """Count the rows of the token table; without a table, the tokens that the batch needs.

    Raises:
        NotApplicable: there are tables, none of which is read at more than half of the tokens.
    """
    ids = texts_of(batch).ids
    with InputCapture() as looked_up:
        model.check(model.cast(batch.inputs[:1]), model.cast(batch.labels[:1]))
    first = ids[0].to(model.device)
    reads: Counter[int] = Counter()
    for table, read in looked_up.tables:
        reads[id(table)] += read.numel()
    if reads and 2 * max(reads.values()) <= first.numel():
        raise NotApplicable("the records are no texts: their columns have tables of their own")
    rows = [len(table) for table, read in looked_up.tables if torch.equal(read.flatten(), first)]
    return max(rows, default=int(ids.max()) + 1)
