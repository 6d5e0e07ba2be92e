"""What reconstruction attacks declare, in words for the help: nothing is imported."""

from collections import defaultdict

from gradaudit.parts import declared

PACKAGE = "gradaudit.attacks.reconstruction"


def names_in_words() -> str:
    """The names of the attacks of this package: A, B or C."""
    *names, last = declared(PACKAGE)
    return f"{', '.join(names)} or {last}"


def default_steps_in_words() -> str:
    """How many steps attacks take by default: 300 for A and B, 2400 for C."""
    by_steps: dict[int, list[str]] = defaultdict(list)
    for name, attack in declared(PACKAGE).items():
        if (steps := attack.get("default_steps")) is not None:
            by_steps[steps].append(name)
    return ", ".join(
        f"{steps} for {' and '.join(names)}" for steps, names in sorted(by_steps.items())
    )
