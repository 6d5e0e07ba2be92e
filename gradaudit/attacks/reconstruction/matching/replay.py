"""Evaluations recorded as a flat list of tensor operations, and repeated without what made it.

An attack evaluates one function thousands of times at points of the same few shapes. On a small
model most of the time goes to running modules, transforms and the tape that is differentiated
twice, which find the same operations every time: they are recorded once, where tensors meet
kernels. (``make_fx`` records the same, with shapes and stack traces, in seven times the time.) On a
GPU, whose kernels take less time than Python to call them, the recording becomes a CUDA graph.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate

from gradaudit.attacks.reconstruction.matching.objectives import Evaluation
from gradaudit.gradients.capture import OperatorMode

WORTH = 15
"""Evaluations of as many points after which a recording is made. Of LeNet it costs 6 to 24 of them,
and those that follow run 1.3 to 3 times as fast (benchmarks/speed/fast_paths.py, one thread); of
the sample model it costs about 20, and they run seven times as fast. On a GPU, where a recording is
a graph, they run 6 to 15 times as fast (ResNet-18 at 64×64 and the sample model on an H100). That
was measured with views joined and constants folded, which saved at most 6 % of a command's time."""
_UNREPEATABLE = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
}


class ReplayedEvaluation:
    """An evaluation that is recorded, and repeated from its recording, once it is called often.

    Recordings are of a number of points and are made at other points than they are tried at; one
    that does not give what the evaluation itself gives is not used, nor are random operations and
    those whose shapes hang on numbers.
    """

    def __init__(self, evaluate: Evaluation, worth: float = WORTH) -> None:
        self.evaluate = evaluate
        self.worth = worth
        self._calls: Counter[int] = Counter()
        self._recorded: dict[int, Evaluation | None] = {}

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients at points (restarts, unknowns)."""
        count = len(points)
        self._calls[count] += 1
        recording = self._recorded.get(count)
        if recording and self._calls[count] > self.worth:
            return recording(points)
        direct = self.evaluate(points)
        if self._calls[count] == self.worth and count not in self._recorded:
            self._recorded[count] = self._record(points, direct)
        return direct

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def forget_calls(self) -> None:
        """Start to count again, as if no point had been evaluated; recordings are kept."""
        self._calls.clear()

    def _record(self, points: Tensor, direct: tuple[Tensor, Tensor]) -> Evaluation | None:
        pool = self._pool if points.device.type == "cuda" else None
        recording = recorded(self.evaluate, -points, pool)
        try:
            return recording if recording and agree(recording(points), direct) else None
        except RuntimeError:  # an operation that a device carries out in no inference mode
            return None


def recorded(evaluate: Evaluation, points: Tensor, pool: Any = None) -> Evaluation | None:
    """Records an evaluation so that it can be replayed for as many points; None where it cannot.

    Graphs of one pool work in the same memory: none may run beside another.
    """
    points = points.contiguous()  # as those lie that it is given
    module = _operations(evaluate, points)
    if module is None:
        return None
    on_a_gpu = points.device.type == "cuda"
    module.to(points.device)  # a number on the CPU is a wait each time

    def replay(points: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():  # which passes operations on faster than no_grad
            values, gradients = module(points.clone(memory_format=torch.contiguous_format))
        return values.clone(), gradients.clone()

    return _as_graph(replay, points, pool) if on_a_gpu else replay


def _operations(evaluate: Evaluation, points: Tensor) -> fx.GraphModule | None:
    """The graph of operations of an evaluation; None where it cannot be repeated."""
    recorder = Recorder(points)
    try:
        with recorder:
            results = evaluate(points)
        graph = recorder.graph(results)
    except Exception:  # an operation that cannot be recorded
        return None
    return fx.GraphModule(recorder.constants, graph) if repeatable(graph) else None


def _as_graph(evaluate: Evaluation, points: Tensor, pool: Any) -> Evaluation:
    """An evaluation whose kernels the GPU starts by itself; unchanged where it allows no graph."""
    given, graph = points.clone(), torch.cuda.CUDAGraph()
    try:
        with _aside(points.device):
            evaluate(given)  # libraries choose their kernels and get their memory
        with torch.cuda.graph(graph, pool=pool):
            results = evaluate(given)
    except RuntimeError:
        return evaluate

    return _CudaGraph(evaluate, graph, given, results)


@dataclass(frozen=True)
class _CudaGraph:
    """A CUDA graph of an evaluation, whose constants it reads where they lie: it is kept for them.

    Attributes:
        evaluation: what was captured.
        graph: computes results from what is given, each in its own memory.
    """

    evaluation: Evaluation
    graph: torch.cuda.CUDAGraph
    given: Tensor
    results: tuple[Tensor, Tensor]

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients at points."""
        self.given.copy_(points)
        self.graph.replay()
        values, gradients = self.results
        return values.clone(), gradients.clone()


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """Compute in a stream of its own, as graphs ask for."""
    main, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield
    main.wait_stream(side)


class Recorder(OperatorMode):  # type: ignore[no-untyped-call]
    """Writes down every operation on tensors, below transforms and automatic differentiation.

    A tensor that no recorded operation made is a constant.

    Args:
        points: what the recording is a function of.

    Attributes:
        constants: by name.
    """

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self._graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []
        self._name(points, self._graph.placeholder("points"))

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Carry out one operation and write it down."""
        node = self._graph.call_function(operator, *self._written((args, kwargs)))
        result = operator(*args, **kwargs)
        if isinstance(result, Tensor):
            self._name(result, node)
        elif isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._name(part, self._graph.call_function(getitem, (node, index)))
        return result

    def graph(self, results: tuple[Tensor, ...]) -> fx.Graph:
        """The recorded graph; every tensor's node has its shape in ``meta``."""
        self._graph.output(self._written(results))
        return self._graph

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor: the operation that made it, or else a constant."""
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            self._name(tensor, self._graph.get_attr(name))
        return self._nodes[id(tensor)]

    def _written(self, arguments: Any) -> Any:
        return map_aggregate(
            arguments, lambda leaf: self.node_of(leaf) if isinstance(leaf, Tensor) else leaf
        )

    def _name(self, tensor: Tensor, node: fx.Node) -> None:
        """Know a tensor by its identity, which is its own as long as it lives."""
        node.meta["shape"] = tuple(tensor.shape)
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)


def repeatable(graph: fx.Graph) -> bool:
    """Whether a graph draws nothing, has fixed shapes and changes no constant."""
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        if _UNREPEATABLE & set(node.target.tags):
            return False
        constants = any(argument.op == "get_attr" for argument in node.all_input_nodes)
        if constants and node.target._schema.is_mutable:
            return False
    return True


def agree(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> bool:
    """Whether all numbers are the same to half of the digits."""
    for a, b in zip(left, right, strict=True):
        tolerance = torch.finfo(a.dtype).eps ** 0.5
        size = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True):
            return False
    return True
