"""NVFlare: a filter that observes an update as it leaves, beside the weights that came in.

Put one into the chain of task data and one, as the last, into the chain of task results; both
share what came through the site's context. Only the verdict travels, in the DXO's meta data.

Source: NVFlare's programming guide (2025), filters, as of nvflare 2.9.
"""

import copy
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import ContentBlockedException, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from gradaudit.observer.observer import SHARE, Blocked, Observer, OnFail, stopwatch
from gradaudit.sharing.named import Array, Kind

META = "gradaudit"
"""Name of the meta property that holds the verdict."""
_CAME = "__gradaudit_came__"
_KINDS: dict[str, Kind] = {DataKind.WEIGHTS: "weights", DataKind.WEIGHT_DIFF: "difference"}


class ObserverFilter(DXOFilter):  # type: ignore[misc]
    """Observes updates in the filter chains of a site, or of the server as a curious one.

    Options are plain values, so that a job's configuration can hold them. With
    ``on_fail="raise"`` content is blocked as NVFlare blocks it (``ContentBlockedException``, the
    task fails); with ``"withhold"`` the weights that came leave again, or a difference of zeros.

    Args:
        folder: where reports are written, on this machine.
        policy: file of the policy; the default one without it.
        share: of the time between the two chains, which looking may take.
        on_fail: ``tell``, ``raise`` or ``withhold``.
        capture: folder where updates are saved too.
    """

    def __init__(
        self,
        folder: str | None = None,
        policy: str | None = None,
        share: float = SHARE,
        on_fail: OnFail = "tell",
        capture: str | None = None,
    ) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        # a job's configuration is written from attributes that are called as the arguments
        self.folder, self.policy, self.share = folder, policy, share
        self.on_fail, self.capture = on_fail, capture

    @cached_property
    def observer(self) -> Observer:
        """The observer, made on the site when it is first needed."""
        return Observer(
            self.folder,
            policy=self.policy,
            share=self.share,
            on_fail=self.on_fail,
            capture=self.capture,
        )

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Keep the weights that come in, and observe the update that goes out.

        Raises:
            ContentBlockedException: the policy does not let it leave.
        """
        # training cannot change copies in place
        if self.get_prop(FilterContextKey.CHAIN_TYPE) != FilterChainType.TASK_RESULT_CHAIN:
            fl_ctx.set_prop(
                _CAME, (copy.deepcopy(dict(dxo.data)), stopwatch()), private=True, sticky=True
            )
            return None
        came, trained = fl_ctx.get_prop(_CAME) or ({}, lambda: 0.0)
        try:
            observation = self.observer.observe(
                came,
                dxo.data,
                seconds=trained(),
                kind=_KINDS[dxo.data_kind],
                label=f"{_whose(fl_ctx)}-round-{_round(shareable, fl_ctx)}",
            )
        except Blocked as why:
            raise ContentBlockedException(str(why)) from why
        if self.observer.on_fail == "withhold" and not observation.verdict.may_leave:
            dxo.data = _instead(dxo, came)
        dxo.set_meta_prop(META, observation.verdict.metrics())
        return dxo


def _instead(dxo: DXO, came: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what is sent in place of an update that must not leave.

    Raises:
        ContentBlockedException: there is nothing that came.
    """
    if dxo.data_kind == DataKind.WEIGHT_DIFF:
        return {name: np.zeros_like(array) for name, array in dxo.data.items()}
    if not dxo.data.keys() <= came.keys():
        raise ContentBlockedException(
            "the received weights are unknown, so that nothing can be "
            "sent instead; use on_fail='raise'"
        )
    return {name: came[name] for name in dxo.data}


def _whose(fl_ctx: FLContext) -> str:
    """Returns the site; at the server the site whose result arrives."""
    peer = fl_ctx.get_peer_context()
    if peer is not None and fl_ctx.get_process_type() == ProcessType.SERVER_JOB:
        return f"from-{peer.get_identity_name()}"
    return str(fl_ctx.get_identity_name())


def _round(shareable: Shareable, fl_ctx: FLContext) -> object:
    for found in (shareable.get_header("current_round"), fl_ctx.get_prop("current_round")):
        if found is not None:
            return found
    return 0
