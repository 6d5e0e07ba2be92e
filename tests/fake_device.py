"""A device that is none: its tensors compute on the CPU and refuse others than their own.

Run as a script it audits a small model on the CPU and there, and prints the rows of both as JSON.
It is a process of its own because torch takes one such device, and keeps it.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration

from gradaudit.audits import audits
from gradaudit.config import SubjectSettings
from gradaudit.gradients.memory import _tensors
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import measured
from gradaudit.subject import Subject

DEVICE = "fake:0"
_WAITS = {
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
"""What the CPU needs to know before it goes on: numbers, sizes, whether an algorithm converged."""
_COPIES = {"copy_", "_to_copy"}
"""The CPU waits for these too, but for those to the device that need not be done at once."""
waits: Counter[str] = Counter()
"""How often the CPU had to wait for the device, by the operation."""
_MAY_MIX = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}
"""What a real device takes beside tensors of its own: copies, and indices."""


class Fake(Tensor):
    """A tensor that says it is on the device, around one on the CPU."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, raw: Tensor) -> "Fake":
        fake: Fake = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
            requires_grad=raw.requires_grad,
        )
        fake.raw = raw
        return fake

    def data_ptr(self) -> int:
        """Where it lies, as on any real device."""
        return self.raw.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Another; torch would copy a storage, which there is none of."""
        copied: Tensor = Fake(self.raw.detach().clone())
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(operation, args, kwargs or {})


def computed(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute on the CPU what was asked for on the device."""
    expect_one_device(operation, args, kwargs)
    if _waits(operation, args, kwargs):
        waits[operation.overloadpacket.__name__] += 1
    asked = kwargs.get("device")
    plain, named = _mapped(_bare, args), _mapped(_bare, kwargs)
    if asked is not None:
        named["device"] = "cpu"
    if operation is torch.ops.aten._efficientzerotensor.default:
        operation = torch.ops.aten.zeros.default
    with torch.no_grad():
        result = operation(*plain, **named)
    for given in args:
        if given is not None and _bare(given) is result:
            return given  # changed in place
    leaves = asked is not None and torch.device(asked).type == "cpu"
    return result if leaves else _mapped(_clad, result)


def expect_one_device(operation: Any, args: Any, kwargs: Any) -> None:
    """Refuse what a real device refuses: a tensor of another one, but for single numbers."""
    tensors = [*_tensors(args), *_tensors(kwargs)]
    if operation.overloadpacket.__name__ in _MAY_MIX or not any(
        isinstance(tensor, Fake) for tensor in tensors
    ):
        return
    for tensor in tensors:
        if not isinstance(tensor, Fake) and tensor.dim():
            raise RuntimeError(f"{operation}: a tensor {tuple(tensor.shape)} is on the CPU")


def _waits(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the CPU has to wait for what the device works on, as with CUDA."""
    name = operation.overloadpacket.__name__
    if name in {"index", "index_put", "index_put_", "_index_put_impl_"}:
        indices = [index for index in args[1] if index is not None]
        return any(_is_mask(index) or not isinstance(index, Fake) for index in indices)
    if name not in _COPIES:
        return name in _WAITS
    sent, received = _ends(args, kwargs)
    queued = not sent and (kwargs.get("non_blocking") or (name == "copy_" and True in args[2:]))
    return sent != received and not queued


def _ends(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a copy is from the device, and whether to it."""
    if len(args) > 1:  # copy_(to, from)
        return isinstance(args[1], Fake), isinstance(args[0], Fake)
    here, asked = isinstance(args[0], Fake), kwargs.get("device")
    return here, here if asked is None else torch.device(asked).type != "cpu"


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """What operators take or give with their leaves changed: many times as quick as torch's way."""
    if isinstance(tree, tuple | list):
        return type(tree)([_mapped(function, branch) for branch in tree])
    if isinstance(tree, dict):
        return {key: _mapped(function, branch) for key, branch in tree.items()}
    return function(tree)


def _bare(value: Any) -> Any:
    return value.raw if isinstance(value, Fake) else value


def _clad(value: Any) -> Any:
    return Fake(value) if isinstance(value, Tensor) else value


class MadeThere(TorchFunctionMode):
    """What Python's own numbers and lists need on the way to such a device and back."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        asked = kwargs.get("device")
        if function in (torch.tensor, torch.as_tensor) and asked == torch.device(DEVICE):
            return function(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        if function is Tensor.tolist and isinstance(args[0], Fake):
            return args[0].cpu().tolist()
        return function(*args, **kwargs)


_PlainGenerator = torch.Generator


class _Generator(_PlainGenerator):
    """The device's random numbers are the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _PlainGenerator.__new__(cls, "cpu")

    def __init__(self, device: Any = "cpu") -> None:
        """Nothing is left to do."""


def plug_in() -> None:
    """Let torch know the device; there is no way back."""
    nn.Linear(1, 1).to("meta")  # what this imports reads the type of generators
    backend_registration._setup_privateuseone_for_python_backend("fake")
    library = torch.library.Library("_", "IMPL")
    library.fallback(
        lambda operation, *args, **kwargs: computed(operation, args, kwargs), "PrivateUse1"
    )
    vars(torch)["fake_device_library"] = library
    vars(torch)["Generator"] = _Generator


def there(subject: Subject) -> Subject:
    """The same with its models on the device; records stay where they were read."""
    moved = (replace(each, model=each.model.to(DEVICE)) for each in subject.targets)
    return replace(subject, targets=tuple(moved))


def rows_of(subject: Subject, audit: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Rows by what tells them apart, and why the audit broke off if it did."""
    kind = audits()[audit]
    before = waits.total()
    outcome = measured(subject, kind(kind.Options(**options)), Silent())
    rows = {str(row.key): (row.status, row.value, row.reason) for row in outcome.part.rows}
    return {"fault": outcome.fault, "rows": rows, "waits": waits.total() - before}


def main() -> None:
    """Audit as the cases on standard input say.

    They are [{"subject", "audit", "options", "only_there"}, …].
    """
    cases = json.load(sys.stdin)
    chosen = [SubjectSettings(**case["subject"], device="cpu") for case in cases]
    work = [(case["audit"], case["options"]) for case in cases]
    plug_in()  # before torch starts its threads, one a device
    here = [
        None if case["only_there"] else rows_of(open_subject(s), *each)
        for s, each, case in zip(chosen, work, cases, strict=True)
    ]
    with MadeThere():
        away = [
            rows_of(there(open_subject(s)), *each) for s, each in zip(chosen, work, strict=True)
        ]
    found = [{"here": one, "there": other} for one, other in zip(here, away, strict=True)]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
