"""Whether numbers are of the attacker's best case, or of the federation that the user described."""

from collections.abc import Sequence
from typing import Any

from gradaudit.audits.base import Audit, AuditOptions
from gradaudit.defenses import parse_defense
from gradaudit.deployment import Deployment, Setting
from gradaudit.models.target import hidden_layers
from gradaudit.report import Measurement
from gradaudit.subject import Subject


def with_setting(
    rows: Sequence[Measurement], audit: Audit[Any], subject: Subject
) -> Sequence[Measurement]:
    """The rows with ``details.setting``, where the audit attacks what clients share."""
    if not audit.options.seen():
        return rows
    setting = setting_of(audit.options, subject)
    return [row.with_details({"setting": setting}) for row in rows]


def setting_of(options: AuditOptions, subject: Subject) -> Setting:
    """``deployed`` where every option is the described federation's, else ``diagnostic``.

    So it is, too, where the federation does not say how many records are behind an update.
    """
    described = subject.deployment
    if described is None or not _same_subject(described, subject) or described.behind is None:
        return "diagnostic"
    wanted = type(options)(**type(options).deployed(described)).seen()
    settings = {**described.of_subject(), **described.of_updates()}
    wanted |= {name: value for name, value in settings.items() if name in wanted}
    return "deployed" if options.seen() == wanted else "diagnostic"


def _same_subject(described: Deployment, subject: Subject) -> bool:
    hidden = hidden_layers(subject.target.layers, described.hide)
    defenses = [str(parse_defense(text)) for text in described.defense]
    return (described.mode, defenses, hidden) == (
        subject.target.mode,
        [str(defense) for defense in subject.defenses],
        subject.hidden,
    )
