"""Whether a model's gradients move without jumps as its input does, read off what it computes.

A gradient holds the derivatives of activations: where one has a kink, as a ReLU has, gradients
jump, a jump holds more information than any JᵀJ, and the van Trees inequality does not hold (R.
Gill and B. Levit 1995 ask for absolute continuity). So each operation of a forward pass must be
known to have a derivative that is continuous, with a slope almost everywhere.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.gradients.capture import OperatorMode
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, MeanSquaredError
from gradaudit.models.target import Layer

_SMOOTH = """
convolution _convolution mkldnn_convolution cudnn_convolution addmm mm bmm baddbmm addbmm addmv mv
dot linear mkldnn_linear add sub rsub neg sum mean cumsum mul square pow exp expm1 sin cos erf
erfc avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d
upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
im2col col2im

view _unsafe_view reshape _reshape_alias t transpose permute expand squeeze unsqueeze slice select
cat stack split split_with_sizes unsafe_split unsafe_chunk unbind clone detach alias copy _to_copy
unfold as_strided narrow diagonal constant_pad_nd reflection_pad1d reflection_pad2d
reflection_pad3d replication_pad1d replication_pad2d replication_pad3d pixel_shuffle
pixel_unshuffle roll flip repeat index index_select gather lift_fresh lift_fresh_copy
channel_shuffle tril triu

empty empty_like empty_strided new_empty zeros zeros_like new_zeros ones ones_like new_ones full
full_like new_full fill zero arange linspace scalar_tensor eye

tanh sigmoid softplus gelu silu mish log_sigmoid_forward logsumexp _softmax _log_softmax celu atan
asinh native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit
cudnn_batch_norm var _native_batch_norm_legit_no_training var_mean _fused_rms_norm
_thnn_fused_lstm_cell _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
_scaled_dot_product_attention_math

div reciprocal rsqrt sqrt log log1p linalg_vector_norm
"""
"""What is linear, what moves numbers, makes constants, is curved, and is smooth but at zero."""
_KINKED = """
relu leaky_relu prelu _prelu_kernel rrelu elu hardtanh hardsigmoid hardswish clamp clamp_min
clamp_max max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices
mkldnn_max_pool2d adaptive_max_pool2d adaptive_max_pool3d max min maximum minimum amax amin abs
softshrink
"""
"""Continuous all the same."""
_CONSTANT = """
empty_like zeros_like ones_like full_like new_empty new_zeros new_ones new_full empty_strided
new_empty_strided
"""
"""Operations whose results follow from a tensor's shape alone."""
_REMEDY = "train it with tanh, sigmoid, softplus, GELU or SiLU and average pooling"
_SMOOTH_LOSSES = (CrossEntropy, BinaryCrossEntropy, MeanSquaredError)


def jumps(
    view: FunctionalModel, layers: Sequence[Layer], records: Tensor, labels: Tensor
) -> dict[str, str]:
    """Layers whose gradients may jump, and why: the module, the operation and the remedy.

    A kink makes the gradients of layers before it jump. Those behind it see only its output, which
    is continuous.

    Args:
        view: the model.
        layers: those asked about.
        records: one or more, as ``view.cast`` gives them.
        labels: theirs.
    """
    watch = _watched(view, records, labels)
    return {layer.name: why for layer in layers if (why := watch.why(layer.name))}


def _watched(view: FunctionalModel, records: Tensor, labels: Tensor) -> "_Watch":
    watch = _Watch()
    with torch.no_grad():
        with _naming(view.module, watch), watch:
            outputs = view.outputs({}, records[:1])
        if not isinstance(view.loss, _SMOOTH_LOSSES):
            watch.running = [f"the loss {view.loss.name}"]
            with watch:
                view.loss.per_record(outputs, labels[:1])
    return watch


class _Watch(OperatorMode):  # type: ignore[no-untyped-call]
    """Keeps operations that are not known to be smooth.

    Attributes:
        running: what modules are running, in words, the innermost last.
        entered: names of those that have run or are running, with why their gradients may jump.
        kinks: what was found, in words.
        everywhere: why all gradients may jump: something that may not even be continuous.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.entered: dict[str, str] = {}
        self.kinks: list[str] = []
        self.everywhere = ""

    def why(self, layer: str) -> str:
        """Why a layer's gradient may jump; a layer that was not seen to run is before all."""
        first = self.kinks[0] if self.kinks else ""
        return self.everywhere or self.entered.get(layer, first)

    def enter(self, name: str, kind: str) -> None:
        self.running.append(f"{kind} {name}" if name else kind)
        self.entered.setdefault(name or "(model)", "")

    def leave(self) -> None:
        self.running.pop()

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        output = operator(*args, **kwargs)
        name = operator.overloadpacket.__name__.removesuffix("_")
        if (_real(output) and not _smooth(name, args)) or _decides(name, output, args):
            self._found(name)
        return output

    def _found(self, name: str) -> None:
        where = self.running[-1] if self.running else "the model"
        if name not in _KINKED.split():
            self.everywhere = self.everywhere or (
                f"{where} computes {name}, which is not known to be smooth; where gradients jump "
                f"there is no floor; {_REMEDY}"
            )
            return
        self.kinks.append(
            f"{where} has a kink ({name}), where gradients jump and tell more than any derivative "
            f"does: no floor; {_REMEDY}"
        )
        self.entered = {before: why or self.kinks[-1] for before, why in self.entered.items()}


def _real(output: Any) -> bool:
    """Whether there are real numbers, which may depend on the input."""
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    return any(isinstance(x, Tensor) and x.is_floating_point() for x in outputs)


def _decides(name: str, output: Any, args: Sequence[Any]) -> bool:
    """Whether truth values, places or Python numbers come out of real ones: a mask, a branch."""
    return not _real(output) and _real(args) and name not in _CONSTANT.split()


def _smooth(name: str, args: Sequence[Any]) -> bool:
    if name == "elu":  # alpha, scale, input scale: smooth where both slopes at zero are one
        alpha, scale, inner = ([*args[1:4], 1, 1, 1][k] for k in range(3))
        return float(alpha) * float(inner) == 1 and float(scale) > 0
    if name == "pow":
        return isinstance(args[1], (int, float)) and (args[1] >= 2 or args[1] in (0, 1))
    return name in _SMOOTH.split()


@contextmanager
def _naming(model: nn.Module, watch: _Watch) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, part in model.named_modules():
            kind = type(part).__name__
            for handle in (
                part.register_forward_pre_hook(
                    lambda *_, name=name, kind=kind: watch.enter(name, kind)
                ),
                part.register_forward_hook(lambda *_: watch.leave(), always_call=True),
            ):
                hooks.callback(handle.remove)
        yield
