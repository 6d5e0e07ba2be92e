"""A protection in the words of the tools that carry it out."""

import shlex
from collections.abc import Mapping

from pydantic import JsonValue
from torch import nn

from gradaudit.defenses.base import module_of
from gradaudit.protection.guards import Guard, Protection
from gradaudit.protection.updates import UndefendedUpdates

_CLIP = 2.0
"""Clipping that comes with noise, over the longest update that was seen: it cuts almost none."""


def defense_specs(protection: Protection, updates: UndefendedUpdates) -> tuple[str, ...]:
    """Defenses of the shared layers, as ``--defense`` takes them.

    Every layer is clipped by itself, so that what it shares depends on no other. Where all are
    pruned alike, which is by the tensor anyway, one spec says so.
    """
    blurred = [(layer, g) for layer, g in protection if g.kind in ("noise", "prune")]
    alike = {guard for _, guard in blurred}
    if len(alike) == 1 and len(blurred) == len(protection.shared) and blurred[0][1].kind == "prune":
        return (_spec(alike.pop(), 0.0),)
    return tuple(f"{_spec(g, updates.norm(layer))},layers={layer}" for layer, g in blurred)


def options(protection: Protection, updates: UndefendedUpdates) -> str:
    """``--hide`` and ``--defense`` options, quoted for a shell; empty where nothing is done."""
    hidden = [("--hide", layer) for layer in protection.hidden]
    defended = [("--defense", spec) for spec in defense_specs(protection, updates)]
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in [*hidden, *defended])


def framework_settings(protection: Protection, model: nn.Module) -> Mapping[str, JsonValue]:
    """Framework settings that keep the hidden layers' tensors, buffers too, from the server.

    Returns:
        For NVFlare the filters ``ExcludeVars``, which leaves them out of a message, and
        ``HEModelEncryptor``, which encrypts them, either of them by itself; for Flower a line of
        the app's configuration, with the names for a mod that leaves them out.
    """
    hidden = set(protection.hidden)
    names: list[JsonValue] = [n for n in model.state_dict() if module_of(n) in hidden]
    if not names:
        return {}
    return {
        "nvflare": {
            "exclude": _filter("nvflare.app_common.filters.exclude_vars.ExcludeVars", names),
            "encrypt": {
                "path": "nvflare.app_opt.he.model_encryptor.HEModelEncryptor",
                "args": {"encrypt_layers": names},
            },
        },
        "flower": {"exclude-vars": ",".join(map(str, names))},
    }


def _filter(path: str, names: list[JsonValue]) -> JsonValue:
    return {"path": path, "args": {"exclude_vars": names}}


def _spec(guard: Guard, norm: float) -> str:
    if guard.kind == "prune":
        return f"prune:{guard.amount:g}"
    return f"dp:clip={_CLIP * norm or 1.0:.3g},sigma={guard.amount:g},per=release"
