"""Trains once with Opacus and canary records; ``--mode one-run`` bounds epsilon by their scores."""

import copy

import numpy as np
import torch

from gradaudit.audits.dp_audit import DpAuditOptions
from gradaudit.audits.dp_audit.mechanisms import load_mechanism
from gradaudit.audits.dp_audit.mechanisms.opacus_optimizer import OpacusMechanism
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.common.packing import arguments
from gradaudit.errors import UsageError
from gradaudit.federation.canaries import CanaryScores
from gradaudit.federation.record_canaries import RecordCanaries
from gradaudit.models.outputs import returned_by
from gradaudit.progress import Progress
from gradaudit.subject import Subject


def record_scores(subject: Subject, options: DpAuditOptions, progress: Progress) -> CanaryScores:
    """Train the subject's model on its records for ``--steps`` steps of Poisson batches.

    Modules are in training mode, without which Opacus has no gradients of records.

    Raises:
        UsageError: the mechanism is not Opacus's, no steps are named, or Opacus cannot train the
            model.
    """
    if options.steps is None:
        raise UsageError("--steps: say how many steps the run of --mode one-run has")
    mechanism = load_mechanism(options.mechanism or "")
    if not isinstance(mechanism, OpacusMechanism):
        raise UsageError(
            "--mode one-run trains with --mechanism opacus:clip=C,sigma=S; for another mechanism "
            "put its canaries into your own training (gradaudit.integrations.opacus)"
        )
    records, rate, draws = subject.records, options.sampling_rate, rng(subject.seed, "one run")
    target = subject.target
    model = mechanism.wrapped(copy.deepcopy(target.model).train())
    optimizer = mechanism.optimizer(
        list(model.parameters()),
        lr=options.rate,
        expected_batch_size=1.0,
        generator=torch_rng(subject.seed, "one run", device=target.device),
    )
    with (
        RecordCanaries(optimizer, sampling_rate=rate, count=None, seed=subject.seed) as canaries,
        progress.task("one run", options.steps) as advance,
    ):
        optimizer.expected_batch_size = rate * (len(records) + canaries.count / 2)
        for _ in range(options.steps):
            optimizer.zero_grad()
            taken = torch.from_numpy(np.flatnonzero(draws.random(len(records)) < rate))
            if len(taken):
                given, named = arguments(target.parts, records.inputs[taken].to(target.device))
                returned = returned_by(model, model, given, named, each=target.loss.takes_whole)
                labels = records.labels[taken].to(target.device)
                loss = target.loss.of_batch(target.loss.taken(returned), labels)
                torch.autograd.backward(loss)
            optimizer.step()
            advance(1)
    return canaries.scores()
