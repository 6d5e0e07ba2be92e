"""What layer-by-layer attacks could do with an update, said without running them."""

from collections.abc import Mapping

from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.layerwise.setting import Setting
from gradaudit.attacks.reconstruction.view import AttackerView
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.ranks.chain import chain_of_convolutions
from gradaudit.ranks.model import LayerRanks, rank_deficiency, ranks_of
from gradaudit.ranks.observe import plain_convolutions

METHODS = ("r-gap", "copa")
_FLOPS = 1e9
"""What a layer's rank may cost; a costlier one is left as a bracket."""


def prospects(view: AttackerView, record: Tensor, label: Tensor, seed: int) -> dict[str, JsonValue]:
    """Whether R-GAP and COPA apply, and the ranks of their systems (``copa-metric``).

    Args:
        view: what the attacker has.
        record: (1, …) one of the true records, at which the ranks are taken; for the audit alone.
        label: (1, …) its label.
        seed: of the ranks' probes.

    Returns:
        For each attack None where it applies, or why not; ``open_inputs`` the dimensions (fewest,
        most) of each convolution's input that its weights and gradient leave open; ``c`` COPA's
        c(M), (lowest, highest), None where it is not defined; and ``says`` all of it in words.
    """
    reasons = {name: _refusal(view, name) for name in METHODS}
    ranks, c = _ranks(view.model, record, label, seed)
    left = {name: (r.inputs - r.high[0], r.inputs - r.low[0]) for name, r in ranks.items()}
    return {
        **reasons,
        "open_inputs": {name: list(ends) for name, ends in left.items()},
        "c": None if c is None else list(c),
        "says": f"{_applies(reasons)}; {_leaves(left)}",
    }


def _refusal(view: AttackerView, attack: str) -> str | None:
    try:
        ends = Setting.of(view, attack).last_layers()
    except (NotApplicable, AuditError) as why:
        return str(why)
    return None if ends else "no output of the last layer gives the gradient that was shared"


def _ranks(
    model: FunctionalModel, record: Tensor, label: Tensor, seed: int
) -> tuple[dict[str, LayerRanks], tuple[float, float] | None]:
    layers = plain_convolutions(model.module)
    record, label = model.cast(record), model.cast(label)
    if not layers or not record.is_floating_point():
        return {}, None
    try:
        ranks, _ = ranks_of(
            model,
            layers,
            record,
            label,
            method="auto",
            flops=_FLOPS,
            seed=seed,
            advance=lambda units: None,
        )
    except AuditError:
        return {}, None
    try:
        chain = [ranks.get(name) for name in chain_of_convolutions(model, record, seed)]
    except NotApplicable:
        return ranks, None
    known = [rank for rank in chain if rank is not None]
    if len(known) < len(chain):
        return ranks, None
    sizes = [rank.inputs for rank in known]
    (low,) = rank_deficiency([rank.low for rank in known], sizes)
    (high,) = rank_deficiency([rank.high for rank in known], sizes)
    return ranks, (low, high)


def _applies(reasons: Mapping[str, str | None]) -> str:
    applying = [name for name, why in reasons.items() if why is None]
    if len(applying) == len(reasons):
        return f"layer-by-layer attacks apply: {' and '.join(applying)}"
    refusals = ((name, why) for name, why in reasons.items() if why is not None)
    whys = dict.fromkeys(why.removeprefix(name).strip() for name, why in refusals)
    return f"layer-by-layer attacks do not apply: {'; '.join(whys)}"


def _leaves(left: Mapping[str, tuple[int, int]]) -> str:
    if not left:
        return "there is no convolution whose rank could tell more"
    short = {name: ends for name, ends in left.items() if ends[1] > 0}
    if not short:
        return "no convolution's weights and gradient leave a dimension of its input open"
    listed = ", ".join(
        f"{name} {low}" if low == high else f"{name} {low} to {high}"
        for name, (low, high) in short.items()
    )
    return f"dimensions of their inputs that convolutions leave open: {listed}"
