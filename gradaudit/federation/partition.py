"""Partition of records into a test set and clients' shares, even or by a Dirichlet law."""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from gradaudit.core.randomness import rng
from gradaudit.core.specs import suggest
from gradaudit.data.records import Records
from gradaudit.errors import UsageError

Indices = NDArray[np.int64]
Labels = NDArray[np.generic]

FORMS = ("iid", "dirichlet:A")


def split(records: Records, test_share: float | None, seed: int) -> tuple[Indices, Indices]:
    """Returns the indices of the training and of the test records.

    ``test_share`` is the share drawn for testing; without it non-members are for testing, where the
    records say who is a member, else a share of 0.2.

    Raises:
        UsageError: no record is left to train on.
    """
    if test_share is None and records.members is not None:
        train, test = np.flatnonzero(records.members), np.flatnonzero(~records.members)
    else:
        order = rng(seed, "federation", "split").permutation(len(records))
        tested = round(len(records) * (0.2 if test_share is None else test_share))
        test, train = np.sort(order[:tested]), np.sort(order[tested:])
    if not len(train):
        raise UsageError("no record is left to train on; give --test-share a smaller value")
    return train.astype(np.int64), test.astype(np.int64)


def partition(spec: str, labels: Labels, clients: int, generator: Generator) -> list[Indices]:
    """Deals out the records to the clients; each record goes to one client.

    Labels are the class of each record, (records,), or real targets, which ``iid`` alone deals.
    Each client gets its records in ascending order, one at least.

    Raises:
        UsageError: an unknown spec, more clients than records, or a client without a record.
    """
    concentration = _parsed(spec)
    if clients > len(labels):
        raise UsageError(
            f"--clients {clients}: there are only {len(labels)} training records; use fewer clients"
        )
    classes = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)
    if concentration is None:
        parts = even(labels if classes else np.zeros(len(labels), np.int64), clients, generator)
    elif classes:
        parts = dirichlet(labels, clients, concentration, generator)
    else:
        raise UsageError(
            f"--partition {spec}: it splits classes, but the labels are numbers; "
            "use --partition iid"
        )
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        raise UsageError(
            f"--partition {spec}: {len(empty)} of {clients} clients got no record (the first is "
            f"{empty[0]}); use a larger A, fewer clients or another --seed"
        )
    return parts


def even(labels: Labels, clients: int, generator: Generator) -> list[Indices]:
    """Shuffles each class and deals it out in turn; clients' sizes differ by at most one.

    The IID case of Fan et al. 2020, appendix C.
    """
    shuffled = generator.permutation(len(labels))
    dealt = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return [np.sort(dealt[client::clients]).astype(np.int64) for client in range(clients)]


def dirichlet(
    labels: Labels, clients: int, concentration: float, generator: Generator
) -> list[Indices]:
    """Splits each class by shares drawn from Dirichlet(A, …, A) over the clients.

    The non-IID case of Fan et al. 2020, appendix C (A = 0.9), after Hsu, Qi and Brown 2019,
    arXiv:1909.06335. Shares are rounded on their sums, so that every record is dealt.
    """
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for value in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == value))
        shares = generator.dirichlet(np.full(clients, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


def _parsed(spec: str) -> float | None:
    """Returns the concentration A of ``dirichlet:A``; None for ``iid``."""
    name, _, value = spec.partition(":")
    if spec == "iid":
        return None
    if name != "dirichlet":
        hint = suggest(name, ("iid", "dirichlet"))
        raise UsageError(f"--partition {spec}: unknown{hint}; write {' or '.join(FORMS)}")
    try:
        concentration = float(value)
    except ValueError:
        concentration = float("nan")
    if not 0 < concentration < float("inf"):
        raise UsageError(f"--partition {spec}: A must be a positive number, as in dirichlet:0.9")
    return concentration
