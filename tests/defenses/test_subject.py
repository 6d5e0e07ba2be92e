"""``--defense`` from the settings to the subject and the report."""

import pytest
from command_line import run

from gradaudit.config import SubjectSettings, settle
from gradaudit.errors import UsageError
from gradaudit.run.opening import open_subject


def subject(*specs: str, hide: tuple[str, ...] = ()):
    flags = {"model": "zoo:mlp?inputs=10", "data": "diabetes", "defense": specs, "hide": hide}
    return open_subject(settle(SubjectSettings, flags, {}))


def test_a_subject_holds_its_defenses_and_what_is_hidden() -> None:
    found = subject("prune:0.9", "dp:clip=1,sigma=0.1,per=release", hide=("fc*",))
    assert [str(defense) for defense in found.defenses] == [
        "prune:0.9",
        "dp:clip=1.0,sigma=0.1,per=release",
    ]
    assert found.hidden == ("fc1",)
    assert [layer.name for layer in found.layers] == ["output"]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (("prun:0.9",), "--defense prun:0.9: no such defense"),
        (("sign:layers=conv*",), "no layer matches layers=conv*; the layers are: fc1, output"),
        (("sign", "dp:clip=1,sigma=1,per=record"), "use per=release, or put it first"),
    ],
)
def test_wrong_defenses_are_told_before_anything_runs(specs: tuple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        subject(*specs)
    assert message in str(caught.value)


def test_a_defense_of_a_hidden_layer_matches_nothing() -> None:
    with pytest.raises(UsageError, match="no layer matches layers=fc1; the layers are: output"):
        subject("sign:layers=fc1", hide=("fc1",))


def test_defenses_are_listed() -> None:
    done = run("list", "defenses", width=200)
    assert done.status == 0
    assert "prune:0.99" in done.out
