"""Dropout before chosen layers."""

from dataclasses import replace

import pytest
import torch
from cases import CASES

from gradaudit.defenses import Chain, parse_defense
from gradaudit.defenses.attachment import attachments
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Target, layers_of, shared_parameters
from gradaudit.subject import defended_target

NAMED = {str(case): case for case in CASES}
CASE = NAMED["mlp-tanh"]


def dropped(spec: str) -> Target:
    return defended_target(CASE.target(), [parse_defense(spec)], 0)


@pytest.mark.slow
def test_inputs_of_the_last_layer_are_dropped_and_scaled() -> None:
    model = dropped("dropout:0.25").model.train()
    plain = CASE.make_model()
    features = plain[:-1](CASE.inputs[:1])  # type: ignore[index]
    last = plain[-1]  # type: ignore[index]
    torch.manual_seed(0)
    outputs = torch.stack([model(CASE.inputs[:1])[0] for _ in range(3000)]).detach()
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 4 / 3], dtype=torch.float64)] * 4)
    possible = last(features * masks).detach()
    distances = (outputs[:, None] - possible).abs().amax(dim=2)
    assert float(distances.min(dim=1).values.max()) < 1e-12
    kept = (masks[distances.argmin(dim=1)] > 0).double().mean()
    assert float(kept) == pytest.approx(0.75, abs=0.02)


def test_evaluation_is_as_without_it_and_layers_keep_their_names() -> None:
    target = dropped("dropout:p=0.5")
    torch.testing.assert_close(target.model(CASE.inputs), CASE.make_model()(CASE.inputs))
    assert layers_of(target.model) == layers_of(CASE.make_model())
    assert target.model.state_dict().keys() == CASE.make_model().state_dict().keys()
    assert target.loss is CASE.loss


def test_records_have_masks_of_their_own() -> None:
    target = replace(dropped("dropout:p=0.5"), mode="train")
    same = CASE.inputs[:1].expand(50, 4)
    outputs = FunctionalModel.of(target).outputs({}, same)
    assert len(outputs.unique(dim=0)) > 10


@pytest.mark.parametrize(("layers", "wanted"), [("*", ["0", "2"]), ("0", ["0"]), ("2", ["2"])])
def test_a_glob_chooses_the_layers(layers: str, wanted: list[str]) -> None:
    target = dropped(f"dropout:0.5,layers={layers}")
    places = [name for name, part in target.model.named_children() if attachments(part)]
    assert places == wanted


def test_wrong_requests() -> None:
    for spec, message in [("dropout:1.5", "p"), ("dropout", "no p"), ("dropout:p=0", "p")]:
        with pytest.raises(UsageError, match=message):
            parse_defense(spec)
    with pytest.raises(UsageError, match="no layer matches layers=conv"):
        Chain((parse_defense("dropout:0.5,layers=conv*"),)).check(
            shared_parameters(CASE.make_model())
        )
    with pytest.raises(NotApplicable, match="the model has none"):
        defended_target(NAMED["conv-autoencoder"].target(), [parse_defense("dropout:0.5")], 0)
