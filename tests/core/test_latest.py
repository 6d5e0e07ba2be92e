import pickle

from gradaudit.core.latest import Latest


class Thing:
    """Equal to all others."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_the_same_is_made_once_and_anything_else_anew() -> None:
    latest, made, thing = Latest(), list[tuple[object, int]](), Thing()

    def make(thing: Thing, *, size: int) -> int:
        made.append((thing, size))
        return len(made)

    assert [latest.of(make, thing, size=size) for size in (1, 1, 2, 2, 1)] == [1, 1, 2, 2, 3]
    assert latest.of(make, Thing(), size=1) == 4
    assert latest.of(lambda thing, size: "other", thing, size=1) == "other"


def test_what_is_held_is_let_go_before_another_is_made() -> None:
    latest, held = Latest(), []

    def make(size: int) -> int:
        held.append(len(latest._made))
        return size

    latest.of(make, size=1), latest.of(make, size=2)
    assert held == [0, 0]


def test_it_does_not_travel() -> None:
    latest = Latest()
    latest.of(bytearray, 1000)
    assert len(pickle.dumps(latest)) < 200
    assert pickle.loads(pickle.dumps(latest)).of(len, "ab") == 2
