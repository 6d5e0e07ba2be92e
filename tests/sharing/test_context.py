from dataclasses import replace

import torch
from audits.attack_inference.people import people, subject

from gradaudit.core.latest import Latest
from gradaudit.sharing.context import context_of
from gradaudit.sharing.protocol import SharingProtocol


def test_a_context_is_the_same_for_all_who_ask_for_the_same() -> None:
    audited, latest, sharing = subject(people()), Latest(), SharingProtocol()
    of = audited.target, audited.records
    first = context_of(latest, *of, sharing, memory=1 << 30)
    assert context_of(latest, *of, SharingProtocol(), memory=1 << 30) is first
    assert context_of(latest, *of, SharingProtocol(others=1), memory=1 << 30) is not first
    other = context_of(latest, *of, sharing, memory=1 << 30)
    assert other is not first
    assert context_of(latest, *of, sharing, memory=1 << 30, dtype=torch.float64) is not other
    elsewhere = replace(audited.target, mode="train")
    last = context_of(latest, *of, sharing, memory=1 << 30)
    assert context_of(latest, elsewhere, of[1], sharing, memory=1 << 30) is not last


def test_one_whose_model_takes_much_of_the_memory_is_not_kept() -> None:
    audited, latest = subject(people()), Latest()
    size = sum(parameter.nbytes for parameter in audited.target.model.parameters())
    of = latest, audited.target, audited.records, SharingProtocol()
    for memory, kept in ((16 * size, True), (16 * size - 1, False)):
        first = context_of(*of, memory=memory)
        assert (context_of(*of, memory=memory) is first) == kept
