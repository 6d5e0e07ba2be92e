"""Starting records and labels of an attack: known, optimised, or read off the last layer.

Source of the rule of signs: B. Zhao, K. R. Mopuri and H. Bilen, "iDLG: Improved deep leakage from
gradients" (2020), equation 3: with cross-entropy, row c of the last layer's gradient is
(p_c − y_c) aᵀ, and p_c − y_c is negative for the true class alone. Counts in a batch follow A.
Wainakh et al., "User-level label leakage from gradients in federated learning" (2022): the bias's
gradient is the mean of p_c − y_c, so n_c = k (p̄_c − ∇b_c) with p̄ taken from records that the
attacker makes up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from gradaudit.errors import NotApplicable, UsageError, one_line
from gradaudit.gradients.functional import running
from gradaudit.gradients.noise import draw_noise
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy
from gradaudit.ranks.observe import watching

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView


_MAX_BYTES = 1 << 30
"""Bytes of a file with a starting point, at most."""
Start = Literal["normal", "uniform", "pattern"]
_MADE_UP = 256


class UnknownLabels(NotApplicable):
    """The attacker neither knows the labels nor can find them."""

    def __init__(self, why: str, otherwise: str = "") -> None:
        """Say why, and what may help besides giving the labels."""
        super().__init__(why, otherwise)

    @property
    def why(self) -> str:
        """Returns why the labels are not solved for, as attacks on labels report it."""
        return "; ".join(filter(None, self.args))

    def __str__(self) -> str:
        """The reason and all that may help."""
        end = ", or " if self.args[1] else "; "
        return f"{self.why}{end}give the attacker the labels with --known-labels"


def starts(view: AttackerView, start: Start, restarts: int, generator: torch.Generator) -> Tensor:
    """Starting records, (restarts, k, …), all drawn before anything is split into chunks.

    ``normal`` is the standard normal law of Deep Leakage from Gradients; ``uniform`` goes over the
    known range of values, or [0, 1]; ``pattern`` repeats one random tile of half a picture's sides
    (W. Wei et al., "A framework for evaluating gradient leakage attacks", 2020).

    Raises:
        UsageError: a pattern for records that are no pictures.
    """
    shape = (restarts, view.batch, *view.shape)
    if start == "normal":
        drawn = normal(restarts, view.elements, generator).reshape(shape)
    elif start == "uniform":
        drawn = _uniform(view, shape, generator)
    else:
        drawn = _tiled(view, shape, generator)
    return drawn.to(view.model.device, view.dtype)


def normal(rows: int, elements: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers (rows, elements); first rows do not depend on the count."""
    like = torch.empty(elements, dtype=torch.float64)
    return draw_noise("gaussian", like, rows, generator) if elements else like.new_empty(rows, 0)


def _uniform(view: AttackerView, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high = view.bounds or (0.0, 1.0)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _tiled(view: AttackerView, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(view.shape) != 3:
        raise UsageError("--init pattern: the records are no pictures; use normal or uniform")
    height, width = shape[-2:]
    rows, columns = ceil(height / 2), ceil(width / 2)
    tile = _uniform(view, (*shape[:-2], rows, columns), generator)
    return tile.repeat(*(1,) * (len(shape) - 2), 2, 2)[..., :height, :width]


@dataclass(frozen=True)
class Targets:
    """The batch's labels as numbers that an optimiser moves, or fixed ones.

    Attributes:
        fixed: (k,) or (k, …) labels that are not optimised; None where they are.
    """

    view: AttackerView
    fixed: Tensor | None

    @classmethod
    def of(cls, view: AttackerView, fixed: Tensor | None) -> Targets:
        """Fixed labels, or free ones.

        Raises:
            NotApplicable: free ones are wanted, but the loss takes classes only.
        """
        loss = view.model.loss
        if view.label_shape == (0,):  # records without labels
            fixed = torch.zeros(view.batch, 0)
        if fixed is None and isinstance(loss, CustomLoss) and view.classes:
            raise UnknownLabels(f"--loss {loss.name} takes class labels, which cannot be optimised")
        return cls(view, None if fixed is None else view.model.cast(fixed))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the free numbers: class logits, one logit of two classes, or targets."""
        if self.fixed is not None:
            return (0,)
        classes = (self.view.classes,) if self.view.classes else ()
        return (self.view.batch, *classes, *self.view.label_shape)

    @property
    def size(self) -> int:
        """The number of free numbers."""
        return prod(self.shape)

    def targets(self, free: Tensor) -> Tensor:
        """Targets for the loss from the free numbers (size,); probabilities of classes.

        From those of several batches, (batches, size), targets for all of their records in order.
        """
        if self.fixed is not None:
            return self.fixed if free.dim() == 1 else torch.cat([self.fixed] * len(free))
        free = free.reshape(-1, *self.shape[1:])
        if not self.view.classes:
            return free
        return free.sigmoid() if self.view.classes == 1 else free.softmax(dim=1)

    def read(self, free: Tensor) -> Tensor:
        """Labels (restarts, k) or real targets (restarts, k, …) from (restarts, size)."""
        if self.fixed is not None:
            return self.fixed.expand(len(free), *self.fixed.shape)
        free = free.reshape(len(free), *self.shape)
        if not self.view.classes:
            return free
        return (free[..., 0] > 0).long() if self.view.classes == 1 else free.argmax(dim=2)


@dataclass(frozen=True)
class LastLayerGradient:
    """The gradient of the fully connected layer whose outputs are the logits.

    Attributes:
        weight: (classes, features), or None where it was not shared.
        bias: (classes,), or None where there is none or it was not shared.
    """

    name: str
    weight: Tensor | None
    bias: Tensor | None


def last_layer(view: AttackerView) -> LastLayerGradient:
    """Find the layer that gives the logits, and what was shared of it.

    Raises:
        NotApplicable: the outputs are not those of a fully connected layer, or nothing of it was
            shared.
    """
    name = _layer_of_logits(view)
    layer = view.model.module.get_submodule(name)
    names = {part: _names_of(view, getattr(layer, part)) for part in ("weight", "bias")}
    weight, bias = (
        view.update.get(of_part[0]) if len(of_part) == 1 else None for of_part in names.values()
    )
    if weight is None and bias is None:
        why = _why_untold(name, names["weight"])
        raise NotApplicable(f"the update of the last layer ({name}) {why}")
    return LastLayerGradient(name, weight, bias)


def _names_of(view: AttackerView, parameter: Tensor | None) -> list[str]:
    """Every name that a model has for a parameter; none for one that is computed of others."""
    named = view.model.module.named_parameters(remove_duplicate=False)
    return [name for name, known in named if known is parameter]


def _why_untold(layer: str, names: list[str]) -> str:
    others = [name for name in names if name != f"{layer}.weight"]
    if others:
        return f"does not stand by itself: its weight is also {others[0]}"
    return "is hidden" if names else "is that of a weight which is computed of others"


def infer_label(view: AttackerView) -> Tensor:
    """Infer a single record's label (1,) from the signs of the last layer's gradient.

    Where a defense left nothing negative of the bias, the weight's rows are asked; where it left
    nothing of both, the first class is named, which is a guess.

    Raises:
        NotApplicable: more than one record is behind the update, the loss is not cross-entropy, or
            the layer does not show it (two classes, no bias, inputs of both signs).
    """
    if not isinstance(view.model.loss, CrossEntropy):
        _expect_cross_entropy(view)
    if view.label_shape:
        raise UnknownLabels(
            "every record has a label for each position, and the last layer's signs tell one label "
            "a record"
        )
    if view.batch != 1:
        raise UnknownLabels(
            f"signs tell the label of one record, not of {view.batch}",
            "optimise them with --method dlg",
        )
    layer = last_layer(view)
    weight, bias = layer.weight, _bias_over_rounds(view)
    decided = bias is not None and bool((bias < 0).any())
    if weight is not None and not decided and (bias is None or bool(weight.any())):
        return _by_rows(weight)[None]
    assert bias is not None
    return bias.argmin()[None]


def infer_counts(
    view: AttackerView, generator: torch.Generator, records: Tensor | None = None
) -> Tensor:
    """Infer a batch's sorted labels (k,) from the last layer and other records' outputs.

    The gradient of the last bias is p̄ − n / k, for mean probabilities p̄ and counts n of classes.
    Where the bias was not shared it is estimated from the weight's rows, which are that gradient
    times the features if these are alike. An estimate: it is exact only where the model's mean
    output (and features) for these records are those for the batch. Without records of the
    attacker's own they are made up.

    Source: J. Geng et al., "Towards general deep leakage in federated learning" (2021).

    Raises:
        NotApplicable: the loss is not cross-entropy, or the last layer was not shared.
    """
    _expect_cross_entropy(view)
    if view.looked_up and records is None:
        raise UnknownLabels(
            "a batch's labels are estimated with artificial records, and tokens cannot be made up",
            "look at single records (--batch-size 1)",
        )
    if records is None:
        low, high = view.bounds or (0.0, 1.0)
        noise = torch.rand(_MADE_UP, *view.shape, generator=generator, dtype=torch.float64)
        records = low + (high - low) * noise
    shares = [_class_shares(one, last_layer(one), records) for one in view.rounds]
    expected = view.batch * torch.stack(shares).mean(dim=0)
    counts = torch.zeros_like(expected)
    for _ in range(view.batch):  # whole numbers, one label at a time to the largest remainder
        counts[(expected - counts).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts.long())


def _class_shares(view: AttackerView, layer: LastLayerGradient, records: Tensor) -> Tensor:
    """Estimate the classes' shares of a batch, p̄ − ∇b, by the outputs for other records."""
    features: list[Tensor] = []

    def keep(_: str, inputs: Tensor, output: Tensor) -> Tensor:
        features.append(inputs.detach().flatten(0, -2).mean(dim=0))
        return output

    watched = {layer.name: view.model.module.get_submodule(layer.name)}
    with watching(watched, keep):
        predicted = _predictions(view, records).softmax(dim=1).mean(dim=0)
    if layer.bias is not None:
        return predicted - layer.bias
    assert layer.weight is not None  # one of both was shared
    mean = features[0]
    if not bool(mean.any()):
        raise UnknownLabels(
            f"the bias of the last layer ({layer.name}) is absent or hidden, and its features of "
            "other records are zero, so that its rows count no classes"
        )
    return predicted - layer.weight @ mean / mean.square().sum()


def _bias_over_rounds(view: AttackerView) -> Tensor | None:
    """Average the last bias's gradient over the rounds; None where it was not shared."""
    parts = [last_layer(one).bias for one in view.rounds]
    known = [part for part in parts if part is not None]
    if len(known) == 1:
        return known[0]
    return torch.stack(known).mean(dim=0) if known else None


def _by_rows(weight: Tensor) -> Tensor:
    """The class whose row points against all others; by its own sign where there are two rows."""
    if not bool(weight.any()):
        raise NotApplicable("the last layer's update is zero: its signs tell nothing")
    if len(weight) > 2:  # the row with the most negative products with the others
        products = weight.double() @ weight.double().T
        return (products.sum(dim=1) - 2 * products.diagonal()).argmin()
    if bool((weight >= 0).all(dim=1).any() and (weight <= 0).all(dim=1).any()):
        return weight.sum(dim=1).argmin()
    raise UnknownLabels(
        "two classes, no bias and features of both signs: the signs of the last layer's gradient "
        "do not tell the label"
    )


def _expect_cross_entropy(view: AttackerView) -> None:
    if view.model.loss.name != "cross-entropy":
        raise UnknownLabels(
            f"labels are read off the gradient of cross-entropy, the loss is {view.model.loss.name}"
        )


def _layer_of_logits(view: AttackerView) -> str:
    """The fully connected module whose output is what the model returns for a made-up record."""
    seen: dict[str, Tensor] = {}
    modules = view.model.module.named_modules()
    layers = {name: module for name, module in modules if isinstance(module, nn.Linear)}

    def keep(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        seen[name] = output.detach()
        return output

    made_up = torch.ones(1, *view.shape, dtype=torch.int64 if view.discrete else torch.float64)
    try:
        with torch.no_grad(), running(view.model.module, view.model.mode), watching(layers, keep):
            outputs = _predictions(view, made_up)
    except Exception as error:
        raise NotApplicable(
            "the layer that gives the logits is found by a made-up record of ones, which the model "
            f"does not take: {one_line(error)}"
        ) from error
    for name, output in reversed(seen.items()):
        if output.shape == outputs.shape and torch.equal(output, outputs):
            return name
    raise NotApplicable(
        "the labels are read off a fully connected last layer, and the model does not end in one"
    )


def _predictions(view: AttackerView, records: Tensor) -> Tensor:
    return view.model.loss.predictions(view.model.outputs({}, view.model.cast(records)))
