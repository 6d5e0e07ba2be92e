"""Features of updates that are linear in their records: reduce, average, add noise."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradaudit.defenses import Chain
from gradaudit.models.target import Layer
from gradaudit.randomness import torch_rng
from gradaudit.sharing.fitting import Project
from gradaudit.sharing.rows import Dense, GradientRows, room
from gradaudit.sharing.stream import Stream
from gradaudit.sharing.visibility import Visibility

_COPIES = 4


def averaged(
    stream: Stream,
    layers: Sequence[Layer],
    visibilities: Mapping[str, Visibility],
    projections: Mapping[str, Project],
    clients: Tensor,
    shares: Tensor,
    dtype: torch.dtype,
    memory: int,
) -> dict[str, Tensor]:
    """The means over batches of reduced records, (batches, features) on the CPU, by layer.

    Records' features are held and averaged at the end; those of a layer that would take more
    than half of the memory are added to the batches piece by piece.

    Args:
        stream: a row a record.
        layers: to look at.
        visibilities: what is seen of them.
        projections: of those that are reduced to principal components.
        clients: (batches, clients, k) indices of rows.
        shares: (batches, clients, k) of each row in its client's update.
        dtype: of the features.
        memory: bytes that records' features may take.
    """
    rows = clients.flatten(1)
    parts_of = (shares / clients.shape[1]).flatten(1)
    held: dict[str, list[GradientRows]] = {}
    sums: dict[str, Tensor] = {}
    for where, layer, piece in stream.pieces(layers):
        visibility, name = visibilities[layer.name], layer.name
        reduced = _reduced(piece, visibility, projections.get(name))
        if _held_bytes(stream, layer, visibility) <= memory // 2:
            held.setdefault(name, []).append(reduced)
            continue
        part = reduced.dense()
        if name not in sums:
            sums[name] = torch.zeros(len(rows), part.shape[1], dtype=dtype)
        _add(sums[name], part, where, rows, parts_of)
    for name in list(held):
        parts = held.pop(name)
        sums[name] = _mixed(type(parts[0]).joined(parts), rows, parts_of, dtype)
    return {layer.name: sums[layer.name] for layer in layers}


def noisy(
    means: Tensor,
    layer: Layer,
    chain: Chain,
    sizes: tuple[int, int],
    seed: int,
    memory: int,
    device: torch.device,
) -> Tensor:
    """Features with the noise that a layer's defenses add to each client's update, in place.

    Args:
        means: (batches, features).
        layer: whose.
        chain: the defenses.
        sizes: clients whose updates are averaged, and records of each.
        seed: of the noise.
        memory: bytes that noise may take at a time.
        device: where it is drawn.
    """
    clients, records = sizes
    step = max(1, memory // (_COPIES * means.element_size() * means.shape[1] * clients * records))
    for index, defense in enumerate(chain.acting):
        if not (defense.additive and defense.defends(layer.parameter_names[0])):
            continue
        words = "sharing", "noise on features", index, layer.name
        generator = torch_rng(seed, *words, device=device)
        for start in range(0, len(means), step):
            part = means[start : start + step]
            zeros = torch.zeros(
                len(part) * clients, part.shape[1], dtype=means.dtype, device=device
            )
            noise = defense.apply(zeros, records=records, generator=generator)
            part += noise.view(len(part), clients, -1).mean(dim=1).cpu()
    return means


def _reduced(piece: GradientRows, visibility: Visibility, project: Project | None) -> GradientRows:
    if project is not None:
        return Dense(project(piece))
    return piece if visibility.columns is None else Dense(visibility.pooled(piece))


def _held_bytes(stream: Stream, layer: Layer, visibility: Visibility) -> int:
    features = stream.itemsize * visibility.features
    each = stream.bytes_of(layer) if visibility.features == layer.parameters else features
    return each * len(stream)


def _mixed(records: GradientRows, rows: Tensor, shares: Tensor, dtype: torch.dtype) -> Tensor:
    """Means of the records' rows over each batch."""
    found = room(len(rows), records.elements, dtype)
    records.mix(rows, shares.to(dtype), found)
    return found


def _add(sums: Tensor, part: Tensor, where: slice, rows: Tensor, shares: Tensor) -> None:
    """Add rows of records to the means of the batches that they are in."""
    batch, place = ((rows >= where.start) & (rows < where.stop)).nonzero(as_tuple=True)
    chosen = part.cpu()[rows[batch, place] - where.start]
    sums.index_add_(0, batch, chosen.mul_(shares[batch, place, None].to(chosen)))
