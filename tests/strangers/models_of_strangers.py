import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 2)
        self.each = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 5)])

    def forward(self, x):
        chosen = F.one_hot(self.gate(x).argmax(1), 2)
        kept = (chosen * (chosen.cumsum(0) <= 3)).to(x)
        return (torch.stack([e(x) for e in self.each], 1) * kept[..., None]).sum(1)


def experts():
    return nn.Sequential(Experts(), nn.Tanh(), nn.Linear(5, 3))


class Cut(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.body, self.head, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x):
        return self.head(self.function(self.body(x)))


@torch.no_grad()
def relu(x):
    return torch.relu(x)


@torch.no_grad()
def tanh(x):
    return torch.tanh(x)


def no_grad_relu():
    return Cut(relu)


def no_grad_tanh():
    return Cut(tanh)


def detached():
    return Cut(lambda x: x.tanh().detach())


def by_numpy():
    return Cut(lambda x: torch.from_numpy(x.detach().tanh().numpy()))


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def risk():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Unflatten(1, (1, 16)), nn.MaxPool1d(2), nn.Flatten()
        )
        self.body.requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        with torch.no_grad():
            f = self.body(x)
        return self.head(f)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.mix = torch.eye(6).roll(1, 0)

    def forward(self, x):
        return self.head(torch.sparse.mm(self.mix.to(x).to_sparse(), x.T).T)


class Force(nn.Module):
    """Forces as derivatives of an energy."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_()
        with torch.enable_grad():
            (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force[:, :3]


def supcon(outputs, labels):
    f = F.normalize(outputs, dim=1)
    itself = torch.eye(len(outputs), dtype=torch.bool)
    scores = (f @ f.T / 0.5).masked_fill(itself, -1e9)
    positive = (labels[:, None] == labels[None]) & ~itself
    return -((scores.log_softmax(1) * positive).sum(1) / positive.sum(1).clamp(min=1)).mean()


def cox(outputs, times):
    order = times.flatten().argsort(descending=True)
    s = outputs[order, 0]
    return (s.logcumsumexp(0) - s).mean()


def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=g)
    return {
        "inputs": x,
        "labels": torch.arange(300) % 3,
        "attributes": {"group": (x[:, 0] > 0).long()},
    }


def survival():
    d = data()
    return d | {"labels": torch.rand(300, 1, generator=torch.Generator().manual_seed(1))}


def several():
    d = data()
    return d | {"labels": torch.rand(300, 3, generator=torch.Generator().manual_seed(1))}


def head_on_tanh():
    """What the heads on cut features compute, with the derivative."""
    model = Cut(torch.tanh)
    model.body.requires_grad_(False)
    return model
