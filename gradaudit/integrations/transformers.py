"""transformers: a callback of its ``Trainer`` that looks at the gradients of local steps.

Source: transformers' documentation (2025), ``TrainerCallback.on_pre_optimizer_step``, as of 5.0.
"""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradaudit.observer import Observer, Steps


class ObserverCallback(TrainerCallback):
    """Looks at the gradients that the optimiser is about to use, after the trainer clipped them.

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

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Look, where there is time.

        Raises:
            Blocked: the policy does not let it pass, and ``on_fail`` is ``raise``.
        """
        model: nn.Module = kwargs["model"]
        self.steps.step(model)
