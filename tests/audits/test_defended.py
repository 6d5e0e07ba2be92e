"""What audits of single records say of defenses that are not in their numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradaudit.audits import audits
from gradaudit.data.records import Attribute, Records
from gradaudit.defenses import parse_defense
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Mode, Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject, defended_target

IDLE = "dropout:0.5 does nothing in eval mode; use --mode train"


def subject(*specs: str, mode: Mode = "eval") -> Subject:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 4, generator=generator)
    codes = torch.arange(24) % 2
    records = Records(inputs, torch.arange(24) % 3, attributes={"a": attribute(codes)})
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    defenses = tuple(map(parse_defense, specs))
    target = replace(defended_target(Target(model, CrossEntropy()), defenses, 0), mode=mode)
    return Subject((target,), records, target.layers, attributes=("a",), defenses=defenses)


def attribute(codes: torch.Tensor) -> Attribute:
    return Attribute(codes.numpy(), ("no", "yes"))


def rows(name: str, of: Subject) -> list[Measurement]:
    audit = audits()[name]
    found = audit(audit.Options()).run(of, Silent())
    return [row for row in found if row.status == "measured"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sensitivity", "forward", "subspace"])
def test_what_is_not_in_the_numbers_is_told(name: str) -> None:
    plain = rows(name, subject())
    assert plain
    assert not any("defenses" in row.details for row in plain)
    for row in rows(name, subject("dropout:0.5", "sign")):
        note = str(row.details["defenses"])
        assert note.startswith("none applied: ")
        assert note.endswith(f"; {IDLE}")
    assert {row.details["defenses"] for row in rows(name, subject("dropout:0.5"))} == {IDLE}
    assert not any("defenses" in row.details for row in rows(name, subject("spn:bits=4")))


@pytest.mark.slow
def test_in_training_mode_all_of_it_acts() -> None:
    measured = rows("sensitivity", subject("dropout:0.5", mode="train"))
    assert measured
    assert not any("defenses" in row.details for row in measured)
