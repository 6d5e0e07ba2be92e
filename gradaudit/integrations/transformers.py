"""transformers: a callback of its ``Trainer`` that observes the gradients of local steps.

Source: transformers' documentation (2025), ``TrainerCallback.on_pre_optimizer_step``, as of 5.0.
"""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradaudit.observer.watching import StepsCallback


class TransformersObserverCallback(StepsCallback, TrainerCallback):
    """Observes the gradients that the optimiser is about to use, after the trainer clipped them.

    Its arguments, and what it does with them, are those of ``StepsCallback``.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Take over the trainer's label smoothing."""
        observer = self.steps.observer
        observer.smoothing = args.label_smoothing_factor or observer.smoothing

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Observe the gradients, if the time allows.

        Raises:
            Blocked: the policy does not let it pass, and ``on_fail`` is ``raise``.
        """
        model: nn.Module = kwargs["model"]
        self.steps.step(model)


ObserverCallback = TransformersObserverCallback
"""Name of the callback that users import, the same for each framework."""
