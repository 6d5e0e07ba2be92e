"""Scores recovered texts against a batch's true texts, and makes rows of the scores."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.optimize import linear_sum_assignment

from gradaudit.audits.attack_text import TextOptions
from gradaudit.audits.attack_text.presence import Presence
from gradaudit.audits.attack_text.recovery.recover import Answer
from gradaudit.audits.attack_text.span import is_void
from gradaudit.audits.attack_text.view import TextView
from gradaudit.audits.rows import NO_TRUTH, Rows
from gradaudit.core.statistics.intervals import clustered
from gradaudit.report import Measurement
from gradaudit.sharing.captured import CapturedUpdate
from gradaudit.subject import Subject

ANSWERED = ("tokens_recovered", "sequences_recovered", "rouge1", "rouge2")
OF_LAYERS = ("text_auroc", "span_rank", "span_rank_share")
_NO_SPAN = "no linear map over positions, whose gradient would have a span"
NO_OTHERS = "the data hold no other text to distinguish a text of the batch from"
GIVEN = "text_p_value"
_NO_ADAPTERS = (
    "no low-rank maps that see each token by itself were attacked, or Adam made the update, whose "
    "steps are no sums of gradients"
)
Shares = NDArray[np.float64]
Text = Sequence[int]


@dataclass(frozen=True)
class TextScores:
    """Scores of the texts recovered from one batch; shares in [0, 1].

    Attributes:
        tokens: how many of the batch's tokens were named and how many there are.
        sequences: how many of the batch's texts were named whole and how many there are.
        rouge1: mean over texts, each compared with the answer that an optimal assignment gives it.
        rouge2: the same of pairs.
    """

    tokens: tuple[int, int]
    sequences: tuple[int, int]
    rouge1: float
    rouge2: float


def scores_of(answers: Sequence[Text], tokens: Text, texts: Sequence[Text]) -> TextScores:
    """Score recovered texts against the true texts of a batch.

    Args:
        answers: the texts that were named, no more than there are.
        tokens: the tokens that were named, no more than there are, each as often as it was.
        texts: the batch's.
    """
    present = Counter(token for text in texts for token in text)
    named = sum((present & Counter(tokens)).values())
    matched = np.array([shares for _, _, shares in assigned(answers, texts)]).mean(axis=0)
    whole = sum((Counter(map(tuple, texts)) & Counter(map(tuple, answers))).values())
    return TextScores(
        (named, present.total()), (whole, len(texts)), float(matched[0]), float(matched[1])
    )


def assigned(
    answers: Sequence[Text], texts: Sequence[Text]
) -> Iterator[tuple[Text, Text, tuple[float, float]]]:
    """Yield each text, its answer and their ROUGE-1 and ROUGE-2, by an optimal assignment.

    The answer is empty where there are fewer answers than texts.
    """
    offered = [*answers, *([()] * (len(texts) - len(answers)))]
    rouges = np.array([[(rouge(x, t, 1), rouge(x, t, 2)) for x in offered] for t in texts])
    best = np.array(linear_sum_assignment(rouges.sum(axis=2), maximize=True))
    for row, column in best.T.tolist():
        one, two = rouges[row, column].tolist()
        yield texts[row], offered[column], (one, two)


def rouge(answer: Text, text: Text, size: int) -> float:
    """Compute ROUGE-n, the F-measure of runs of ``size`` tokens (Lin 2004, section 2).

    Two texts without such a run are alike only where they are equal.
    """
    ours, theirs = _runs(answer, size), _runs(text, size)
    if not ours or not theirs:
        return float(list(answer) == list(text))
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def _runs(text: Text, size: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(text[start:] for start in range(size)), strict=False))


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


def facts_of(
    found: BatchAnswers, view: TextView, captured: CapturedUpdate | None
) -> dict[str, JsonValue]:
    """Collect the facts that all rows of an attack on one checkpoint share."""
    facts: dict[str, JsonValue] = {
        "knowledge": dict(view.knowledge),
        "task": view.task,
        "tokens": list(found.tokens),
    }
    if found.answers:
        facts["searches"] = [dict(answer.facts) for answer in found.answers]
    return facts if captured is None else {**facts, "update": captured.details}


def rows_of_model(
    rows: Rows, found: BatchAnswers, options: TextOptions, *, scored: bool
) -> Iterator[Measurement]:
    """Make rows of the recovered texts; they are ``scored`` where the truth is known."""
    if not options.search:
        yield from rows.skipped("no text was searched for (--no-search)", ANSWERED)
        return
    if not scored:
        yield from rows.skipped(NO_TRUTH, ANSWERED)
        return
    for metric in ANSWERED:
        value, interval = _mean(metric, found.scores)
        floor = _mean(metric, found.floors)[0] if found.floors else None
        details: dict[str, JsonValue] = {"floor": floor}
        if found.void and metric == ANSWERED[0]:
            details["remark"] = found.void
        count = len(found.scores)
        yield rows.measured(metric, value, interval=interval, n=count, details=details)


def rows_of_adapters(rows: Rows, found: BatchAnswers) -> Iterator[Measurement]:
    """Make the row of the share of tokens that is predicted for low-rank adapters."""
    if not found.predicted:
        yield from rows.skipped(_NO_ADAPTERS, ["lora_predicted"])
        return
    details: dict[str, JsonValue] = {"rank": found.outputs, "by_batch": list(found.predicted)}
    if found.scores:
        details["measured"] = _mean("tokens_recovered", found.scores)[0]
    value, count = float(np.mean(found.predicted)), len(found.predicted)
    yield rows.measured("lora_predicted", value, n=count, details=details)


def _mean(metric: str, scores: Sequence[TextScores]) -> tuple[float, tuple[float, float]]:
    """Average over batches, weighted by their numbers of tokens or texts."""
    if metric.startswith("rouge"):
        shares = np.array([getattr(score, metric) for score in scores])
        return clustered(shares, np.array([float(score.sequences[1]) for score in scores]))
    counts = np.array([getattr(score, metric.partition("_")[0]) for score in scores], dtype=float)
    return clustered(counts[:, 0] / counts[:, 1], counts[:, 1])


def rows_of_layers(
    rows: Rows, found: BatchAnswers, view: TextView, subject: Subject, *, scored: bool
) -> Iterator[Measurement]:
    """Make rows of every layer's evidence of texts and of its span."""
    presence = Presence(view, subject.layers)
    for layer in subject.layers:
        name = layer.name
        if not scored:
            yield from rows.skipped(NO_TRUTH, ["text_auroc"], [name])
        elif name in found.presence:
            yield _presence_row(rows, found, name)
        else:
            why = NO_OTHERS if found.alone else _why_no_presence(presence, name)
            yield from rows.skipped(why, ["text_auroc"], [name])
        if any(rank is not None for rank in found.ranks.get(name, ())):
            yield from _rank_rows(rows, found, name, presence.places[name].width)
        else:
            yield from rows.skipped(_why(presence, name), OF_LAYERS[1:], [name])


def _rank_rows(rows: Rows, found: BatchAnswers, layer: str, width: int) -> Iterator[Measurement]:
    """Make rows of means over the batches in which the layer is not void."""
    pairs = zip(found.ranks[layer], found.tokens, strict=True)
    known = [(rank, tokens) for rank, tokens in pairs if rank is not None]
    details: dict[str, JsonValue] = {"ranks": list(found.ranks[layer]), "width": width}
    ranks, shares = fmean(rank for rank, _ in known), fmean(rank / tokens for rank, tokens in known)
    for metric, value in (("span_rank", ranks), ("span_rank_share", shares)):
        yield rows.measured(metric, value, layer=layer, n=len(known), details=details)


def _presence_row(rows: Rows, found: BatchAnswers, layer: str) -> Measurement:
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
    return clustered(
        np.array([shares.mean() for shares in batches]),
        np.array([float(len(shares)) for shares in batches]),
    )


def _why_no_presence(presence: Presence, layer: str) -> str:
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
