"""How close a reconstruction comes: MSE, relative error, PSNR and SSIM, batched."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gradaudit.attacks.reconstruction.matching import assigned
from gradaudit.errors import NotApplicable

WINDOW, SIGMA = 11, 1.5
_SMALLEST = 3
_C1, _C2 = 0.01**2, 0.03**2


def scores_of(truth: Tensor, reconstructed: Tensor, *, pictures: bool) -> dict[str, Tensor]:
    """Scores of candidate batches against the true one, each record against the one it stands for.

    Args:
        truth: (k, …) true records.
        reconstructed: (candidates, k, …), in any order inside a batch.
        pictures: whether records are (channels, height, width) in [0, 1].

    Returns:
        (candidates,) float64 for ``mse``, ``relative_error`` and, of pictures, ``psnr`` and
        ``ssim`` (from 3×3 on); means over the batch's records. NaN where a candidate is not finite.
    """
    truth = truth.detach().double()
    reconstructed = assigned(truth, reconstructed.detach().double().to(truth.device))
    scores: dict[str, Tensor] = {
        "mse": mse(truth, reconstructed).mean(dim=-1),
        "relative_error": relative_error(truth, reconstructed).mean(dim=-1),
    }
    if pictures:
        scores["psnr"] = psnr(truth, reconstructed).mean(dim=-1)
        if min(truth.shape[-2:]) >= _SMALLEST:
            scores["ssim"] = ssim(truth, reconstructed).mean(dim=-1)
    return scores


def mse(truth: Tensor, reconstructed: Tensor) -> Tensor:
    """Mean squared error of each record: (k, …) and (…, k, …) to (…, k)."""
    return _records(reconstructed - truth, truth).square().mean(dim=-1)


def relative_error(truth: Tensor, reconstructed: Tensor) -> Tensor:
    """‖x̂ − x‖ / ‖x‖ of each record (Fan et al. 2020, section 4.1); infinite for x = 0 ≠ x̂."""
    missed = torch.linalg.vector_norm(_records(reconstructed - truth, truth), dim=-1)
    length = torch.linalg.vector_norm(truth.flatten(1), dim=-1)
    ratio: Tensor = torch.where(missed == 0, torch.zeros_like(missed), missed / length)
    return ratio


def psnr(truth: Tensor, reconstructed: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each record in dB, data range 1; infinite where exact."""
    return -10 * mse(truth, reconstructed).log10()


def ssim(truth: Tensor, reconstructed: Tensor) -> Tensor:
    """Structural similarity of each picture (Wang et al. 2004), data range 1.

    Gaussian window of 11, σ = 1.5, population covariances, mean over the positions where the
    window fits whole and over channels, as scikit-image computes it; smaller pictures take the
    largest odd window that fits.

    Args:
        truth: (k, channels, height, width) in [0, 1].
        reconstructed: (…, k, channels, height, width).

    Returns:
        (…, k).
    """
    lead = reconstructed.shape[:-3]
    x = truth.expand(reconstructed.shape).reshape(-1, 1, *reconstructed.shape[-2:])
    y = reconstructed.reshape(x.shape)
    window = gaussian_window(window_for(tuple(reconstructed.shape[-2:])), x)
    mean_x, mean_y, xx, yy, xy = (F.conv2d(t, window) for t in (x, y, x * x, y * y, x * y))
    covariance = xy - mean_x * mean_y
    variances = xx - mean_x.square() + yy - mean_y.square()
    structure = (2 * covariance + _C2) / (variances + _C2)
    luminance = (2 * mean_x * mean_y + _C1) / (mean_x.square() + mean_y.square() + _C1)
    return (structure * luminance).reshape(*lead, -1).mean(dim=-1)


def window_for(size: tuple[int, ...]) -> int:
    """The width of SSIM's window for pictures of this height and width.

    Raises:
        NotApplicable: they are too small for a window of three.
    """
    width = min(WINDOW, *size)
    width -= 1 - width % 2
    if width < _SMALLEST:
        raise NotApplicable(f"pictures of {size[0]}×{size[1]} are too small for SSIM")
    return width


def gaussian_window(width: int, like: Tensor) -> Tensor:
    """(1, 1, width, width) Gaussian weights that sum to one."""
    offsets = torch.arange(width, dtype=like.dtype, device=like.device) - width // 2
    line = (-offsets.square() / (2 * SIGMA**2)).exp()
    return torch.outer(line, line)[None, None] / line.sum().square()


def _records(difference: Tensor, truth: Tensor) -> Tensor:
    """A difference (…, k, record) with each record as one vector."""
    lead = difference.shape[: difference.dim() - truth.dim() + 1]
    return difference.reshape(*lead, -1)
