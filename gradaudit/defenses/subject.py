"""What an audit looks at: targets, records, what defends them, and how to look at them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import JsonValue

from gradaudit.data.records import Records
from gradaudit.defenses.base import Defense
from gradaudit.defenses.chain import Chain
from gradaudit.models.target import Expected, Layer, Target
from gradaudit.randomness import rng


@dataclass(frozen=True)
class Subject:
    """What an audit looks at: targets, records and the run's settings.

    Attributes:
        targets: one per checkpoint, oldest first (one without checkpoints).
        records: every record of the data set.
        layers: the layers to report, a subset of the last target's.
        samples: how many records an audit looks at (None: the audit's own default).
        attributes: names of the private attributes asked about.
        defenses: what is done to updates before they are shared, in order.
        hidden: names of the layers that are never shared.
        seed: root of all randomness.
        jobs: worker processes.
        memory: bytes that one chunk of work may take.
        expected: the accuracy that the newest target is known to have.
    """

    targets: tuple[Target, ...]
    records: Records
    layers: tuple[Layer, ...]
    samples: int | None = None
    attributes: tuple[str, ...] = ()
    defenses: tuple[Defense[Any], ...] = ()
    hidden: tuple[str, ...] = ()
    seed: int = 0
    jobs: int = 1
    memory: int = 1 << 30
    expected: Expected | None = None

    @property
    def target(self) -> Target:
        """The newest target."""
        return self.targets[-1]

    def sample(self, default: int, most: int | None = None) -> Records:
        """The records to look at: ``samples`` (or ``default``) drawn without replacement.

        The same seed draws the same records for every audit, the first ones where it takes fewer.

        Args:
            default: how many, where ``samples`` does not say.
            most: how many at most, whatever ``samples`` says.
        """
        wanted = min(self.samples or default, most or len(self.records), len(self.records))
        order = rng(self.seed, "sample").permutation(len(self.records))
        return self.records.take(np.sort(order[:wanted]).astype(np.int64))


def defenses_note(subject: Subject, unapplied: str) -> dict[str, JsonValue]:
    """Details that tell which of a subject's defenses are not in the numbers; empty without any.

    Those that change the model are in them, but for one that does nothing in eval mode.

    ``unapplied`` says why those of updates are not applied.
    """
    chain = Chain(subject.defenses)
    notes = [unapplied if chain.acting else "", chain.idle(subject.target.mode)]
    return {"defenses": "; ".join(filter(None, notes))} if any(notes) else {}
