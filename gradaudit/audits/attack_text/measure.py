"""Texts that an attacker recovers from updates, and evidence of texts at each layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.campaign import Choice, chosen_batches
from gradaudit.audits.attack_reconstruct.measure import NO_TRUTH, attacked_rounds
from gradaudit.audits.attack_text import AttackText, TextOptions
from gradaudit.audits.attack_text.observing import TextThreat, texts_of
from gradaudit.audits.attack_text.presence import Presence, Texts, decoys_of, p_value, wins
from gradaudit.audits.attack_text.recovery.recover import Answer, recover
from gradaudit.audits.attack_text.scores import TextScores, scores_of
from gradaudit.audits.attack_text.span import is_void, most_tokens
from gradaudit.audits.attack_text.structure import Structure, adapters, predicted
from gradaudit.audits.attack_text.view import TextView
from gradaudit.audits.base import AuditCost
from gradaudit.audits.rows import Rows
from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.progress import Progress
from gradaudit.randomness import number as number_of
from gradaudit.randomness import rng, torch_rng
from gradaudit.report import Measurement
from gradaudit.sharing.captured import CapturedUpdate, captured_update
from gradaudit.statistics.intervals import clustered
from gradaudit.subject import Subject

ANSWERED = ("tokens_recovered", "sequences_recovered", "rouge1", "rouge2")
OF_MODEL = (*ANSWERED, "lora_predicted", "text_p_value")
OF_LAYERS = ("text_auroc", "span_rank", "span_rank_share")
_NO_SPAN = "no linear map over positions, whose gradient would have a span"
_NO_OTHERS = "the data hold no other text that one of the batch could be told from"
_GIVEN = "text_p_value"
_NO_ADAPTERS = "no low-rank maps that see each token by itself were attacked"
Shares = NDArray[np.float64]
_SEARCH = 6.0
"""Passes over one record that a search takes about."""


def cost(audit: AttackText, subject: Subject) -> AuditCost:
    """A gradient of each batch and of one more, a search, and each text with its decoys.

    Raises:
        NotApplicable: the records are no texts.
    """
    texts_of(subject.records)
    options = audit.options
    texts = options.records_behind * (options.count(subject) + 1)
    searched = _SEARCH if options.search else 0.0
    return AuditCost(
        texts * (2 + searched + options.decoys), calls=options.count(subject), double=False
    )


@dataclass
class BatchAnswers:
    """Answers to some batches and their scores; a floor is the score on another batch's texts.

    Attributes:
        answers: one a batch.
        scores: of the answers.
        floors: of the same answers against another batch's texts.
        presence: by layer, the share of its decoys that each text of a batch is likelier than.
        absence: the same of another batch's texts.
        ranks: by layer, of the span in each batch; None where it is void.
        tokens: positions that maps have a gradient of, in each batch.
        predicted: of low-rank adapters, the share of tokens expected from their ranks, a batch.
        outputs: how many outputs such adapters have together.
        alone: whether there are no texts beside a batch's, to draw decoys from.
        void: why no span identifies tokens, where a batch has too many, and what would lift it.
    """

    answers: list[Answer] = field(default_factory=list)
    scores: list[TextScores] = field(default_factory=list)
    floors: list[TextScores] = field(default_factory=list)
    presence: dict[str, list[Shares]] = field(default_factory=dict)
    absence: dict[str, list[Shares]] = field(default_factory=dict)
    ranks: dict[str, list[int | None]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    outputs: int = 0
    alone: bool = False
    void: str = ""


def run(audit: AttackText, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: the records are no texts.
        UsageError: an option is wrong for these records.
        CheckpointError: a captured update is refused.
    """
    options, count = audit.options, len(subject.records)
    texts_of(subject.records)
    if max(options.given, default=0) >= count:
        raise UsageError(f"--given {max(options.given)}: the data has {count} records, from 0")
    for target, variant in attacked_rounds(subject, options):
        sharing = options.sharing(subject.defenses, subject.hidden)
        threat = TextThreat(target, sharing, subject.layers)
        rows = Rows(type(audit), variant)
        yield from _Attack(options, subject, threat).rows(rows, progress)


@dataclass(frozen=True)
class _Attack:
    """The attack on one checkpoint."""

    options: TextOptions
    subject: Subject
    threat: TextThreat

    def rows(self, rows: Rows, progress: Progress) -> Iterator[Measurement]:
        """Rows of the model, then of every layer."""
        options, captured = self.options, None
        if options.update is not None:
            captured = captured_update(options.update, self.threat.target, options.rate)
        scored = captured is None or bool(options.records)
        batches = self._batches(captured)
        count = len(batches) - 1 if len(batches) > 1 and not options.records else len(batches)
        answers, first = BatchAnswers(), None
        with progress.task("attack text", count) as advance:
            for number in range(count):
                view = self._view(batches[number], number, captured)
                first = first or view
                others = batches[(number + 1) % len(batches)] if len(batches) > 1 else None
                self._attack(answers, view, batches[number], others, number, progress)
                advance(1)
        rows = rows.of({}, _facts(answers, view, captured))
        yield from _of_model(rows, answers, options, scored=scored)
        yield from _of_adapters(rows, answers)
        yield from self._of_given(rows, first)
        yield from _of_layers(rows, answers, view, self.subject, scored=scored)

    def _of_given(self, rows: Rows, view: TextView | None) -> Iterator[Measurement]:
        """Whether each text that was asked about is behind the first update."""
        options, records = self.options, self.subject.records
        if not options.given or view is None:
            yield from rows.skipped("no text is asked about; name some with --given", [_GIVEN])
            return
        presence = Presence(view, self.threat.layers)
        for number in options.given:
            texts = texts_of(records.take(np.array([number])))
            decoys = self._decoys(texts, number)
            asked = rows.of({"text": number})
            if decoys is None:
                yield from asked.skipped(_NO_OTHERS, [_GIVEN])
                continue
            true, others = presence.evidence(texts), presence.evidence(decoys)
            if not true:
                yield from asked.skipped("no layer tells anything of a text", [_GIVEN])
                continue
            value = p_value([torch.cat([true[layer], others[layer]]) for layer in true])
            details: dict[str, JsonValue] = {"layers": list(true)}
            yield asked.measured(_GIVEN, value, n=options.decoys, details=details)

    def _batches(self, captured: CapturedUpdate | None) -> list[Records]:
        """Those that are attacked, and one more for the floor of the last, where there is one."""
        options = self.options
        count = 1 if captured is not None else options.drawn(self.subject.samples) + 1
        choice = Choice(
            options.records_behind, count, options.records, options.update, options.rate
        )
        return chosen_batches(self.subject, choice)

    def _view(self, batch: Records, number: int, captured: CapturedUpdate | None) -> TextView:
        if captured is not None:
            return replace(self.threat, target=captured.target).view_of(batch, captured.update)
        device = self.threat.target.device
        return self.threat.view(
            batch, torch_rng(self.subject.seed, "text", "update", number, device=device)
        )

    def _attack(
        self,
        found: BatchAnswers,
        view: TextView,
        batch: Records,
        others: Records | None,
        number: int,
        progress: Progress,
    ) -> None:
        if self.options.search:
            structure = Structure.of(view)
            seed = number_of(self.subject.seed, "text", "search", number)
            answer = recover(view, structure, seed, progress)
            low = adapters(structure)
            if low is not None:
                pool = self._pool(batch, view.vocabulary)
                found.predicted.append(predicted(view, structure, low, pool, seed))
                found.outputs = low.outputs
            found.answers.append(answer)
            found.void = found.void or _filled(structure)
            found.scores.append(_scores(answer, batch))
            if others is not None:
                found.floors.append(_scores(answer, others))
        presence = Presence(view, self.threat.layers)
        for shares_of, texts in ((found.presence, batch), (found.absence, others)):
            if texts is not None:
                for layer, shares in self._told(found, presence, texts, number).items():
                    shares_of.setdefault(layer, []).append(shares)
        found.tokens.append(sum(view.inner))
        for layer in presence.places:
            span = presence.span(layer)
            found.ranks.setdefault(layer, []).append(None if span is None else span.rank)

    def _told(
        self, found: BatchAnswers, presence: Presence, batch: Records, number: int
    ) -> dict[str, Shares]:
        """The share of its decoys that each text is likelier than, (texts,), by layer."""
        texts = texts_of(batch)
        others = self._decoys(texts, number)
        if others is None:
            found.alone = True
            return {}
        true, decoys = presence.evidence(texts), presence.evidence(others)
        return {
            layer: wins(true[layer], decoys[layer].reshape(len(texts), -1)).numpy()
            for layer in true
        }

    def _pool(self, batch: Records, vocabulary: int) -> Tensor:
        """The tokens of all other texts, (tokens,); each of the vocabulary where there are none."""
        others = self._others(texts_of(batch))
        if not len(others):
            return torch.arange(vocabulary)
        filled = torch.arange(others.ids.shape[1]) < others.lengths[:, None]
        return others.ids[filled]

    def _others(self, texts: Texts) -> Texts:
        """The texts of the data that are not among these."""
        pool = texts_of(self.subject.records)
        same = (pool.ids[:, None] == texts.ids).all(dim=2).any(dim=1)
        return Texts(pool.ids[~same], pool.lengths[~same])

    def _decoys(self, texts: Texts, number: int) -> Texts | None:
        """The decoys of each of some texts; None where the data has no other texts."""
        others = self._others(texts)
        if not len(others):
            return None
        draws = rng(self.subject.seed, "text", "decoys", number)
        return decoys_of(texts, others, self.options.decoys, draws)


def _scores(answer: Answer, batch: Records) -> TextScores:
    texts = texts_of(batch)
    pairs = zip(texts.ids.tolist(), texts.lengths.tolist(), strict=True)
    return scores_of(answer.texts, answer.tokens, [ids[:length] for ids, length in pairs])


def _filled(structure: Structure) -> str:
    """That tokens fill what comes in where each stands for itself, and what lifts it; else empty.

    Fewer tokens leave dimensions free; the rows of the embedding name tokens whatever their number.
    """
    places = [place for place in structure.places if place.local and place.shared]
    if not places:
        return ""
    view, width = places[0].view, max(place.width for place in places)
    tokens, room = sum(view.inner), most_tokens(width)
    if tokens <= room:
        return ""
    texts, length = room // view.length, room // view.sequences
    fewer = [
        *([f"--batch-size {texts} or less"] if texts else []),
        *([f"length={length} or less in --data"] if length > 1 else []),
    ]
    table = view.table is not None and view.table not in view.update
    lifted = [*fewer, *([f"the embedding ({view.table}), which is left out"] if table else [])]
    return (
        f"the batch's {tokens} tokens fill the {width} dimensions of what comes in, so that no "
        f"span tells them from others; {' or '.join(lifted) or 'a wider model'} would lift it"
    )


def _facts(
    found: BatchAnswers, view: TextView, captured: CapturedUpdate | None
) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {
        "knowledge": dict(view.knowledge),
        "task": view.task,
        "tokens": list(found.tokens),
    }
    if found.answers:
        facts["searches"] = [dict(answer.facts) for answer in found.answers]
    return facts if captured is None else {**facts, "update": captured.details}


def _of_model(
    rows: Rows, found: BatchAnswers, options: TextOptions, *, scored: bool
) -> Iterator[Measurement]:
    if not options.search:
        yield from rows.skipped("no text was searched for (--no-search)", ANSWERED)
        return
    if not scored:
        yield from rows.skipped(NO_TRUTH, ANSWERED)
        return
    for metric in ANSWERED:
        value, interval = _mean(metric, found.scores)
        floor = _mean(metric, found.floors)[0] if found.floors else None
        count = len(found.scores)
        details: dict[str, JsonValue] = {"floor": floor}
        if found.void and metric == ANSWERED[0]:
            details["remark"] = found.void
        yield rows.measured(
            metric,
            value,
            interval=interval,
            n=count,
            details=details,
        )


def _of_adapters(rows: Rows, found: BatchAnswers) -> Iterator[Measurement]:
    """The share of tokens that is expected of low-rank adapters, beside what was measured."""
    if not found.predicted:
        yield from rows.skipped(_NO_ADAPTERS, ["lora_predicted"])
        return
    details: dict[str, JsonValue] = {"rank": found.outputs, "by_batch": list(found.predicted)}
    if found.scores:
        details["measured"] = _mean("tokens_recovered", found.scores)[0]
    value, count = float(np.mean(found.predicted)), len(found.predicted)
    yield rows.measured("lora_predicted", value, n=count, details=details)


def _mean(metric: str, scores: Sequence[TextScores]) -> tuple[float, tuple[float, float]]:
    """Over batches, each as often as it has tokens or texts."""
    if metric.startswith("rouge"):
        shares = np.array([getattr(score, metric) for score in scores])
        return clustered(shares, np.array([float(score.sequences[1]) for score in scores]))
    counts = np.array([getattr(score, metric.partition("_")[0]) for score in scores], dtype=float)
    return clustered(counts[:, 0] / counts[:, 1], counts[:, 1])


def _of_layers(
    rows: Rows, found: BatchAnswers, view: TextView, subject: Subject, *, scored: bool
) -> Iterator[Measurement]:
    presence = Presence(view, subject.layers)
    for layer in subject.layers:
        name = layer.name
        if not scored:
            yield from rows.skipped(NO_TRUTH, ["text_auroc"], [name])
        elif name in found.presence:
            yield _told_row(rows, found, name)
        else:
            why = _NO_OTHERS if found.alone else _why_not_told(presence, name)
            yield from rows.skipped(why, ["text_auroc"], [name])
        if any(rank is not None for rank in found.ranks.get(name, ())):
            yield from _rank_rows(rows, found, name, presence.places[name].width)
        else:
            yield from rows.skipped(_why(presence, name), OF_LAYERS[1:], [name])


def _rank_rows(rows: Rows, found: BatchAnswers, layer: str, width: int) -> Iterator[Measurement]:
    """Means over the batches in which the layer is not void."""
    pairs = zip(found.ranks[layer], found.tokens, strict=True)
    known = [(rank, tokens) for rank, tokens in pairs if rank is not None]
    details: dict[str, JsonValue] = {"ranks": list(found.ranks[layer]), "width": width}
    ranks, shares = fmean(rank for rank, _ in known), fmean(rank / tokens for rank, tokens in known)
    for metric, value in (("span_rank", ranks), ("span_rank_share", shares)):
        yield rows.measured(metric, value, layer=layer, n=len(known), details=details)


def _told_row(rows: Rows, found: BatchAnswers, layer: str) -> Measurement:
    value, interval = _auroc(found.presence[layer])
    floor: JsonValue = None
    if layer in found.absence:
        level, ends = _auroc(found.absence[layer])
        floor = {"value": level, "interval": list(ends)}
    return rows.measured(
        "text_auroc",
        value,
        layer=layer,
        interval=interval,
        n=sum(map(len, found.presence[layer])),
        details={"floor": floor, "batches": len(found.presence[layer])},
    )


def _auroc(batches: Sequence[Shares]) -> tuple[float, tuple[float, float]]:
    """Over texts, of which those of one batch are dependent."""
    return clustered(
        np.array([shares.mean() for shares in batches]),
        np.array([float(len(shares)) for shares in batches]),
    )


def _why_not_told(presence: Presence, layer: str) -> str:
    view = presence.view
    if layer != presence.table or view.table is None:
        return _why(presence, layer)
    if view.table not in view.update:
        return "not shared"
    return _void(view.tokens, view.model.parameters[view.table].shape[1])


def _why(presence: Presence, layer: str) -> str:
    place = presence.places.get(layer)
    if place is None:
        return _NO_SPAN
    if not any(name in presence.view.update for name in place.names):
        return "not shared"
    tokens = sum(presence.view.inner)
    if is_void(place.width, tokens):
        return _void(tokens, place.width)
    return "its gradient is zero"


def _void(tokens: int, width: int) -> str:
    return f"void: {tokens} tokens may fill its {width} dimensions"
