"""A target with the defenses that change its model."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradaudit.defenses import Defense, defenses
from gradaudit.defenses.modules.attachment import PenalisedLoss, private_names, private_parts
from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import LoadedCheckpoint
from gradaudit.models.target import Target
from gradaudit.randomness import torch_rng


def defended_target(target: Target, chain: Sequence[Defense[Any]], seed: int) -> Target:
    """The target with every model-changing defense built in that is not yet.

    Those that act on updates alone are passed over; the seed is that of weights and secrets.

    Raises:
        NotApplicable: a defense does not fit the model or the loss.
    """
    for index, defense in enumerate(chain):
        if defense.changes_model and str(defense) not in built_in(target.model):
            model = defense.modify(target.model, torch_rng(seed, "defense", "secrets", index))
            vars(model)["defenses_built_in"] = (*built_in(target.model), str(defense))
            target = replace(target, model=model, loss=defense.modified_loss(target.loss, model))
    return target


def with_private_part(loaded: LoadedCheckpoint, model: nn.Module) -> LoadedCheckpoint:
    """A checkpoint with the private part that the model has, where it brings none of its own.

    A shared model holds no client's private part; whoever joins with it has a fresh one.

    Raises:
        CheckpointError: it was trained with a defense in the model that is not in this one.
    """
    _expect_same_defenses(loaded, model)
    own = private_names(model)
    if not own or any(key.endswith(own) for key in loaded.state):
        return loaded
    state = {**loaded.state, **{name: model.state_dict()[name] for name in own}}
    note = f"holds no private part; drawn at random: {', '.join(own)}"
    return replace(loaded, state=state, notes=(*loaded.notes, note))


def _expect_same_defenses(loaded: LoadedCheckpoint, model: nn.Module) -> None:
    wanted = model.state_dict().keys()
    for name, kind in defenses().items():
        if kind.changes_model:
            held = any(f".{name}." in f".{key}" for key in loaded.state)
            if held and not any(f".{name}." in f".{key}" for key in wanted):
                raise CheckpointError(
                    f"{loaded.record.file}: was trained with {name} in the model; name it as it "
                    f"was then, as in --defense {kind.example}"
                )


def built_in(model: nn.Module) -> tuple[str, ...]:
    """Specs of the defenses that were built into a model."""
    return tuple(vars(model).get("defenses_built_in", ()))


def seen_by_outsiders(target: Target) -> Target:
    """The target as an adversary takes it who does not know of terms that defenses add.

    Private parts of the model have no say in it. (Fan et al. 2020, algorithm 5, line 10.)
    """
    loss = target.loss
    return replace(target, loss=loss.seen) if isinstance(loss, PenalisedLoss) else target


def with_other_secrets(target: Target, generator: torch.Generator) -> Target:
    """The target as someone has it who knows its defenses but holds no private part of it.

    He draws his own, as every client does; the target is left as it was.
    """
    if not private_parts(target.model):
        return target
    target = replace(target, model=copy.deepcopy(target.model))
    for part in private_parts(target.model):
        part.draw(generator)
    return target
