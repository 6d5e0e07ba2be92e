"""A prior from a file."""

from pathlib import Path

import torch
from torch import Tensor

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint.npz_file import read_npz

_NEGATIVE = -1e-8
"""Least eigenvalue over the greatest of what may be a covariance, rounded."""


def prior_of_file(path: Path, size: int, leading: int) -> GaussianPrior:
    """The Gaussian law of a NumPy archive with ``mean`` (d,) and ``covariance`` (d, d).

    Args:
        path: the archive.
        size: elements of a record, d.
        leading: directions that are asked about one by one.

    Raises:
        UsageError: there is no such file, or it holds no such law for records of this size.
    """
    where = f"--prior {path}"
    if not path.is_file():
        raise UsageError(f"{where}: no such file; give fitted, or a .npz with mean and covariance")
    try:
        arrays = read_npz(path)
    except CheckpointError as error:
        raise UsageError(f"--prior {error}") from error
    mean, covariance = (_array(arrays, name, where) for name in ("mean", "covariance"))
    if mean.numel() != size or covariance.shape != (size, size):
        raise UsageError(
            f"{where}: mean has {mean.numel()} elements and covariance shape "
            f"{tuple(covariance.shape)}; records have {size} elements, so ({size},) and "
            f"({size}, {size}) are needed"
        )
    if not torch.allclose(covariance, covariance.mT, rtol=1e-6, atol=1e-12):
        raise UsageError(f"{where}: covariance is not symmetric")
    prior = GaussianPrior.of_covariance(mean.flatten(), covariance, leading)
    least = float(torch.linalg.eigvalsh(covariance)[0])
    if prior.variance <= 0 or least < _NEGATIVE * float(prior.variances[0]):
        raise UsageError(f"{where}: covariance is none: its least eigenvalue is {least:.3g}")
    return prior


def _array(arrays: dict[str, Tensor], name: str, where: str) -> Tensor:
    if name not in arrays:
        raise UsageError(f"{where}: no array {name!r}; it holds: {', '.join(arrays) or 'none'}")
    array = arrays[name].double()
    if not array.isfinite().all():
        raise UsageError(f"{where}: {name} holds numbers that are not finite")
    return array
