"""Gradient-release mechanisms: one a file, found by name, defenses, and the user's own."""

from gradaudit.defenses import defenses
from gradaudit.dp.mechanisms.base import Mechanism, Noiseless, Promise, ReleaseLaw
from gradaudit.dp.mechanisms.custom import DefenseMechanism, FileMechanism
from gradaudit.errors import UsageError
from gradaudit.noise import Noise
from gradaudit.parts import discover
from gradaudit.specs import Spec, arguments, suggest
from gradaudit.user_code import load_callable

__all__ = [
    "DefenseMechanism",
    "FileMechanism",
    "Mechanism",
    "Noiseless",
    "Promise",
    "ReleaseLaw",
    "load_mechanism",
    "mechanisms",
]

OPTION = "--mechanism"


def mechanisms() -> dict[str, type[Mechanism]]:
    """The mechanisms that have a name of their own."""
    return discover("gradaudit.dp.mechanisms", Mechanism)


def load_mechanism(text: str, noise: Noise | None = None) -> Mechanism:
    """The mechanism that ``NAME:key=value,…``, ``FILE.py:NAME`` or ``package.module:NAME`` names.

    A name is that of a mechanism, or of a deterministic defense.

    Args:
        text: as on the command line.
        noise: what a mechanism from a file is declared to add.

    Raises:
        UsageError: no such mechanism, file or function, or an option that it does not take.
    """
    scheme, _, rest = text.partition(":")
    known = mechanisms()
    if scheme in known:
        pairs = tuple(_pair(text, item) for item in rest.split(",") if item)
        missing = {"clip", "sigma"} - {key for key, _ in pairs}
        if missing:
            raise UsageError(f"{OPTION} {text}: no {min(missing)}; write {scheme}:clip=C,sigma=S")
        return known[scheme](**arguments(Spec(text, scheme, pairs), known[scheme]))
    if scheme in defenses():
        return DefenseMechanism.parse(text, OPTION)
    if not scheme.endswith(".py") and "." not in scheme:
        names = [*known, *(n for n, d in defenses().items() if d.deterministic and n not in known)]
        raise UsageError(
            f"{OPTION} {text}: no mechanism {scheme!r}{suggest(scheme, names)}; there are: "
            f"{', '.join(names)}, and your own as FILE.py:NAME"
        )
    return FileMechanism(load_callable(text, OPTION), text, noise)


def _pair(text: str, item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not key or not equals:
        raise UsageError(f"{OPTION} {text}: {item!r} is no option; write key=value,key=value")
    return key.strip(), value.strip()
