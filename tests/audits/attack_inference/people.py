"""Small tables of people for the games: a private column, users, a tiny model."""

from dataclasses import replace

import numpy as np
import torch
from dp_subject import model, table

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.subject import Subject


def people(records: int = 400, seed: int = 0) -> Records:
    """The table of the dp-audit's tests, with more records."""
    return table(records, seed)


def with_users(users: int = 14, each: int = 24, seed: int = 0) -> Records:
    """Records of users who differ in their numbers."""
    records, generator = people(users * each, seed), np.random.default_rng(seed)
    codes = np.repeat(np.arange(users), each)
    inputs = records.inputs.clone()
    own = torch.from_numpy(generator.normal(size=(users, inputs.shape[1]))).float()
    inputs += 1.5 * own[torch.from_numpy(codes)]
    return replace(records, inputs=inputs, users=np.array([f"u{code:02d}" for code in codes]))


def subject(
    records: Records, *attributes: str, rounds: int = 1, defense: str = "", width: int = 6
) -> Subject:
    """A subject with models of several seeds for rounds."""
    targets = tuple(Target(model(1, width, seed), CrossEntropy()) for seed in range(rounds))
    defenses = (parse_defense(defense),) if defense else ()
    return Subject(
        targets, records, targets[-1].layers, attributes=attributes, defenses=defenses, seed=3
    )
