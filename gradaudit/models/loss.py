"""What every training loss is: a loss of each record, and what a batch makes of them."""

from abc import ABC, abstractmethod

from torch import Tensor


class Loss(ABC):
    """A loss of records, and of a batch: their mean, weighted where records have weights."""

    name: str

    @abstractmethod
    def per_record(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each record.

        Args:
            outputs: (records, …) of the model.
            targets: labels as the data set holds them, or the real-valued targets of ``soft``.

        Returns:
            (records,) losses.
        """

    def weights(self, targets: Tensor) -> Tensor | None:
        """What each record counts in a batch, (records,); None where all count alike.

        The gradient of a batch is Σ w g / Σ w of its records' gradients.
        """
        return None

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, a scalar: Σ w ℓ / Σ w.

        Args:
            outputs: (records, …) of the model.
            targets: as ``per_record`` takes them.
        """
        losses, weights = self.per_record(outputs, targets), self.weights(targets)
        if weights is None:
            return losses.mean()
        return weighted_mean(losses, weights)

    def coupling(self, outputs: Tensor, targets: Tensor) -> str | None:
        """Why the loss of a batch is no weighted mean of its records' losses; None where it is.

        Args:
            outputs: (records, …) of a few records.
            targets: as ``per_record`` takes them.
        """
        return None

    def check(self, outputs: Tensor, labels: Tensor) -> None:
        """Look whether outputs and labels fit each other and this loss.

        Raises:
            AuditError: they do not; the message names the shapes or the labels at fault.
        """
        self.soft(outputs, labels)

    def predictions(self, outputs: Tensor) -> Tensor:
        """What of the model's outputs are its predictions (a defense may append more)."""
        return outputs

    @abstractmethod
    def soft(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The labels as real numbers that the loss can be differentiated by.

        Raises:
            AuditError: the labels do not fit the outputs, or this loss has no real-valued labels.
        """


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Σ w ℓ / Σ w of (records,)."""
    shares = weights.double() / weights.double().sum()
    return (shares.to(losses) * losses).sum()
