"""Lightning: a callback that observes the gradients of local steps.

Source: Lightning's documentation (2025), ``Callback.on_before_optimizer_step``, as of 2.6.
"""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from gradaudit.observer.watching import StepsCallback


class LightningObserverCallback(StepsCallback, Callback):
    """Observes the gradients that the optimiser is about to use, after unscaling.

    Its arguments, and what it does with them, are those of ``StepsCallback``.
    """

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Observe the gradients, if the time allows.

        Raises:
            Blocked: the policy does not let it pass, and ``on_fail`` is ``raise``.
        """
        self.steps.step(pl_module)


ObserverCallback = LightningObserverCallback
"""Name of the callback that users import, the same for each framework."""
