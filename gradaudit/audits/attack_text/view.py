"""An attacker's view of texts: the model, the update, and its number of sequences.

Seeing what comes in at linear maps while a model runs, and stopping it once that is seen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import JsonValue
from torch import Tensor

from gradaudit.data.common.packing import InputPart
from gradaudit.gradients.capture import FunctionMode, attention_in_parts, by_name
from gradaudit.gradients.functional import FunctionalModel

_ARGUMENTS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    torch.addmm: ("bias", "input", "weight"),
    torch.matmul: ("input", "weight"),
    F.embedding: ("input", "weight"),
}
_NO_TOKENS = ("mask", "type", "position", "segment", "length")
"""Words in the names of a text's inputs that are not its tokens."""


class LastMapReached(Exception):  # noqa: N818 - it is no error
    """Raised when the last linear map of interest was called."""


class InputCapture(FunctionMode):
    """Keeps the inputs of linear maps, whose weights are recognised by identity.

    Attributes:
        seen: by the weight's name, (…, width), in the order of the first use.
        axes: which dimension of the weight faces what comes in.
        looked_up: what tables are read at first, by their names.
        tables: each table that is read, named or not, and at which rows, read by read.
    """

    def __init__(self, weights: Mapping[str, Tensor] = {}, last: str | None = None) -> None:
        """Watch these weights.

        Args:
            weights: by name.
            last: the one at which the model is stopped, by :class:`LastMapReached`.
        """
        super().__init__()
        self._names = {id(tensor): name for name, tensor in weights.items()}
        self._last = last
        self.seen: dict[str, Tensor] = {}
        self.axes: dict[str, int] = {}
        self.looked_up: dict[str, Tensor] = {}
        self.tables: list[tuple[Tensor, Tensor]] = []

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Pass every call through, and record those that apply a watched weight."""
        if function is F.multi_head_attention_forward:
            with self:
                return attention_in_parts(*args, **kwargs)
        if function in _ARGUMENTS:
            call = by_name(_ARGUMENTS[function], args, kwargs)
            name = self._names.get(id(call.get("weight")))
            if function is F.embedding:
                self.tables.append((call["weight"], call["input"]))
                if name is not None:
                    self.looked_up.setdefault(name, call["input"])
            elif name is not None:
                self.seen.setdefault(name, call["input"])
                self.axes.setdefault(name, 1 if function is F.linear else 0)
                if name == self._last:
                    raise LastMapReached
        return function(*args, **kwargs)


Task = Literal["next-token", "masked", "class"]
"""What the loss asks of a text: its next tokens, those that were masked, or a class."""


@dataclass(frozen=True)
class TextView:
    """An attacker's view of an update of texts.

    Attributes:
        model: weights, architecture and loss.
        update: by parameter, of those that are shared and looked at.
        lengths: how many positions each text fills.
        length: positions of the longest text; a text fills the first.
        task: what the loss asks for.
        vocabulary: how many tokens there are.
        padding: the token of an empty position.
        knowledge: what the attacker was given, in words.
        earlier: views of the updates that the same texts made in earlier rounds, oldest first.
    """

    model: FunctionalModel
    update: dict[str, Tensor]
    lengths: tuple[int, ...]
    length: int
    task: Task
    vocabulary: int
    padding: int = 0
    knowledge: dict[str, JsonValue] = field(default_factory=dict)
    earlier: "tuple[TextView, ...]" = ()

    @property
    def sequences(self) -> int:
        """The number of texts behind the update."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """The number of positions that the texts fill together."""
        return sum(self.lengths)

    @property
    def inner(self) -> tuple[int, ...]:
        """The number of positions of each text for which inner maps have a gradient.

        A loss that asks for the next token never uses the last.
        """
        last = 1 if self.task == "next-token" else 0
        return tuple(length - last for length in self.lengths)

    def inputs(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Make the model's inputs for texts, (texts, …), as its data set would.

        Args:
            ids: (texts, positions).
            lengths: (texts,) positions that are filled; None is all of them.
        """
        return packed_inputs(self.model.parts, ids, lengths)

    def seen(
        self, names: Sequence[str], ids: Tensor, lengths: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Compute the input at each of these weights, (texts, positions, width), without gradients.

        The model is run no further than to the last of them that it comes to.

        Args:
            names: of weights.
            ids: (texts, positions).
            lengths: see :meth:`inputs`.
        """
        model = replace(self.model, parts=resized(self.model.parts, ids.shape[1]))
        with self.capturing(names) as capture:
            model.outputs({}, self.inputs(ids, lengths))
        return {name: self.by_text(name, x, ids.shape) for name, x in capture.seen.items()}

    def following(self, ids: Tensor) -> Tensor:
        """Compute the model's log-likelihood of the token after texts, (texts, vocabulary).

        Zeros where there is no text yet, or the model predicts no tokens.

        Args:
            ids: (texts, positions).
        """
        if self.head is None or self.task != "next-token" or not ids.shape[1]:
            return torch.zeros(len(ids), self.vocabulary)
        model = replace(self.model, parts=resized(self.model.parts, ids.shape[1]))
        with torch.no_grad():
            logits = model.outputs({}, self.inputs(ids.to(model.device)))
        return logits[:, -1].log_softmax(dim=1).cpu()

    def by_text(self, name: str, x: Tensor, shape: torch.Size) -> Tensor:
        """Shape the input at a weight by texts and positions, (texts, positions, width)."""
        texts, positions = shape
        if name in self.turned:
            return x.reshape(positions, texts, -1).transpose(0, 1)
        return x.reshape(texts, positions, -1)

    @contextmanager
    def capturing(self, names: Sequence[str]) -> Iterator[InputCapture]:
        """Record the inputs at these weights while the model runs; it stops after the last one."""
        last = next((name for name in reversed(self.linear) if name in names), None)
        capture = InputCapture({name: self.model.parameters[name] for name in names}, last)
        with torch.no_grad(), capture, suppress(LastMapReached):
            yield capture

    @cached_property
    def linear(self) -> dict[str, int]:
        """The weights of linear maps over positions, in the order in which the model calls them.

        With each the dimension of it that faces what comes in.
        """
        capture, ids = self._run
        return {
            name: capture.axes[name]
            for name, x in capture.seen.items()
            if x.shape[:-1].numel() == ids.numel()
        }

    @cached_property
    def turned(self) -> frozenset[str]:
        """The maps whose inputs are (positions, texts), as within torch's attention.

        The second of two texts is changed: is the second row that comes in another?
        """
        capture, ids = self._run
        other = torch.stack([ids[0], (ids[1] + 1) % self.vocabulary])
        again, _ = self._run_on(other)
        second = {
            name: [run.seen[name].flatten(end_dim=-2)[1] for run in (capture, again)]
            for name in self.linear
        }
        return frozenset(name for name, rows in second.items() if not torch.equal(*rows))

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The linear maps in the model's order, grouped by equal inputs."""
        capture, _ = self._run
        groups: dict[tuple[int, ...], list[str]] = {}
        for name in self.linear:
            x = capture.seen[name]
            groups.setdefault((x.data_ptr(), x.numel()), []).append(name)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def table(self) -> str | None:
        """The embedding in which tokens are looked up."""
        ids = self._run[1]
        return self._reading(lambda read: torch.equal(read, ids))

    @cached_property
    def places(self) -> str | None:
        """The embedding in which positions are looked up."""
        return self._reading(self._are_places)

    @cached_property
    def first_place(self) -> int:
        """The embedding row of the first position."""
        return 0 if self.places is None else int(self._run[0].looked_up[self.places].min())

    def _reading(self, wanted: Callable[[Tensor], bool]) -> str | None:
        looked_up = self._run[0].looked_up.items()
        return next((name for name, read in looked_up if wanted(read)), None)

    def _are_places(self, read: Tensor) -> bool:
        row = read.reshape(-1, read.shape[-1])[0]
        return len(row) == self.length and bool((row.diff() == 1).all()) and int(row[0]) < 8

    @cached_property
    def head(self) -> str | None:
        """The last linear map over positions, where it gives a score for every token."""
        last = next(reversed(self.linear), None)
        shape = () if last is None else self.model.parameters[last].shape
        return last if self.task != "class" and self.vocabulary in shape else None

    @cached_property
    def _run(self) -> tuple[InputCapture, Tensor]:
        """Run the model on two texts of different tokens, and record what each layer reads."""
        ids = torch.arange(2 * self.length, 0, -1, device=self.model.device) % self.vocabulary
        return self._run_on(ids.reshape(2, -1))

    def _run_on(self, ids: Tensor) -> tuple[InputCapture, Tensor]:
        capture = InputCapture(self.model.parameters)
        with capture, torch.no_grad():
            self.model.outputs({}, self.inputs(ids))
        return capture, ids

    def gradient(self, name: str) -> Tensor:
        """Read the update of a linear map as (out, in)."""
        update = self.update[name]
        return update if self.linear[name] == 1 else update.T


def packed_inputs(parts: Sequence[InputPart], ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Pack texts as records' inputs: tokens, with masks and zeros for the other parts if any."""
    if not parts:
        return ids
    positions = torch.arange(ids.shape[1], device=ids.device)
    filled = torch.ones_like(ids)
    if lengths is not None:
        filled = (positions < lengths[:, None]).long()
    known = {id(tokens_among(parts)): ids}
    blank = torch.zeros_like(ids)
    masks = {id(part): filled for part in parts if "mask" in part.name}
    return torch.cat([{**masks, **known}.get(id(part), blank) for part in parts], dim=1)


def tokens_among(parts: Sequence[InputPart]) -> InputPart | None:
    """Find the input part that holds a text's tokens; None where no single part does.

    It is called ``input_ids``, or is the only one of whole numbers, one a position, that is no mask
    and says neither positions nor types.
    """
    named = [part for part in parts if part.name in ("input_ids", "")]
    likely = [part for part in parts if part.kind == "tokens" and len(part.shape) == 1]
    others = [part for part in likely if not any(word in part.name for word in _NO_TOKENS)]
    found = named or others
    return found[0] if len(found) == 1 else None


def mask_among(parts: Sequence[InputPart]) -> InputPart | None:
    """Find the input part that is the attention mask; None where there is none."""
    masks = [part for part in parts if "mask" in part.name and len(part.shape) == 1]
    exact = [part for part in masks if part.name == "attention_mask"]
    return next(iter(exact or masks), None)


def resized(parts: Sequence[InputPart], length: int) -> tuple[InputPart, ...]:
    """Resize the parts to texts of another length."""
    return tuple(replace(part, shape=(length,)) for part in parts)
