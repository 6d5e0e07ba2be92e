"""What clients' replies are declared to hold beside their arrays (``--replies``)."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from gradaudit.audits.job.loading.chains import LoadedJob, Reply
from gradaudit.core.text import listed
from gradaudit.errors import UsageError

_NO_NUMBER = "{!r} is no number; write NAME=NUMBER, NAME=none, or NAME alone"


def replies_of(texts: Sequence[str]) -> list[Reply]:
    """Parse what replies are declared to hold; what is no number is a list or text of a mod."""
    found = []
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        number: float | str | None = value if equals else None
        with suppress(ValueError):
            number = float(value)
        found.append(Reply(name, number))
    return found


def declare(job: LoadedJob, replies: Sequence[Reply]) -> None:
    """Declare the numbers of replies to the chains that they are for.

    A name without a task is for the tasks whose replies usually hold it, unless one of these is
    declared to send none; where none does, for all. A constant beside none is a filter's or mod's.

    Raises:
        UsageError: a task is declared to send no number, and one beside that; a number is declared
            not to be sent that no reply is assumed to hold; or a usual number to be a text.
    """
    tasks = {chain.task for chain in job.chains}
    usual = {name for chain in job.chains for name in chain.numbers}
    for reply in replies:
        _expect_usual(job, reply, usual)
    for chain in job.chains:
        silent = f"{chain.task}.none"
        declared = []
        for reply in replies:
            task, _, name = reply.name.rpartition(".")
            if task in tasks:
                declared += [replace(reply, name=name)] if task == chain.task else []
            elif reply.name in usual:
                here = reply.name in chain.numbers and all(r.name != silent for r in replies)
                declared += [reply] if here else []
            else:
                declared.append(reply)
        none = [reply for reply in declared if (reply.name, reply.value) == ("none", None)]
        others = (r for r in declared if r.value is None and r not in none)
        _expect_one_way(declared)
        if none and (other := next(others, None)):
            typed = next(r.name for r in replies if r.name in ("none", silent))
            raise UsageError(
                f"--replies {typed}: replies of {chain.task} hold {other.name} too; leave out "
                f"{typed}, and write NAME=none for each number that is not sent"
            )
        chain.declare([Reply(), *(r for r in declared if r not in none)] if none else declared)


def _expect_one_way(declared: Sequence[Reply]) -> None:
    """Refuse a number that is declared to be sent and not to be sent.

    Raises:
        UsageError: there is one.
    """
    unsent = {reply.name for reply in declared if reply.value == "none"}
    for reply in declared:
        if reply.name in unsent and reply.value != "none":
            raise UsageError(
                f"--replies {reply.name}=none: another option declares that {reply.name} is sent; "
                "leave out one of them"
            )


def _expect_usual(job: LoadedJob, reply: Reply, usual: Collection[str]) -> None:
    """Refuse an undue NAME=none, and a text in place of a number.

    Raises:
        UsageError: the reply is one.
    """
    own = [chain for chain in job.chains if chain.task == reply.name.rpartition(".")[0]]
    name = reply.name.rpartition(".")[2] if own else reply.name
    if reply.value == "none" and all(name not in chain.numbers for chain in own or job.chains):
        known = [f"{chain.task}.{each}" for chain in job.chains for each in chain.numbers]
        raise UsageError(
            f"--replies {reply.name}=none: no reply is assumed to hold it; assumed are: "
            f"{listed(list(dict.fromkeys(known)), 12)}"
        )
    if reply.value is None and reply.name.endswith(".none") and not own:
        tasks = listed(list(dict.fromkeys(chain.task for chain in job.chains)), 12)
        raise UsageError(
            f"--replies {reply.name}: no results of such a task leave; those that do: {tasks}"
        )
    if isinstance(reply.value, str) and reply.value != "none" and name in usual:
        raise UsageError(f"--replies {reply.name}={reply.value}: {_NO_NUMBER.format(reply.value)}")


def expect_texts(replies: Sequence[Reply], added: Collection[str]) -> None:
    """Refuse a declared text that no filter or mod adds.

    Args:
        replies: what is declared.
        added: constants that filters and mods add, as ``name=value``.

    Raises:
        UsageError: there is one.
    """
    for reply in replies:
        texts = isinstance(reply.value, str) and reply.value != "none"
        if texts and f"{reply.name}={reply.value}" not in added:
            raise UsageError(
                f"--replies {reply.name}={reply.value}: {_NO_NUMBER.format(reply.value)}; "
                f"filters or mods add: {listed(sorted(added), 12) or 'nothing'}"
            )
