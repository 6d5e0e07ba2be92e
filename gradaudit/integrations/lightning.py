"""Lightning: a callback that looks at the gradients of local steps.

Source: Lightning's documentation (2025), ``Callback.on_before_optimizer_step``, as of 2.6.
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from gradaudit.observer import Observer, Steps


class ObserverCallback(Callback):
    """Looks at the gradients that the optimiser is about to use, after unscaling.

    These are local steps, of this machine's batches: what a federation shares is their sum over a
    round, what synchronous training shares their mean over machines. As many steps are looked at as
    the observer's share of the time allows; ``steps.worst`` is the gravest of them, and
    ``on_fail`` acts on those that are looked at: ``raise`` ends training, ``withhold`` skips the
    step.

    Args:
        observer: looks; made from the options without one.
        options: of ``Observer``.
    """

    def __init__(self, observer: Observer | None = None, **options: Any) -> None:
        self.steps = Steps(observer or Observer(**options))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look, where there is time.

        Raises:
            Blocked: the policy does not let it pass, and ``on_fail`` is ``raise``.
        """
        self.steps.step(pl_module)
