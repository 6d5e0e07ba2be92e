"""NVFlare's own filter chains, in process, and its simulator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import ContentBlockedException, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from observer.training import model, state_of, trained

from gradaudit.integrations.nvflare import META, ObserverFilter
from gradaudit.report import Report

CHAINS = {"in": FilterChainType.TASK_DATA_CHAIN, "out": FilterChainType.TASK_RESULT_CHAIN}


class Site:
    """A site with a filter in each chain, as the framework sets them up."""

    def __init__(self, **options: Any) -> None:
        self.contexts = FLContextManager(
            identity_name="site-1", public_stickers={}, private_stickers={}
        )
        self.filters = {}
        for name, chain in CHAINS.items():
            self.filters[name] = ObserverFilter(**options)
            self.filters[name].set_prop(FilterContextKey.CHAIN_TYPE, chain)
        self.filters["out"].observer.allowance.earn(1000)

    def receives(self, arrays: dict[str, Any]) -> Shareable:
        return self._passes("in", DXO(DataKind.WEIGHTS, dict(arrays)).to_shareable())

    def sends(self, kind: DataKind, arrays: dict[str, Any]) -> DXO:
        shareable = DXO(kind, dict(arrays)).to_shareable()
        shareable.set_header("current_round", 2)
        return from_shareable(self._passes("out", shareable))

    def _passes(self, chain: str, shareable: Shareable) -> Shareable:
        context = self.contexts.new_context()
        filtered: Shareable = self.filters[chain].process(shareable, context)
        return filtered


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in state.items()}


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_filter_reports_at_the_site_and_sends_the_verdict_alone(
    kind: DataKind, tmp_path: Path
) -> None:
    before = state_of(model())
    after, site = trained(before), Site(folder=str(tmp_path))
    site.receives(plain(before))
    difference = {name: after[name] - tensor for name, tensor in before.items()}
    left = plain(after if kind == DataKind.WEIGHTS else difference)
    sent = site.sends(kind, left)
    report = Report.from_file(tmp_path / "site-1-round-2.json")
    for row in report.select("observe.norm"):
        names = [f"{row.layer}.weight", f"{row.layer}.bias"]
        expected = sum(float(difference[name].square().sum()) for name in names) ** 0.5
        assert row.value == pytest.approx(expected, rel=1e-4)
    assert report.select("observe.labels_named")[0].value
    assert sent.data.keys() == left.keys()
    assert all(sent.data[name] is array for name, array in left.items())
    assert sent.get_meta_prop(META)["gradaudit.observed"] == 1.0


def test_what_another_filter_kept_is_told(tmp_path: Path) -> None:
    before = state_of(model())
    site = Site(folder=str(tmp_path))
    site.receives(plain(before))
    excluded = ExcludeVars(exclude_vars="^2\\.")
    kept = excluded.process_dxo(
        DXO(DataKind.WEIGHTS, plain(trained(before))), Shareable(), FLContext()
    )
    kept.data = {name: array for name, array in kept.data.items() if array is not None}
    site.sends(DataKind.WEIGHTS, kept.data)
    report = Report.from_file(tmp_path / "site-1-round-2.json")
    assert {"2.weight", "2.bias"} & set(report.select("observe.beside")[0].details["kept"])


def test_a_policy_blocks_or_withholds(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules:\n  - {metric: observe.labels_named, layers: '', max: 0}\n")
    before = state_of(model())
    after = plain(trained(before))
    blocking, holding = (Site(policy=str(policy), on_fail=how) for how in ("raise", "withhold"))
    for site in (blocking, holding):
        site.receives(plain(before))
    with pytest.raises(ContentBlockedException, match="may not leave"):
        blocking.sends(DataKind.WEIGHTS, after)
    left = holding.sends(DataKind.WEIGHTS, after).data
    assert all(np.array_equal(left[name], array) for name, array in plain(before).items())


def test_a_client_that_fails_passes_as_it_is(tmp_path: Path) -> None:
    site = Site(folder=str(tmp_path))
    site.receives(plain(state_of(model())))
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    assert site._passes("out", failed) is failed
    assert not list(tmp_path.iterdir())
