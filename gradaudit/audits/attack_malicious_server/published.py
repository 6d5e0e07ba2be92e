"""Compares a model's frozen weights with the published ones that the server should have sent."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from gradaudit.errors import NotApplicable
from gradaudit.models.checkpoint import LoadedCheckpoint, fit_state
from gradaudit.models.checkpoint.fitting import Fit

_BELOW_AN_ADAPTER = ".base_layer."
_SHORTER = (torch.float16, torch.bfloat16)
_NAMED = 20


@dataclass(frozen=True)
class PublishedComparison:
    """The frozen tensors of a model beside the published ones.

    Attributes:
        elements: how many elements the compared tensors have together.
        altered: the number of elements that differ, by the names of the tensors that have any; of a
            tensor that was never published these are all of its elements.
        unpublished: names of tensors that the published weights do not hold, in that shape.
        compared: how many tensors were compared.
    """

    elements: int
    altered: Mapping[str, int]
    unpublished: tuple[str, ...]
    compared: int

    @property
    def share(self) -> float:
        """The share of the elements that differ."""
        return sum(self.altered.values()) / self.elements

    def described(self) -> dict[str, JsonValue]:
        """Give the numbers for a report, with the most altered tensors by name."""
        most = sorted(self.altered, key=lambda name: -self.altered[name])[:_NAMED]
        altered: dict[str, JsonValue] = {name: self.altered[name] for name in most}
        return {
            "tensors": self.compared,
            "tensors_altered": len(self.altered),
            "elements_altered": altered,
            "unpublished": list(self.unpublished[:_NAMED]),
        }


def compare(model: nn.Module, published: LoadedCheckpoint) -> PublishedComparison:
    """Compare a model's frozen parameters with a published checkpoint.

    Where nothing is frozen all parameters are compared, as at the start of training. A weight below
    an adapter goes by the name that it has without one. Equal are also values that were rounded to
    half precision on the way.

    Args:
        model: as the server sent it.
        published: the weights that it should hold.

    Raises:
        NotApplicable: the model has no parameters.
        CheckpointError: no tensor of the published weights fits the model.
    """
    parameters = dict(model.named_parameters())
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad} or parameters
    if not frozen:
        raise NotApplicable("the model has no parameters to compare with published ones")
    expected = {name.replace(_BELOW_AN_ADAPTER, "."): p for name, p in frozen.items()}
    fitted = fit_state(expected, published, Fit(partial=True)).state
    unpublished = tuple(name for name in expected if name not in fitted)
    altered = {name: expected[name].numel() for name in unpublished}
    for name, known in fitted.items():
        if count := _differing(expected[name].detach().cpu(), known.cpu()):
            altered[name] = count
    elements = sum(tensor.numel() for tensor in expected.values())
    return PublishedComparison(elements, altered, unpublished, len(expected))


def _differing(sent: Tensor, known: Tensor) -> int:
    """Count the elements that are neither the published ones nor these in half precision."""
    if torch.equal(sent, known):
        return 0
    same = sent == known
    if sent.is_floating_point():
        for shorter in _SHORTER:
            same |= sent == known.to(shorter).to(sent.dtype)
    return int((~same).sum())
