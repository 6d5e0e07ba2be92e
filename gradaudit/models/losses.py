"""Training losses, record by record, differentiable in outputs and in real-valued targets.

Cross-entropy is written from the largest logit z_t as −log p_c = (z_t − z_c) + log(1 + Σ_{j≠t}
exp(z_j − z_t)): its derivatives keep their relative accuracy as p_c → 1, where softmax(z) − 1 has
none left.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradaudit.core.text import listed
from gradaudit.data.records import IGNORED
from gradaudit.errors import AuditError
from gradaudit.models.outputs import unwrap

_NAME_IT = "name the loss that the model is trained with by --loss"


class Loss(ABC):
    """A loss of records, and of a batch: their mean, weighted where records have weights."""

    name: str
    smoothing: float = 0.0
    """Label smoothing: the share of a label that is spread evenly over all classes."""
    threshold: float = 0.0
    """Threshold above which a single output predicts the second of two classes."""
    yes_or_no: bool = False
    """Whether each output is the logit of a yes-or-no label of its own."""
    ignored: int = IGNORED
    """Class label of records or positions that are ignored."""

    linear: bool = False
    """Whether the loss is linear in real-valued targets."""

    takes_whole: bool = False
    """Whether the loss takes everything that the model returns, not the prediction alone."""

    alone: bool = False
    """Whether the model is run on one record at a time, whatever the batch."""

    note: str = ""
    """What a reader must know of the loss, once it was computed."""

    def taken(self, returned: Any) -> Tensor:
        """Returns the part of the model's output that the loss takes, (records, …).

        Raises:
            AuditError: there is no such tensor.
        """
        return unwrap(returned)

    def outputs_of(
        self, run: Callable[..., Any], args: Sequence[Tensor], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Run the model on a batch, and return what the loss takes of its output, (records, …).

        Args:
            run: calls the model.
            args: its arguments in order, as the data has them.
            kwargs: those by name.
        """
        return self.taken(run(*args, **kwargs))

    def batch_mismatch(
        self,
        run: Callable[..., Any],
        args: Sequence[Tensor],
        kwargs: Mapping[str, Any],
        outputs: Tensor,
    ) -> str | None:
        """Returns why outputs of records alone do not make up those of a batch; None if they do."""
        return None

    @abstractmethod
    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of each record, (records,).

        Args:
            outputs: (records, …) of the model.
            targets: labels as the data set holds them, or the real-valued targets of ``soft``.
        """

    def weights(self, targets: Tensor) -> Tensor | None:
        """Returns the weight of each record, (records,); None where all weights are equal.

        The gradient of a batch is Σ w g / Σ w of its records' gradients.
        """
        return None

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of a batch, a scalar: Σ w ℓ / Σ w."""
        return mean_of(self.per_record(outputs, targets), self.weights(targets))

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Returns why a batch's loss is no weighted mean of its records' losses; None if it is."""
        return None

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Raise an error where outputs and labels do not fit each other or this loss.

        Raises:
            AuditError: they do not; the message names the shapes or the labels at fault.
        """
        self.soft(outputs, labels)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Returns the predictions among the model's outputs, to which a defense may append more."""
        return outputs

    @abstractmethod
    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the labels as real numbers by which the loss can be differentiated.

        Raises:
            AuditError: the labels do not fit the outputs, or this loss has no real-valued labels.
        """


def mean_of(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Returns Σ w ℓ / Σ w of (records,), or the plain mean without weights."""
    if weights is None:
        return losses.mean()
    shares = weights.double() / weights.double().sum()
    return (shares.to(losses) * losses).sum()


@dataclass(frozen=True)
class LabelWeights:
    """Weights of class labels (records, …) in a loss, 0 where they are ``ignored``.

    ``of_class`` is (classes,), None where all classes count alike.
    """

    of_class: Tensor | None = None
    ignored: int = IGNORED

    def kept(self, labels: Tensor) -> Tensor:
        """Returns the labels with 0 in place of ignored ones."""
        return torch.where(labels != self.ignored, labels, 0)

    def of_labels(self, labels: Tensor) -> Tensor:
        """Returns the weight of each label, in the shape of the labels; float64."""
        counted = (labels != self.ignored).double()
        if self.of_class is None:
            return counted
        return counted * self.of_class.to(labels.device, torch.float64)[self.kept(labels)]

    def of_records(self, labels: Tensor) -> Tensor:
        """Returns the total weight of each record's labels, (records,)."""
        return self.of_labels(labels).reshape(len(labels), -1).sum(dim=1)

    def shares(self, labels: Tensor) -> Tensor:
        """Returns each label's share of its record's weight; 0 for a record of weight 0."""
        whole = along(self.of_records(labels), labels)
        return self.of_labels(labels) / torch.where(whole > 0, whole, 1)


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits; soft labels need not sum to one.

    Logits are (records, classes), or (records, classes, …) with a label for each position of a
    sequence or a picture; (records, …, classes) is understood too, where the shape of the labels
    tells them apart. A record's loss is the mean over its positions, but those whose label is -100
    count nothing, and records count in a batch what their positions do (as torch has it).
    """

    name = "cross-entropy"
    summary = "softmax cross-entropy on logits"
    linear = True
    counting = LabelWeights()

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with class indices (records, …) or soft labels (records, classes, …)."""
        losses = self.negative_log_probabilities(classes_second(outputs, targets))
        if targets.is_floating_point():
            return (targets * losses).sum(dim=1).reshape(len(losses), -1).mean(dim=1)
        if self.weights(targets) is None:
            return losses.gather(1, targets.unsqueeze(1)).squeeze(1)
        kept = self.counting.kept(targets)
        picked = losses.gather(1, kept.unsqueeze(1)).squeeze(1)
        return (
            (self.counting.shares(targets).to(picked) * picked).reshape(len(picked), -1).sum(dim=1)
        )

    def weights(self, targets: Tensor) -> Tensor | None:
        """Total weight of each record's positions; None where a record has one label."""
        several = targets.dim() > 1 and not targets.is_floating_point()
        return self.counting.of_records(targets) if several else None

    def negative_log_probabilities(self, outputs: Tensor) -> Tensor:
        """Returns −log p_c of every class, (records, classes, …)."""
        top = outputs.argmax(dim=1, keepdim=True)
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        is_top = classes.reshape(-1, *(1 for _ in outputs.shape[2:])) == top
        behind = outputs.gather(1, top) - outputs
        odds = (-behind).exp().masked_fill(is_top, 0).sum(dim=1, keepdim=True)
        return behind.masked_fill(is_top, 0) + odds.log1p()

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns one-hot labels (records, classes, …) times their positions' relative weights."""
        if outputs.dim() < 2:
            raise AuditError(
                f"cross-entropy needs outputs (records, classes ≥ 2), the model gives "
                f"{tuple(outputs.shape)}; {_NAME_IT}"
            )
        if labels.is_floating_point():
            if not _are_probabilities(outputs, labels):
                raise AuditError(
                    "cross-entropy needs one integer class label a record, or probabilities of "
                    f"the classes that sum to 1 (records, classes); {_seen(labels)}"
                )
            return labels.to(outputs)
        outputs = classes_second(outputs, labels)
        if outputs.shape[1] < 2:
            raise AuditError(
                f"cross-entropy needs outputs (records, classes ≥ 2), the model gives "
                f"{tuple(outputs.shape)}; {_NAME_IT}"
            )
        kept = self.counting.kept(labels) if labels.dim() > 1 else labels
        low, high = torch.stack(kept.aminmax()).tolist() if kept.numel() else (0, 0)
        if not 0 <= low <= high < outputs.shape[1]:
            blank = " (a position that counts nothing has the label -100)"
            raise AuditError(
                f"labels run from {low} to {high}, but the model has {outputs.shape[1]} classes"
                f"{blank if labels.dim() > 1 else ''}"
            )
        if labels.dim() == 1:
            return _one_hot(labels, outputs)
        shares = self.counting.shares(labels) * labels[0].numel()
        return _one_hot(kept, outputs) * shares.to(outputs).unsqueeze(1)


def _are_probabilities(outputs: Tensor, labels: Tensor) -> bool:
    """Whether real labels are probabilities of these outputs' classes: none negative, sum 1."""
    if labels.dim() < 2 or labels.shape[1] < 2 or not labels.numel():
        return False
    try:
        fits = classes_second(outputs, labels).shape == labels.shape
    except AuditError:
        return False
    sums = labels.sum(dim=1)
    return fits and bool((labels >= 0).all()) and torch.allclose(sums, sums.new_ones(()), atol=1e-3)


def _seen(labels: Tensor) -> str:
    """Says what real labels for cross-entropy are; whole numbers may be classes."""
    if labels.dim() == 1 and bool((labels == labels.round()).all()):
        return (
            "these are whole numbers of a float type: give classes as integers (in a table, "
            f"task=classification), or {_NAME_IT}"
        )
    ends = f" from {labels.min():g} to {labels.max():g}" if labels.numel() else ""
    return f"these are real numbers of shape {tuple(labels.shape)}{ends}; {_NAME_IT}"


class MeanSquaredError(Loss):
    """Mean squared error over a record's outputs; class labels are compared one-hot."""

    name = "mse"
    summary = "mean squared error over a record's outputs"
    threshold = 0.5

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of each record."""
        targets = targets if targets.shape == outputs.shape else self.soft(outputs, targets)
        return (outputs - targets).square().reshape(len(outputs), -1).mean(dim=1)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns targets in the shape of the outputs."""
        return _targets_like(outputs, labels, self.name)


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy, the mean over a record's logits."""

    name = "bce"
    summary = "binary cross-entropy on logits"
    yes_or_no = True

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy of each record, from logits."""
        losses = self.of_outputs(outputs, self.soft(outputs, targets))
        return losses.reshape(len(losses), -1).mean(dim=1)

    def of_outputs(self, outputs: Tensor, soft: Tensor) -> Tensor:
        """Returns the loss of each output, in the shape of outputs and real-valued targets."""
        return soft * softplus(-outputs) + (1 - soft) * softplus(outputs)

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns targets in the shape of the logits."""
        return _targets_like(outputs, labels, self.name)


class ModelLoss(Loss):
    """The loss that a model returns itself, as its ``forward(inputs, targets)``.

    The model gets the labels as its last argument and returns the batch's loss, a number, or
    several numbers by name, of which the loss is ``loss`` or else the sum. It is called on one
    record at a time, so its outputs here are the records' losses, (records,).
    """

    name = "model"
    summary = "the loss that the model's forward(inputs, targets) returns"
    alone = True

    def outputs_of(
        self, run: Callable[..., Any], args: Sequence[Tensor], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Returns each record's loss, (records,)."""
        records = len(next(iter((*args, *kwargs.values()))))
        return torch.stack(
            [
                self._loss(run(*(x[i : i + 1] for x in args), **_rows(kwargs, i)))
                for i in range(records)
            ]
        )

    def batch_mismatch(
        self,
        run: Callable[..., Any],
        args: Sequence[Tensor],
        kwargs: Mapping[str, Any],
        outputs: Tensor,
    ) -> str | None:
        """Returns why the model's loss of a batch is no mean over its records; None if it is."""
        whole, tolerance = self._loss(run(*args, **kwargs)), torch.finfo(outputs.dtype).eps ** 0.5
        if torch.allclose(whole, outputs.mean(), tolerance, tolerance, equal_nan=True):
            return None
        return (
            f"--loss model: of {len(outputs)} records the model returns {float(whole):.6g}, and "
            f"the mean of their losses alone is {float(outputs.mean()):.6g}; return the mean over "
            "the records, or name a loss of several records by --loss FILE.py:NAME"
        )

    def _loss(self, returned: Any) -> Tensor:
        named = dict(returned) if isinstance(returned, Mapping) else {"": returned}
        named = {"loss": named["loss"]} if "loss" in named else named
        if not named or not all(isinstance(x, Tensor) and x.numel() == 1 for x in named.values()):
            raise AuditError(
                f"--loss model: the model returns {type(returned).__name__}"
                f"{f' of {listed(list(map(str, named)))}' if isinstance(returned, Mapping) else ''}"
                "; return the batch's loss as one number, as `loss`, or in parts by name"
            )
        if len(named) > 1:
            self.note = f"the loss is the sum of {listed(list(map(str, named)))}"
        return torch.stack([part.reshape(()) for part in named.values()]).sum()

    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the outputs, which are the records' losses."""
        return outputs

    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Raise an error, as the labels are among the model's inputs."""
        raise AuditError(
            "--loss model: the labels are arguments of the model; nothing is differentiated by them"
        )

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Do nothing: the model has taken the labels."""


def _rows(named: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {name: values[row : row + 1] for name, values in named.items()}


BUILT_IN: dict[str, type[Loss]] = {
    loss.name: loss for loss in (CrossEntropy, MeanSquaredError, BinaryCrossEntropy, ModelLoss)
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the dtype of tensors that a model or a loss creates (states, masks, weights)."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)


def softplus(x: Tensor) -> Tensor:
    """Returns log(1 + eˣ), every derivative of which is as accurate as the value."""
    positive = x > 0
    return torch.where(positive, x, 0) + torch.where(positive, -x, x).exp().log1p()


def classes_second(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns outputs as (records, classes, …) with the positions of the targets.

    Args:
        outputs: (records, classes, …), or (records, …, classes) where the targets show it.
        targets: (records, …) class indices, or (records, classes, …) real numbers.

    Raises:
        AuditError: there is not one label for each position.
    """
    positions = targets.shape[2:] if targets.is_floating_point() else targets.shape[1:]
    if outputs.shape[2:] == positions:
        return outputs
    if outputs.shape[1:-1] == positions:
        return outputs.movedim(-1, 1)
    alike = targets.shape == outputs.shape
    advice = f"give one-hot labels as floats, or {_NAME_IT}" if alike else _NAME_IT
    raise AuditError(
        f"cross-entropy needs outputs (records, classes, …) with one integer class label for each "
        f"record or position; the model gives {tuple(outputs.shape)} for labels of shape "
        f"{tuple(targets.shape)}; {advice}"
    )


def along(values: Tensor, like: Tensor) -> Tensor:
    """Reshapes (records,) to (records, 1, …) with as many dimensions as a tensor."""
    return values.reshape(-1, *(1 for _ in like.shape[1:]))


def _one_hot(labels: Tensor, outputs: Tensor) -> Tensor:
    """Returns one-hot labels; unlike ``F.one_hot`` it reads no value, so that vmap works."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    return (labels.unsqueeze(1) == along(classes, outputs[0])).to(outputs.dtype)


def _targets_like(outputs: Tensor, labels: Tensor, loss: str) -> Tensor:
    if labels.numel() == outputs.numel():
        return labels.reshape(outputs.shape).to(outputs.dtype)
    if not labels.is_floating_point() and labels.dim() == 1 and outputs.dim() == 2:
        return _one_hot(labels, outputs)
    raise AuditError(
        f"--loss {loss}: labels of shape {tuple(labels.shape)} do not fit outputs of shape "
        f"{tuple(outputs.shape)}"
    )
