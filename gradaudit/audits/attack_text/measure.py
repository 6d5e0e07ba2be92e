"""Recovers texts from updates, and tests each layer for evidence of a text."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.campaign import (
    Choice,
    chosen_batches,
    example_name,
    expect_folder,
)
from gradaudit.audits.attack_reconstruct.measure import attacked_together
from gradaudit.audits.attack_text import AttackText, TextOptions
from gradaudit.audits.attack_text.linear_maps import Structure, adapters, predicted
from gradaudit.audits.attack_text.presence import Presence, Texts, decoys_of, p_value, wins
from gradaudit.audits.attack_text.recovery.recover import Answer, recover
from gradaudit.audits.attack_text.span import most_tokens
from gradaudit.audits.attack_text.text_examples import TextExamples
from gradaudit.audits.attack_text.text_scores import (
    GIVEN,
    NO_OTHERS,
    BatchAnswers,
    Shares,
    TextScores,
    facts_of,
    rows_of_adapters,
    rows_of_layers,
    rows_of_model,
    scores_of,
)
from gradaudit.audits.attack_text.text_threat import TextThreat, ids_of, texts_of
from gradaudit.audits.attack_text.view import TextView
from gradaudit.audits.rows import Rows
from gradaudit.core.randomness import number as number_of
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.sharing.captured import CapturedUpdate, captured_update
from gradaudit.subject import SINGLE, Subject


def gradients(audit: AttackText, subject: Subject) -> float:
    """Count the gradients, in single precision, of batches, search, and texts with their decoys.

    Raises:
        NotApplicable: the records are no texts.
    """
    texts_of(subject.records)
    options = audit.options
    texts = options.records_behind * (options.count(subject) + 1)
    return SINGLE * texts * (2 + 6.0 * bool(options.search) + options.decoys)


def run(audit: AttackText, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack, and yield rows; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: the records are no texts.
        UsageError: an option is wrong for these records.
        CheckpointError: a captured update is refused.
    """
    options, count = audit.options, len(subject.records)
    texts_of(subject.records)
    if options.save_examples is not None:
        if not options.search:
            raise UsageError("--save-examples shows texts that are found; leave out --no-search")
        expect_folder(options.save_examples)
    if max(options.given, default=0) >= count:
        raise UsageError(f"--given {max(options.given)}: the data has {count} records, from 0")
    for targets, variant in attacked_together(subject, options):
        sharing = options.sharing(subject.defenses, subject.hidden)
        *earlier, newest = (TextThreat(target, sharing, subject.layers) for target in targets)
        threat = replace(newest, earlier=tuple(earlier))
        rows = Rows(type(audit), variant)
        yield from _Attack(options, subject, threat).rows(rows, progress)


@dataclass(frozen=True)
class _Attack:
    options: TextOptions
    subject: Subject
    threat: TextThreat

    def rows(self, rows: Rows, progress: Progress) -> Iterator[Measurement]:
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
        if options.save_examples is not None:
            truth = [ids_of(batch) for batch in batches] if scored else []
            name = example_name("text", rows.variant)
            examples = TextExamples(options.save_examples, name, self.subject.records.spelling)
            examples.write(answers.answers, truth)
        rows = rows.of({}, facts_of(answers, view, captured))
        yield from rows_of_model(rows, answers, options, scored=scored)
        yield from rows_of_adapters(rows, answers)
        yield from self._of_given(rows, first)
        yield from rows_of_layers(rows, answers, view, self.subject, scored=scored)

    def _of_given(self, rows: Rows, view: TextView | None) -> Iterator[Measurement]:
        options, records = self.options, self.subject.records
        if not options.given or view is None:
            yield from rows.skipped("no text is asked about; name some with --given", [GIVEN])
            return
        presence = Presence(view, self.threat.layers)
        for number in options.given:
            texts = texts_of(records.take(np.array([number])))
            decoys = self._decoys(texts, number)
            asked = rows.of({"text": number})
            if decoys is None:
                yield from asked.skipped(NO_OTHERS, [GIVEN])
                continue
            true, others = presence.evidence(texts), presence.evidence(decoys)
            if not true:
                yield from asked.skipped("no layer shows anything about a text", [GIVEN])
                continue
            value = p_value([torch.cat([true[layer], others[layer]]) for layer in true])
            details: dict[str, JsonValue] = {"layers": list(true)}
            yield asked.measured(GIVEN, value, n=options.decoys, details=details)

    def _batches(self, captured: CapturedUpdate | None) -> list[Records]:
        """The attacked batches, and one more for the floor of the last, where there is one."""
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
            low, options = adapters(structure), self.options
            by_adam = options.algorithm == "fedavg" and options.optimizer != "sgd"
            if low is not None and not by_adam:
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
                for layer, shares in self._decoy_wins(found, presence, texts, number).items():
                    shares_of.setdefault(layer, []).append(shares)
        found.tokens.append(sum(view.inner))
        for layer in presence.places:
            span = presence.span(layer)
            found.ranks.setdefault(layer, []).append(None if span is None else span.rank)

    def _decoy_wins(
        self, found: BatchAnswers, presence: Presence, batch: Records, number: int
    ) -> dict[str, Shares]:
        """Compute, by layer, the share of its decoys that each text fits better than, (texts,)."""
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
        """Collect the tokens of all other texts, (tokens,); without any, the whole vocabulary."""
        others = self._others(texts_of(batch))
        if not len(others):
            return torch.arange(vocabulary)
        filled = torch.arange(others.ids.shape[1]) < others.lengths[:, None]
        return others.ids[filled]

    def _others(self, texts: Texts) -> Texts:
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
    return scores_of(answer.texts, answer.tokens, ids_of(batch))


def _filled(structure: Structure) -> str:
    """A warning where the tokens fill the input space, with the remedy; else empty.

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
        f"span distinguishes them from others; {' or '.join(lifted) or 'a wider model'} would "
        "lift it"
    )
