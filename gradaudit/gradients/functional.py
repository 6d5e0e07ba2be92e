"""A target's model as a pure function of its parameters, which leaves the model as it was.

Every engine that differentiates a model goes through it; it works in ``torch.func`` transforms.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.core.text import listed
from gradaudit.data.common.packing import InputPart, arguments
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.capture import FunctionMode
from gradaudit.gradients.substitutes import OBSERVING, substituting, without_recomputation
from gradaudit.models.losses import Loss, default_dtype
from gradaudit.models.module_kinds import BATCH_NORMS
from gradaudit.models.target import Mode, Target

Parameters = Mapping[str, Tensor]
COMPANY = 32
"""Records of the batch in which each is compared with itself alone."""
_ALONE = 1e-6
_NORMALISE_BY_THE_BATCH = {F.batch_norm: "training", F.instance_norm: "use_input_stats"}


@dataclass(frozen=True)
class FunctionalModel:
    """A model, its loss and its mode as functions of parameters, inputs and labels.

    The module is only called, never changed. Parameters are detached copies of every trainable one,
    in ``dtype`` on ``device``, constants those of frozen parameters and buffers (integer ones keep
    their type). Dropout draws from the seed: every call with one batch shape sees the same masks.
    """

    module: nn.Module
    parameters: dict[str, Tensor]
    constants: dict[str, Tensor]
    loss: Loss
    mode: Mode
    dtype: torch.dtype
    device: torch.device
    seed: int = 0
    parts: tuple[InputPart, ...] = ()
    coupled: str | None = None

    @classmethod
    def of(cls, target: Target, *, dtype: torch.dtype | None = None, seed: int = 0) -> Self:
        """A functional copy of the target on its device (in float32 where that has no float64).

        In the target's own precision, where no other is asked for.

        Raises:
            AuditError: parameters are complex.
        """
        device = target.device
        dtype = torch.float32 if device.type == "mps" else dtype or target.precision
        model = target.model
        complex_ones = [name for name, p in model.named_parameters() if p.is_complex()]
        if complex_ones:
            raise AuditError(
                f"the model's parameters {listed(complex_ones)} are complex, and gradients are of "
                "real ones; hold them as pairs of reals, and take torch.view_as_complex of them in "
                "forward"
            )
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        fixed = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        parameters = _copies(trainable, dtype)
        buffers = {
            name: torch.zeros_like(buffer) if name.endswith(OBSERVING) else buffer
            for name, buffer in model.named_buffers()
        }
        constants = _copies({**fixed, **buffers}, dtype)
        how = target.loss, target.mode, dtype, device, seed, target.parts, target.coupled
        return cls(model, parameters, constants, *how)

    def in_precision(self, dtype: torch.dtype) -> Self:
        """The same function in another precision; itself in float64 if its device has none."""
        if self.dtype is dtype or self.device.type == "mps":
            return self
        parameters, constants = (_copies(x, dtype) for x in (self.parameters, self.constants))
        return replace(self, parameters=parameters, constants=constants, dtype=dtype)

    @torch.no_grad()
    def in_double_precision(self, inputs: Tensor) -> Self:
        """The same function in float64; itself where it cannot run on two of the inputs so."""
        double = self.in_precision(torch.float64)
        try:
            double.outputs({}, double.cast(inputs[:2]))
        except Exception:  # a model that computes in its own precision alone
            return self
        return double

    def cast(self, data: Tensor) -> Tensor:
        """Inputs or labels on the model's device, real numbers in its precision."""
        dtype = self.dtype if data.is_floating_point() else data.dtype
        return data.to(self.device, dtype, non_blocking=self.device.type != "cpu")

    def outputs(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The model's outputs, (records, …).

        The parameters are some or all of the trainable ones; the others are the target's. Inputs
        (records, …) are as ``cast`` gives them; the model gets a copy to work on, for its
        ``forward`` may write into what it is given.
        """
        args, kwargs = arguments(self.parts, inputs.clone())
        return self.loss.outputs_of(partial(self.call, parameters), args, kwargs)

    def call(self, parameters: Parameters, *args: Any, **kwargs: Any) -> Any:
        """The model's output for its own arguments, with some or all parameters replaced."""
        # what is compiled would be compiled anew for each shape and transform
        compiling = "torch._dynamo" in sys.modules
        state = {name: constant.clone() for name, constant in self.constants.items()}
        state |= {**self.parameters, **parameters}
        with (
            running(self.module, self.mode),
            drawing_from(self.seed, self.device),
            default_dtype(self.dtype),
            elementary_attention(),
            _BatchStatisticsOnly() if self.mode == "train" else nullcontext(),
            substituting(self.module),
            without_recomputation(self.module),
            torch.compiler.set_stance("force_eager") if compiling else nullcontext(),
            _without_cudnn() if self._recurs_on_a_gpu else nullcontext(),
        ):
            return torch.func.functional_call(self.module, state, args, kwargs)

    @cached_property
    def _recurs_on_a_gpu(self) -> bool:
        recurrent = (isinstance(part, nn.RNNBase) for part in self.module.modules())
        return self.device.type == "cuda" and any(recurrent)

    def losses(self, parameters: Parameters, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, (records,), of ``targets`` as ``Loss.per_record`` takes them."""
        return self.loss.per_record(self.outputs(parameters, inputs), targets)

    def batch_loss(self, parameters: Parameters, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, a scalar; weighted where the loss weighs records."""
        return self.loss.of_batch(self.outputs(parameters, inputs), targets)

    def record_loss(self, parameters: Parameters, record: Tensor, target: Tensor) -> Tensor:
        """The loss of one record without a batch dimension: what ``vmap(grad(…))`` goes over."""
        return self.losses(parameters, record.unsqueeze(0), target.unsqueeze(0))[0]

    def check(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The outputs for these records, after a look at whether they can be audited at all.

        Raises:
            AuditError: the model cannot be called on the inputs, writes into its own weights, gives
                something else than one output a record, or the labels do not fit the outputs and
                the loss.
            NotApplicable: a record that is alone cannot be normalised by its batch.
        """
        with torch.no_grad():
            try:
                outputs = self._outputs_of_kept_weights(inputs)
            except AuditError:
                raise
            except Exception as error:
                self._expect_company(inputs, error)
                if self._runs_in_single_precision(inputs):
                    raise AuditError(
                        f"the model cannot be run in double precision: {_first_line(error)}; use "
                        "--dtype float32, in which it can"
                    ) from error
                raise AuditError(
                    f"the model cannot be run on inputs {self._shapes(inputs)}: "
                    f"{_first_line(error)}; name the model for such inputs (--model, its ?k=v) or "
                    "the records that it takes (--data, its drop=, scale=, tokens=)"
                ) from error
            if outputs.dim() == 0 or len(outputs) != len(inputs):
                raise AuditError(
                    f"the model gives an output of shape {tuple(outputs.shape)} for "
                    f"{len(inputs)} records; one output a record is needed"
                )
            self.loss.check(outputs, labels)
            args, kwargs = arguments(self.parts, inputs.clone())
            run = partial(self.call, {})
            if reason := self.loss.batch_mismatch(run, args, kwargs, outputs):
                raise AuditError(f"{reason}{self.remedy}")
        return outputs

    def _runs_in_single_precision(self, inputs: Tensor) -> bool:
        if self.dtype is torch.float32:
            return False
        single = self.in_precision(torch.float32)
        try:
            single.outputs({}, single.cast(inputs))
        except Exception:  # then its precision is not what it cannot be run for
            return False
        return True

    def _expect_company(self, inputs: Tensor, error: Exception) -> None:
        """Name the remedy where a single record fails because it would be normalised by its batch.

        Raises:
            NotApplicable: so it is.
        """
        if len(inputs) == 1 and (coupled := self._normalised_together()):
            raise NotApplicable(
                f"{coupled}, and alone a record fails: {_first_line(error)}; take several at a "
                f"time, where the audit can (--batch-size){self.remedy}"
            )

    def _shapes(self, inputs: Tensor) -> str:
        """Shapes of the inputs, or of each that the model is called with by name."""
        args, kwargs = arguments(self.parts, inputs)
        named = kwargs or {"": args[0]}
        shapes = [f"{name} of shape {tuple(x.shape)} ({x.dtype})" for name, x in named.items()]
        return listed([shape.strip() for shape in shapes])

    def _outputs_of_kept_weights(self, inputs: Tensor) -> Tensor:
        """Compute the outputs, and refuse a model that writes into its own weights."""
        outputs = self.outputs(self.parameters, inputs)
        weights = dict(self.module.named_parameters())
        changed = [
            name
            for name, parameter in self.parameters.items()
            if not _same(parameter, weights[name].detach().to(parameter))
        ]
        if changed:
            raise AuditError(
                f"the model writes into its own weights when it is run ({listed(changed)}), so "
                "that no two calls see the same model; leave them as they are in forward"
            )
        return outputs

    def stochastic(self, inputs: Tensor) -> bool:
        """Whether a call draws random numbers (dropout in training mode), found by trying."""
        with torch.no_grad():
            once = self.outputs({}, inputs)
            again = replace(self, seed=self.seed + 1).outputs({}, inputs)
        return not torch.allclose(once, again, equal_nan=True)

    @property
    def remedy(self) -> str:
        """The remedy for what training mode does; empty in evaluation mode."""
        return "; use --mode eval" if self.mode == "train" else ""

    def coupling(self, inputs: Tensor, targets: Tensor | None = None) -> str | None:
        """Why one record's output or loss depends on the records beside it; None where it does not.

        What opening the subject found, else by the type of the modules, and by trying in double
        precision: outputs of two records and of 32, each alone and in the batch, and where
        ``targets`` are given the loss of these outputs and the mean of the records'. A stochastic
        model cannot be tried, its masks are drawn for the whole batch.
        """
        if reason := self._normalised_together():
            return reason
        if self.coupled == "" or (self.coupled and targets is not None):
            return self.coupled or None
        double = self.in_double_precision(inputs)
        return double._tried(inputs[:COMPANY], None if targets is None else targets[:COMPANY])

    def coupling_of_many(self, inputs: Tensor, targets: Tensor) -> str | None:
        """Why a batch's outputs or loss are not those of its parts of 32; None where they are.

        Larger batches than ``coupling`` compares with single records: a capacity shared by a batch
        may bind in them alone.
        """
        double = self.in_double_precision(inputs)
        batch = double.cast(inputs)
        with torch.no_grad():
            together = double.outputs({}, batch)
            parts = torch.cat([double.outputs({}, part) for part in torch.split(batch, COMPANY)])
            for index in range(len(batch)):
                if not _close(parts[index], together[index]):
                    if double.stochastic(batch):
                        return None
                    module = double._first_that_differs(batch, index)
                    return f"{module} is a function of several records"
        return double.loss.coupling(together, double.cast(targets))

    @torch.no_grad()
    def _tried(self, inputs: Tensor, targets: Tensor | None) -> str | None:
        for size in sorted({min(2, len(inputs)), len(inputs)}):
            batch = self.cast(inputs[:size])
            try:
                together = self.outputs({}, batch)
                if targets is not None:
                    self.loss.check(together, self.cast(targets[:size]))
            except Exception:  # they cannot be audited at all: ``check`` says why
                return None
            reason = self._depends_on_others(batch, together) if size > 1 else None
            if reason is None and targets is not None:
                reason = self.loss.coupling(together, self.cast(targets[:size]))
            if reason is not None:
                return reason
        return None

    def _normalised_together(self) -> str | None:
        """The first module that normalises a record by those beside it, in words."""
        with running(self.module, self.mode):
            for name, module in self.module.named_modules():
                if isinstance(module, BATCH_NORMS) and (
                    module.training or module.running_mean is None
                ):
                    return f"{name or type(module).__name__} normalises by its batch's statistics"
        return None

    def _depends_on_others(self, batch: Tensor, together: Tensor) -> str | None:
        """Why some record's output alone is another than that in the batch."""
        for index in range(len(batch)):
            record = batch[index : index + 1]
            try:
                alone = self.outputs({}, record)
            except Exception as error:
                reason = f"the model cannot be run on one record alone: {_first_line(error)}"
                return None if self.stochastic(batch) else reason
            if not _close(alone, together[index : index + 1]):
                if self.stochastic(batch):
                    return None
                module = self._first_that_differs(batch, index)
                return f"{module} is a function of several records"
        return None

    def _first_that_differs(self, batch: Tensor, index: int) -> str:
        """The first module whose output for a record alone is another than that in the batch."""
        alone, together = (self._outputs_of_modules(x) for x in (batch[index : index + 1], batch))
        for (name, one), (other, many) in zip(alone, together, strict=False):
            if name != other:
                break
            fits = len(one) == 1 and many.shape == (len(batch), *one.shape[1:])
            if name and fits and not _close(one, many[index : index + 1]):
                return f"the module `{name}`"
        return "the model"

    def _outputs_of_modules(self, inputs: Tensor) -> list[tuple[str, Tensor]]:
        """Tensors that modules return, in the order in which they do."""
        seen: list[tuple[str, Tensor]] = []

        def keep(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim():
                seen.append((name, output))

        hooks = [
            module.register_forward_hook(partial(keep, name))
            for name, module in self.module.named_modules()
        ]
        try:
            self.outputs({}, inputs)
        finally:
            for hook in hooks:
                hook.remove()
        return seen


def _close(alone: Tensor, together: Tensor) -> bool:
    if alone.shape != together.shape:
        return False
    tolerance = _ALONE if alone.dtype is torch.float64 else torch.finfo(torch.float32).eps ** 0.5
    if not alone.is_floating_point():
        return torch.equal(alone, together)
    size = float(together.abs().nan_to_num(0, 0).max()) if together.numel() else 0.0
    return torch.allclose(alone, together, tolerance, tolerance * size, equal_nan=True)


@contextmanager
def running(module: nn.Module, mode: Mode) -> Iterator[None]:
    """Put a module into a mode and every submodule's training flag back afterwards."""
    flags = [(part, part.training) for part in module.modules()]
    try:
        module.train(mode == "train")
        yield
    finally:
        for part, flag in flags:
            part.training = flag


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Let global random numbers start from a seed, and put their generators back afterwards."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Run recurrent cells in torch's own kernels: cuDNN's are differentiated in training only."""
    enabled, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


@contextmanager
def elementary_attention() -> Iterator[None]:
    """Keep ``nn.TransformerEncoder`` in evaluation from a fused pass that has no derivative."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _BatchStatisticsOnly(FunctionMode):
    """Keeps norms in training mode from writing running statistics, which ``vmap`` forbids.

    Their outputs are the same: in training mode they normalise by the batch alone.
    """

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        if function not in _NORMALISE_BY_THE_BATCH:
            return function(*args, **kwargs)
        call = inspect.signature(function).bind(*args, **kwargs)
        call.apply_defaults()
        if call.arguments[_NORMALISE_BY_THE_BATCH[function]]:
            call.arguments |= {"running_mean": None, "running_var": None}
        return function(*call.args, **call.kwargs)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether they are equal to the bit, or both no number."""
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _copies(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        for name, tensor in tensors.items()
    }


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
