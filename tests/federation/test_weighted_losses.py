"""Training with a loss that weighs classes, against plain gradient descent on torch's own."""

from dataclasses import replace

import torch
from cases import CASES
from torch import nn

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.federation.federated_training import train_rounds
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.torch_losses import user_loss


def test_one_client_descends_along_the_weighted_mean() -> None:
    case = next(case for case in CASES if str(case) == "mlp-tanh")
    target = case.target()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, *case.inputs.shape[1:], generator=generator, dtype=torch.float64)
    classes = target.model(inputs).shape[1]
    records = Records(inputs, torch.arange(12) % classes)
    weight = torch.arange(1, classes + 1, dtype=torch.float64)
    module = nn.CrossEntropyLoss(weight=weight)
    model = case.make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(module(model(records.inputs), records.labels))
        optimizer.step()
    options = TrainingOptions(algorithm="fedsgd", clients=1, rounds=3, rate=0.1)
    weighted = replace(target, loss=user_loss(module, "file.py:loss"))
    *_, last = train_rounds(weighted, records, options, scored=False)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(last.state[name], parameter.detach())
    unclipped = parse_defense("dp:clip=1e9,sigma=0,per=release")
    *_, defended = train_rounds(weighted, records, options, defenses=[unclipped], scored=False)
    torch.testing.assert_close(defended.state, last.state)
