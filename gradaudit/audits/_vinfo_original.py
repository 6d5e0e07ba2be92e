"""Usable information about the input itself, from the success of reconstructions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._vinfo_layer_sets import LayerSet, layer_sets, skipped_rows
from gradaudit.audits._vinfo_options import ITERATIONS, VinfoOptions
from gradaudit.audits._vinfo_original_rows import OriginalRows
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction import Method
    from gradaudit.attacks.reconstruction.campaign import Campaign
    from gradaudit.attacks.reconstruction.observing import ThreatModel
    from gradaudit.information.original import FloatArray
    from gradaudit.models.target import Subject, Target


def original_rows(
    subject: "Subject", options: VinfoOptions, progress: Progress
) -> Iterator[Measurement]:
    """Rows of ``original_vinfo`` and ``original_success`` (Mo et al. 2022, eq. 4-6).

    Raises:
        NotApplicable: the records are no pictures in [0, 1], or updates are only seen in part.
        UsageError: a method is unknown, or has no restarts.
        AuditError: the model cannot be run on the records.
    """
    from gradaudit.attacks.reconstruction.success import expect_pictures

    expect_pictures(subject.records)
    methods = _family(options)
    newest = len(subject.targets)
    for number, target in enumerate(subject.targets, start=1):
        turn: Variant = {} if number == newest else {"round": number}
        yield from _Original(subject, options, target, methods, turn).rows(progress)


def original_passes(subject: "Subject", options: VinfoOptions) -> float:
    """Gradients of a record that all attacks on all sets of layers cost at most."""
    from gradaudit.attacks.reconstruction.success import expect_pictures

    try:
        expect_pictures(subject.records)
    except NotApplicable:
        return 0.0
    each = sum(method.steps(options.restarts) for method in _family(options).values())
    size = options.records_behind
    updates = max(subject.samples // size, 1) if subject.samples else options.updates
    sets = len(layer_sets(subject.layers, options.together))
    return each * size * updates * sets * len(subject.targets)


def _family(options: VinfoOptions) -> "dict[str, Method]":
    """The attacks, with the audit's steps where a method names none of its own."""
    from gradaudit.attacks.reconstruction import load_method, load_methods

    for text, method in load_methods(options.method, {}).items():
        if not method.restarts:
            raise UsageError(
                f"--method {text}: is run once and has no rate of success; --original takes "
                "attacks that start at random, as dlg, idlg and inverting-gradients"
            )
    steps = {text: options.iterations or ITERATIONS.get(_name(text)) for text in options.method}
    return {
        text: load_method(text, {} if count is None else {"iterations": count})
        for text, count in steps.items()
    }


def _name(text: str) -> str:
    return text.partition(":")[0]


@dataclass(frozen=True)
class _Original:
    """The attacks on one checkpoint.

    Attributes:
        subject: the run's.
        options: the audit's.
        target: the checkpoint.
        methods: the family.
        turn: the variant of the checkpoint.
    """

    subject: "Subject"
    options: VinfoOptions
    target: "Target"
    methods: "dict[str, Method]"
    turn: Variant

    def rows(self, progress: Progress) -> Iterator[Measurement]:
        """All sets of layers, and why others are not attacked."""
        from gradaudit.attacks.reconstruction.success import guesses

        seed, count = self.subject.seed, self.options.guesses
        guessed = guesses(self._campaign.observed, count, seed)
        sets = layer_sets(self.subject.layers, self.options.together)
        for chosen in sets:
            yield from self._of_set(chosen, guessed, progress)
        yield from self._without({len(chosen.layers) for chosen in sets})

    @cached_property
    def _observer(self) -> "ThreatModel":
        from gradaudit.attacks.reconstruction.observing import ThreatModel

        sharing = self.options.sharing(self.subject.defenses, self.subject.hidden)
        return ThreatModel(self.target, sharing, self.subject.layers, self.options.known_labels)

    @cached_property
    def _campaign(self) -> "Campaign":
        from gradaudit.attacks.reconstruction.campaign import Campaign, Choice

        choice = Choice(self.options.records_behind, self.options.updates)
        return Campaign.prepare(self.subject, choice, self._observer, self.options.restarts)

    def _of_set(
        self, chosen: LayerSet, guessed: "FloatArray", progress: Progress
    ) -> Iterator[Measurement]:
        from gradaudit.attacks.reconstruction.success import seen, similarities

        observer = replace(self._observer, layers=chosen.layers)
        observed = [
            seen(each, observer.visible(each.view.update)) for each in self._campaign.observed
        ]
        seed, restarts = self.subject.seed, self.options.restarts
        try:
            found = similarities(
                self.methods, observed, restarts, seed, progress, self.subject.jobs
            )
        except NotApplicable as error:
            yield from skipped_rows(chosen, self.turn, str(error))
            return
        rows = OriginalRows(chosen, self.turn, self._facts(chosen), seed)
        yield from rows.of(found, guessed, self.options.threshold)

    def _without(self, attacked: set[int]) -> Iterator[Measurement]:
        """Every layer has a row, and every size that was asked for."""
        if 1 not in attacked:
            asked = " ".join(f"--together {size}" for size in self.options.together)
            for layer in self.subject.layers:
                why = f"single layers are not attacked: {asked}"
                yield from skipped_rows(LayerSet((layer,)), self.turn, why)
        for size in self.options.together:
            if size not in attacked:
                why = f"no {size} consecutive layers of the model are shown"
                variant: Variant = {**self.turn, "layers": f"{size} layers"}
                yield from skipped_rows(None, variant, why)

    def _facts(self, chosen: LayerSet) -> dict[str, JsonValue]:
        """What every row of a set says."""
        from gradaudit.information.original import ceiling

        knowledge = dict(self._campaign.observed[0].view.knowledge)
        told = [text for text, method in self.methods.items() if not method.searches_labels]
        labels = f"known to {', '.join(told)}" if self.options.known_labels and told else "unknown"
        return {
            "knowledge": {**knowledge, "layers": chosen.names, "labels": labels},
            "chosen_by": "the truth: the best member of the family, by definition",
            "family": {
                text: method.options.model_dump(mode="json")
                for text, method in self.methods.items()
            },
            "restarts": self.options.restarts,
            "guesses": self.options.guesses,
            "batch_size": self._campaign.batch,
            "updates": len(self._campaign.observed),
            "ceiling": ceiling(self.options.restarts),
        }
