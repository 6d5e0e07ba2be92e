"""Which of some candidates a gradient comes from, by distance in a learned space.

Users who are attacked are never among those that the adversary could train on, so no classifier of
users serves. An encoder is trained together with a classifier of the shadow users; the classifier
is thrown away, and a candidate's probability is

    P(a|g̃) = exp(−‖f(g_a) − f(g̃)‖₂) / Σ_i exp(−‖f(g_i) − f(g̃)‖₂).

Source: J. Snell et al., "Prototypical networks for few-shot learning" (2017), as Z. Li et al.,
"Analyzing inference privacy risks through gradients in machine learning" (2024), section 4.1, use
it: a fully connected encoder with one hidden layer, 50 dimensions.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gradaudit.families.standard import Scale

DIMENSIONS = 50
HIDDEN = 128
_EPOCHS = 60
_BATCH = 64
_RATE = 1e-3
_DECAY = 1e-4


@dataclass(frozen=True)
class Encoder:
    """A trained encoder of gradients.

    Attributes:
        scale: what standardises features.
        network: features kept by ``scale`` to ``DIMENSIONS``.
    """

    scale: Scale
    network: nn.Module

    @classmethod
    def trained(
        cls, features: NDArray[np.floating], users: NDArray[np.int64], seed: int
    ) -> "Encoder":
        """Train on shadow users' gradients, by cross-entropy of who they are of.

        Args:
            features: (batches, features).
            users: (batches,) in 0..users-1.
            seed: of the weights and of the order.
        """
        generator = torch.Generator().manual_seed(seed)
        scale = Scale.of(features)
        inputs = torch.from_numpy(scale(features)).to(torch.float32)
        labels = torch.from_numpy(users)
        encoder = _encoder(inputs.shape[1])
        classifier = _linear(DIMENSIONS, int(users.max()) + 1)
        _initialise((encoder, classifier), generator)
        _train(nn.Sequential(encoder, classifier), inputs, labels, generator)
        return cls(scale, encoder.eval())

    def __call__(self, features: NDArray[np.floating]) -> Tensor:
        """Embeddings (batches, ``DIMENSIONS``)."""
        with torch.no_grad():
            found: Tensor = self.network(torch.from_numpy(self.scale(features)).to(torch.float32))
        return found.to(torch.float64)


def candidate_posterior(observed: Tensor, candidates: Tensor) -> NDArray[np.float64]:
    """Log-probabilities of the candidates, each being as likely before.

    Args:
        observed: (trials, dimensions) embeddings of what was seen.
        candidates: (trials, candidates, dimensions) embeddings of the candidates' own batches.

    Returns:
        (trials, candidates).
    """
    distances = (candidates - observed[:, None, :]).norm(dim=2)
    return np.asarray(torch.log_softmax(-distances, dim=1).cpu().numpy(), dtype=np.float64)


def _encoder(inputs: int) -> nn.Sequential:
    return nn.Sequential(_linear(inputs, HIDDEN), nn.ReLU(), _linear(HIDDEN, DIMENSIONS))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose weights are not drawn yet: global random numbers stay as they are."""
    empty: nn.Linear = skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    return empty


def _initialise(modules: tuple[nn.Module, ...], generator: torch.Generator) -> None:
    """He's normal weights and zero biases, from the generator alone."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.dim() > 1:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
            else:
                nn.init.zeros_(parameter)


def _train(model: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, weight_decay=_DECAY)
    for _ in range(_EPOCHS):
        order = torch.randperm(len(inputs), generator=generator)
        for rows in torch.split(order, _BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
