"""What rows say of defenses, in audits of what is not shared itself."""

from typing import TYPE_CHECKING

from pydantic import JsonValue

if TYPE_CHECKING:
    from gradaudit.models.target import Subject


def defenses_note(subject: "Subject", unapplied: str) -> dict[str, JsonValue]:
    """Details that tell which of a subject's defenses are not in the numbers; empty without any.

    Those that change the model are in them, but for one that does nothing in eval mode.

    Args:
        subject: with all its defenses.
        unapplied: why those of updates are not applied.
    """
    from gradaudit.defenses import Chain

    chain = Chain(subject.defenses)
    notes = [unapplied if chain.acting else "", chain.idle(subject.target.mode)]
    return {"defenses": "; ".join(filter(None, notes))} if any(notes) else {}
