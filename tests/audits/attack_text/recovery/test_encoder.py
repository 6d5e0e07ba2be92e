"""The quadratic form of single exchanges: its least values, and where it is exact."""

import itertools

import torch
from audits.attack_text.sentences import view

from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.encoder import Exchanges


def test_the_least_text_of_a_form_is_that_of_all_texts() -> None:
    draws = torch.Generator().manual_seed(0)
    choices = [torch.arange(3) + 10 * position for position in range(5)]
    brought = torch.randn(1 + 15, 4, generator=draws)
    exchanges = Exchanges(choices, [1, 4, 7, 10, 13], brought @ brought.T)

    def energy(text: tuple[int, ...]) -> float:
        rows = [1 + 3 * position + token % 10 for position, token in enumerate(text)]
        return float((brought[0] + brought[rows].sum(dim=0)).square().sum())

    every = sorted(itertools.product(*(tokens.tolist() for tokens in choices)), key=energy)
    found = [tuple(text) for text in exchanges.least(draws).tolist()]
    assert found[0] == every[0]
    assert [energy(text) for text in found] == sorted(map(energy, found))
    assert len(set(found)) == len(found)


def test_the_form_holds_the_energy_of_the_text_and_of_each_single_exchange() -> None:
    made, truth = view(2, causal=False)
    place = Structure.of(made).mixed[0]
    text = torch.tensor(truth[0])
    choices = [torch.tensor([token, (token + 1) % 30]) for token in truth[1]]
    exchanges = Exchanges.from_text(place, text, choices, made)
    assert float(exchanges.form[0, 0]) < 1e-6
    for position, tokens in enumerate(choices):
        for number, token in enumerate(tokens):
            other = text.clone()
            other[position] = token
            row = exchanges.starts[position] + number
            expected = place.outside(other[None]).square().sum()
            sums = exchanges.form[[0, 0, row, row], [0, row, 0, row]].sum()
            torch.testing.assert_close(sums, expected, rtol=1e-3, atol=1e-6)
