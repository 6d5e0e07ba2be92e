"""The context that NVFlare's own client gives to result filters, and the one that we give."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.app_common.filters.convert_weights import ConvertWeights
from nvflare.private.fed.client.client_runner import (
    ClientRunner,
    ClientRunnerConfig,
    TaskRouter,
)

from gradaudit.audits.dp_audit.mechanisms import load_mechanism
from gradaudit.audits.dp_audit.middleware import Middleware
from gradaudit.audits.dp_audit.middleware.payload import Layout

CONVERT = "nvflare:nvflare.app_common.filters.convert_weights:ConvertWeights?direction="
RECEIVED, TRAINED = np.full(3, 2.0, np.float32), np.full(3, 5.0, np.float32)


class Trained(Executor):  # type: ignore[misc]
    """An executor that has trained already."""

    def __init__(self, kind: str, array: np.ndarray) -> None:
        super().__init__()
        self.kind, self.array = kind, array

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """The result of training."""
        assert fl_ctx.get_prop(FLContextKey.TASK_DATA) is not None
        return DXO(self.kind, {"w": self.array.copy()}).to_shareable()


class Engine:
    """As much of an engine as a runner needs that is given one task."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., Any]] = {}

    def register_aux_message_handler(self, topic: str, message_handle_func: Any) -> None:
        """Remember what is called for a message."""
        self.handlers[topic] = message_handle_func

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Nobody listens."""


def sent_by_nvflare(filter_: Any, executor: Executor) -> Any:
    """The DXO that NVFlare's ClientRunner answers with to a task of weights."""
    engine, router = Engine(), TaskRouter()
    router.add_executor(["train"], executor)
    config = ClientRunnerConfig(router, {}, {"train/out": [filter_]})
    ClientRunner({}, config, "job", engine)
    context = FLContextManager(engine, "site-1", "job", {}, {}).new_context()
    peer = FLContext()
    peer.set_prop(ReservedKey.RUN_NUM, "job", private=False, sticky=False)
    context.set_peer_context(peer)
    task = DXO(DataKind.WEIGHTS, {"w": RECEIVED.copy()}).to_shareable()
    task.set_header(ReservedHeaderKey.TASK_NAME, "train")
    task.set_header(ReservedHeaderKey.TASK_ID, "1")
    return from_shareable(engine.handlers[ReservedTopic.DO_TASK]("", task, context))


@pytest.mark.parametrize(
    ("direction", "kind", "array"),
    [
        ("weights_to_diff", "WEIGHTS", TRAINED),
        ("diff_to_weights", "WEIGHT_DIFF", TRAINED - RECEIVED),
    ],
)
def test_a_result_filter_that_needs_the_received_weights_converts_nothing(
    direction: str, kind: str, array: np.ndarray
) -> None:
    left = sent_by_nvflare(ConvertWeights(direction), Trained(kind, array))
    assert left.data_kind == kind
    np.testing.assert_array_equal(left.data["w"], array)


def test_what_leaves_is_what_nvflare_sends() -> None:
    """Weight differences, which a filter that could see the received weights would convert."""
    given = TRAINED - RECEIVED
    left = sent_by_nvflare(ConvertWeights("diff_to_weights"), Trained("WEIGHT_DIFF", given))
    mechanism = load_mechanism(CONVERT + "diff_to_weights")
    assert isinstance(mechanism, Middleware)
    ours = mechanism.receiving(Layout({"w": RECEIVED})).sent(torch.from_numpy(given))
    assert ours.form == "differences"
    np.testing.assert_array_equal(ours.arrays["w"], left.data["w"])
