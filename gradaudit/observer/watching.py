"""Watches a model train: what a round, or each step of the optimiser, gives away."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gradaudit.core.text import listed, printable
from gradaudit.errors import UsageError
from gradaudit.observer.observer import Observation, Observer, stopwatch, warn
from gradaudit.observer.shared_verdict import Verdict
from gradaudit.report import Report

Each = Literal["round", "step"]


class Steps:
    """Looks at the gradients of an optimiser's steps, as often as its share of the time allows.

    These are local steps: what is shared may be their sum over a round, or their mean over
    machines, and gives away no more than they do.

    Attributes:
        worst: the gravest report of the steps that were looked at.
        looked_at: how many were.
        steps: how many there were.
    """

    def __init__(self, observer: Observer, label: str = "worst-step") -> None:
        self.observer, self.label = observer, label
        self.worst: Observation | None = None
        self.looked_at = self.steps = 0
        self._since, self._least = stopwatch(), 0.0

    def step(self, model: nn.Module, records: int | None = None) -> Observation | None:
        """Look at the gradients that the optimiser is about to use, where there is time for it.

        With ``on_fail="withhold"`` those that may not leave are dropped, and the step does nothing.

        Args:
            model: with gradients; parameters without one are passed over.
            records: number of records behind the gradients, where that is known.

        Raises:
            Blocked: as ``Observer.observe``.
        """
        self.steps += 1
        worked = self._since()
        allowance = self.observer.allowance
        if allowance.left + allowance.share * worked < self._least:
            return None
        gradients = gradients_of(model)
        if not gradients:
            return None
        spent = stopwatch()
        observation = self.observer.observe_states(
            lambda: (model.state_dict() if self.observer.subject else None, gradients),
            kind="gradient",
            records=records,
            seconds=worked,
            label=self.label,
        )
        self._least = max(spent(), self._least / 2)
        self.looked_at += 1
        if self.observer.on_fail == "withhold" and not observation.verdict.may_leave:
            model.zero_grad(set_to_none=True)
        if self.worst is None or _gravity(observation) > _gravity(self.worst):
            self.worst = observation
        self._since = stopwatch()
        return observation


def _gravity(observation: Observation) -> tuple[int, float]:
    rows = observation.report.rows if observation.report else []
    shares = [row.value or 0.0 for row in rows if row.metric == "record_share"]
    return observation.verdict.shown, max(shares, default=0.0)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns the gradients of a model's parameters by name, of those that have one."""
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


class Watch:
    """A context in which a model is trained, and whose update is looked at when it ends.

    ``with gradaudit.watch(model) as w: train(model)``; then ``w.verdict`` and ``w.report``. Where
    training raises, nothing is reported.
    """

    def __init__(
        self, model: nn.Module, observer: Observer, each: Each, records: int | None
    ) -> None:
        self.model, self.observer, self.each, self.records = model, observer, each, records
        self.steps = Steps(observer)
        self._observation: Observation | None = None
        self._before: Mapping[str, Tensor] | Exception = {}
        self._warned = False

    @property
    def report(self) -> Report | None:
        """The judged report; None before the end, or where nothing could be looked at."""
        return self._observation.report if self._observation else None

    @property
    def verdict(self) -> Verdict:
        """The verdict that may be sent on."""
        if self._observation is None:
            return Verdict.unobserved("nothing has been trained and looked at yet")
        return self._observation.verdict

    def __enter__(self) -> Self:
        """Remember the weights, or wait for steps."""
        if self.each == "step":
            self._hook = register_optimizer_step_pre_hook(self._on_step)
            return self
        copied = stopwatch()
        try:
            self._before = {name: array.clone() for name, array in self._arrays().items()}
        except Exception as error:  # raised again where the update is looked at
            self._before = error
        self.observer.allowance.spend(copied())
        self._trained = stopwatch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Look at what was trained."""
        if self.each == "step":
            self._hook.remove()
        elif kind is None:
            self._observation = self.observer.observe_states(
                self._states,
                kind="weights",
                parameters=[
                    name for name, _ in self.model.named_parameters(remove_duplicate=False)
                ],
                records=self.records,
                seconds=self._trained(),
            )

    def _states(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Returns the weights before and after training.

        Raises:
            Exception: whatever reading the model's state raises.
        """
        if isinstance(self._before, Exception):
            raise self._before
        return self._before, self._arrays()

    def _arrays(self) -> dict[str, Tensor]:
        """Returns the arrays of the state; what else it holds is named in one warning."""
        state = self.model.state_dict()
        others = [
            printable(str(name)) for name, value in state.items() if not torch.is_tensor(value)
        ]
        if others and not self._warned:
            warn("not observed, as it is no array: %s", listed(others))
            self._warned = True
        return {name: value.detach() for name, value in state.items() if torch.is_tensor(value)}

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Look at a step of an optimiser that has parameters of this model."""
        parameters = {id(parameter) for parameter in self.model.parameters()}
        if any(id(p) in parameters for group in optimizer.param_groups for p in group["params"]):
            self.steps.step(self.model, self.records)
            self._observation = self.steps.worst


def watch(
    model: nn.Module,
    observer: Observer | None = None,
    *,
    each: Each = "round",
    records: int | None = None,
    **options: Any,
) -> Watch:
    """Watch a model being trained.

    Args:
        model: model that is trained inside the ``with``; watching does not change it.
        observer: the observer that looks; without one it is made from the options. Keep it over
            rounds, as it learns how long looking takes.
        each: ``round`` looks at the difference that all of the training makes, which is what
            federated averaging shares; ``step`` at the gradients of the optimiser's steps, which is
            what synchronous training shares, as often as the time allows.
        records: how many records a round (or a step) is made of, where that is known.
        options: of ``Observer``: folder, policy, share, on_fail, capture, loss, smoothing,
            subject.

    Raises:
        UsageError: an option is out of range, or is given although an observer has it.
    """
    if each not in ("round", "step"):
        raise UsageError(f"each: {each!r} is neither 'round' nor 'step'")
    named = options if observer else {"model": type(model).__name__, **options}
    return Watch(model, given_or_made(observer, named), each, records)


def given_or_made(observer: Observer | None, options: Mapping[str, Any]) -> Observer:
    """Returns the given observer, or one made from these options.

    Raises:
        UsageError: an option is out of range, or is given although an observer has it.
    """
    if observer is not None and options:
        raise UsageError(f"{', '.join(options)}: give it to the observer")
    return observer or Observer(**options)


class StepsCallback:
    """Shared part of callbacks that trainers call before their optimiser's steps.

    These are local steps, of this machine's batches: what a federation shares is their sum over a
    round, what synchronous training shares their mean over machines. As many steps are looked at as
    the observer's share of the time allows; ``steps.worst`` is the gravest of them, and
    ``on_fail`` acts on those that are looked at: ``raise`` ends training, ``withhold`` skips the
    step.

    Args:
        observer: the observer that looks; without one it is made from the options.
        options: of ``Observer``.

    Raises:
        UsageError: an option is out of range, or is given although an observer has it.
    """

    def __init__(self, observer: Observer | None = None, **options: Any) -> None:
        self.steps = Steps(given_or_made(observer, options))
