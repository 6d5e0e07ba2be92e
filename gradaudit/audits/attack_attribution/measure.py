"""Simulates rounds whose summed updates alone are seen, attacks the sums, scores the rows."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn

from gradaudit.attacks.layerwise.fully_connected import readers
from gradaudit.audits.attack_attribution import AttackAttribution, AttributionOptions
from gradaudit.audits.attack_attribution.recovery import RoundSum, ValueGrid, groups, recovered
from gradaudit.audits.rows import Rows
from gradaudit.audits.sharing_options import RATE
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.core.statistics.intervals import clustered
from gradaudit.defenses.defense_chain import Chain
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import seen
from gradaudit.subject import Subject

_CLOSE = 1e-3
"""Largest difference of any number, over the range of all, up to which a recovered row is right."""
_NONE_READS = (
    "no fully connected layer with bias that shares its update reads the records as they are"
)


@dataclass(frozen=True)
class AttributionScore:
    """The counts of one repetition.

    Attributes:
        rows: of all clients.
        found: of them that are recovered.
        invented: recovered rows that no client has.
        grouped, right: pairs of rows that are grouped, and those that one client owns.
        owned, possible: pairs of recovered rows that one client owns, and all of them.
    """

    rows: int
    found: int
    invented: int
    grouped: int
    right: int
    owned: int
    possible: int


def gradients(audit: AttackAttribution, subject: Subject) -> float:
    """Count the gradients of the clients' training.

    Raises:
        NotApplicable: the model does not begin with a fully connected layer, or records are few.
    """
    options = audit.options
    _first_layer(subject)
    _expect(subject, options)
    return options.passes(options.batch_size) * options.repeats * options.rounds


def run(audit: AttackAttribution, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Attack the sums of each repetition.

    Raises:
        NotApplicable: the model does not begin with a fully connected layer, or records are few.
        UsageError: the defenses contradict the options.
    """
    options, name = audit.options, _first_layer(subject)
    _expect(subject, options)
    sharing = options.sharing(subject.defenses, subject.hidden)
    scores = []
    with progress.task("attack attribution", options.repeats) as advance:
        for number in range(options.repeats):
            scores.append(_repetition(subject, options, sharing, name, number))
            advance(1)
    facts: dict[str, JsonValue] = {"clients": 1 + options.others, "rounds": options.rounds}
    facts["layer"] = name
    yield from rows_of(Rows(AttackAttribution, facts=facts), scores)


def _expect(subject: Subject, options: AttributionOptions) -> None:
    if options.records_behind >= len(subject.records):
        raise NotApplicable(
            f"the clients of a sum have {options.records_behind} records, and the data has "
            f"{len(subject.records)}: give more records, or lower --others or --batch-size"
        )
    clipping = next((x for x in Chain(subject.defenses).acting if x.of_records), None)
    if clipping and "algorithm" not in options.model_fields_set:
        raise NotApplicable(
            f"its clients train locally by default, and {clipping} clips single records, of which "
            "their updates are no mean; --algorithm fedsgd attacks gradients"
        )


def _first_layer(subject: Subject) -> str:
    """The name of the fully connected layer with bias that reads the records themselves."""
    if subject.records.looked_up:
        raise NotApplicable("records of tokens or codes are not read by a fully connected layer")
    shape = subject.records.inputs.shape[1:]
    records = torch.rand(2, *shape, generator=torch_rng(0, "attribution"))
    layers = (m for m in subject.target.model.modules() if isinstance(m, nn.Linear))
    if all(layer.in_features != shape.numel() for layer in layers):
        raise NotApplicable(_NONE_READS)
    model = FunctionalModel.of(subject.target, dtype=torch.float64)
    for reader in readers(model, model.cast(records)):
        trained = {f"{reader.layer}.weight", f"{reader.layer}.bias"} <= model.parameters.keys()
        shared = trained and reader.layer not in subject.hidden
        if reader.of_record and reader.bias and reader.times == 1 and shared:
            return reader.layer
    raise NotApplicable(_NONE_READS)


def _repetition(
    subject: Subject,
    options: AttributionOptions,
    sharing: SharingProtocol,
    name: str,
    number: int,
) -> AttributionScore:
    order = rng(subject.seed, "attribution", "records", number).permutation(len(subject.records))
    count = options.records_behind
    clients, others = (subject.records.take(part) for part in (order[:count], order[count:]))
    draws = torch_rng(subject.seed, "attribution", number, device=subject.target.device)
    target = replace(subject.target, model=copy.deepcopy(subject.target.model))
    sums = []
    for _ in range(options.rounds):
        given = seen(target, clients.inputs, clients.labels, sharing, draws, dtype=target.precision)
        sums.append(_sum_of(target, given, name))
        with torch.no_grad():
            for key, weight in target.model.named_parameters():
                if key in given:
                    weight.sub_((options.rate or RATE) * given[key].to(weight))
    rows = recovered(sums, ValueGrid.of(others.inputs.flatten(1).double().cpu()))
    owners = np.arange(count) // options.batch_size
    return scored(rows, groups(sums, rows), clients.inputs.flatten(1).double().cpu(), owners)


def _sum_of(target: Target, given: dict[str, Tensor], name: str) -> RoundSum:
    keys = f"{name}.weight", f"{name}.bias"
    weight, bias = (target.model.get_parameter(key).detach().cpu().clone() for key in keys)
    return RoundSum.of(weight, bias, [given[key].detach().cpu() for key in keys])


def scored(
    rows: Tensor, group: NDArray[np.int64], truth: Tensor, owners: NDArray[np.int64]
) -> AttributionScore:
    """Compare recovered rows (rows, inputs) and their groups with the clients' rows.

    A row that several clients own belongs to the first of them; it counts once.
    """
    if not len(rows):
        return AttributionScore(len(truth), 0, 0, 0, 0, 0, 0)
    apart = torch.cdist(rows, truth, p=torch.inf)
    nearest = apart.argmin(dim=1).numpy()
    close = (apart.amin(dim=1) <= _CLOSE * float(truth.max() - truth.min())).numpy()
    of, group = owners[nearest[close]], group[close]
    upper = np.triu(np.ones((len(of), len(of)), bool), 1)
    same, together = (upper & (x[:, None] == x) for x in (of, group))
    return AttributionScore(
        rows=len(truth),
        found=len(np.unique(nearest[close])),
        invented=int((~close).sum()),
        grouped=int(together.sum()),
        right=int((same & together).sum()),
        owned=int(same.sum()),
        possible=int(upper.sum()),
    )


def rows_of(rows: Rows, scores: list[AttributionScore]) -> Iterator[Measurement]:
    """The audit's rows, with intervals over repetitions."""
    counts = {key: np.array([getattr(s, key) for s in scores]) for key in vars(scores[0])}
    chance = counts["owned"] / np.maximum(counts["possible"], 1)
    named = counts["found"] + counts["invented"]
    for metric, part, whole, why, by_chance in (
        ("rows_recovered", "found", counts["rows"], "", None),
        ("pair_precision", "right", counts["grouped"], "no rows were linked to each other", chance),
        (
            "pair_recall",
            "right",
            counts["owned"],
            "no two rows of one client were recovered",
            chance * counts["grouped"] / np.maximum(counts["owned"], 1),
        ),
        ("rows_invented", "invented", named, "no row was recovered", None),
    ):
        has = whole > 0
        if not has.any():
            yield from rows.skipped(why, [metric])
            continue
        value, interval = clustered(counts[part][has] / whole[has], whole[has].astype(float))
        details: dict[str, JsonValue] = {"of": int(whole.sum())}
        if by_chance is not None:
            details["by_chance"] = float(np.average(by_chance[has], weights=whole[has]))
        yield rows.measured(metric, value, interval=interval, n=int(has.sum()), details={**details})
