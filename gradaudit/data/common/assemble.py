"""Putting the parts that an adapter has read together into records."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from pydantic import JsonValue

from gradaudit.data.common.checks import expect_length
from gradaudit.data.common.columns import Column
from gradaudit.data.common.encoding import Inputs
from gradaudit.data.common.roles import Labels, attribute_of, members_of, users_of
from gradaudit.data.records import Records


def assemble(
    inputs: Inputs,
    labels: Labels,
    attributes: Iterable[Column] = (),
    *,
    user: Column | None = None,
    member: Column | None = None,
    notes: Mapping[str, JsonValue] | None = None,
) -> Records:
    """Records of inputs, labels and the columns that serve as something.

    Raises:
        DataError: a part has another number of records than the inputs, or a column cannot serve
            as what it was named for.
    """
    attributes = tuple(attributes)
    expect_length(len(labels.values), len(inputs.array), labels.origin)
    for column in (*attributes, user, member):
        if column is not None:
            expect_length(len(column), len(inputs.array), column.origin)
    halved = [column.name for column in attributes if not column.discrete]
    return Records(
        inputs=torch.from_numpy(np.ascontiguousarray(inputs.array)),
        labels=torch.from_numpy(np.ascontiguousarray(labels.values)),
        classes=labels.classes,
        attributes={column.name: attribute_of(column) for column in attributes},
        users=None if user is None else users_of(user),
        members=None if member is None else members_of(member),
        features=inputs.features,
        notes={
            **inputs.notes,
            **({"halved_at_median": list(halved)} if halved else {}),
            **(notes or {}),
        },
    )
