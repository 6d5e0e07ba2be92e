"""Reads a job's model and federation settings, for the files that ``gradaudit init`` writes."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from torch import nn

from gradaudit.audits.job import JobOptions
from gradaudit.audits.job.loading.chains import JobChain, LoadedJob
from gradaudit.audits.job.measure import load
from gradaudit.core.text import first_line, listed, printable
from gradaudit.errors import GradauditError
from gradaudit.models.building import load_model

_NAMES: Mapping[str, tuple[str, ...]] = {
    "records": ("num-examples", "samples-per-client", "records"),
    "batch-size": ("batch-size", "train-batch-size", "local-batch-size"),
    "epochs": ("local-epochs", "epochs", "num-epochs", "aggregation-epochs", "num-local-epochs"),
    "local-steps": ("local-steps", "max-steps", "num-local-steps"),
    "rate": ("lr", "learning-rate"),
    "optimizer": ("optimizer",),
    "momentum": ("momentum",),
}
"""Keys of the federation's file, and the settings of jobs that say the same."""
_WHOLE = ("records", "batch-size", "epochs", "local-steps")
_HEAD = """\
# The federation of {folder}, as its files say it ({framework}): gradaudit schema deployment.
# Updates are differences to the model received, after local training.
"""


@dataclass(frozen=True)
class JobBeginning:
    """The model and the federation settings in a job's files.

    Attributes:
        model: MODEL spec, or None where it could not be told.
        federation: text of a deployment file.
        untold: what could not be told, a sentence each.
        mode: in which clients run the model: train if it has BatchNorm, which training normalizes
            by its batches; None where that makes no difference or is not known.
    """

    model: str | None
    federation: str
    untold: tuple[str, ...]
    mode: Literal["train"] | None = None


def beginning(folder: Path, model: str | None = None) -> JobBeginning:
    """Read a job's model and federation, without any training.

    Raises:
        UsageError: the folder is no job, or cannot be loaded.
    """
    job = load(folder, JobOptions(model=model))
    untold = list(job.notes)
    spec = model or _model_of(job, untold)
    settings = _federation(job, untold)
    lines = [_HEAD.format(folder=printable(str(folder)), framework=job.framework)]
    lines += [yaml.safe_dump({key: value}) for key, value in settings.items()]
    lines += [
        f"# Not known from the job: {printable(sentence, limit=None)}\n" for sentence in untold
    ]
    lines += _laws(job)
    return JobBeginning(spec, "".join(lines), tuple(untold), _mode_of(spec))


def _mode_of(spec: str | None) -> Literal["train"] | None:
    """Find whether a model has BatchNorm, so that training mode makes a difference."""
    if spec is None:
        return None
    kinds = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
    return "train" if any(isinstance(x, kinds) for x in load_model(spec).modules()) else None


def _laws(job: LoadedJob) -> Iterator[str]:
    """Describe clips and noises as the app has them, beside the defense in the update's scale."""
    for chain in job.chains:
        if chain.known is not None and chain.chosen and chain.carries == "update":
            names = listed([link.name for link in chain.links])
            yield (
                f"# {names} of {chain.task}: clip {chain.known.clip:g} and noise "
                f"{chain.known.sigma:g} on differences of weights; the defense has both over the "
                "rate.\n"
            )


def _model_of(job: LoadedJob, untold: list[str]) -> str | None:
    """Find the class in the job's code that makes its arrays, as FILE.py:NAME."""
    shapes = {key: array.shape for key, array in job.layout.received.items()}
    why = "no class in its files makes the arrays that clients receive"
    for file, found in job.models:
        spec = f"{os.path.relpath(file)}:{found.__name__}"
        try:
            made = load_model(spec).state_dict()
        except (GradauditError, Exception) as error:  # whatever the user's constructor raises
            why = f"{spec} cannot be built: {first_line(error)}"
            continue
        if list(shapes.values()) == [tuple(array.shape) for array in made.values()]:
            return spec
    untold.append(f"model: {why}; name it with --model FILE.py:factory")
    return None


def _federation(job: LoadedJob, untold: list[str]) -> dict[str, Any]:
    """Make the keys and values of the deployment file."""
    settings: dict[str, Any] = {"clients": job.online}
    settings["participation"] = job.clients if job.online else None
    settings |= _training(job.config)
    settings["aggregation"] = "secure" if job.secure else "plain"
    rate = settings.get("rate")
    settings["defense"] = [s for chain in job.chains for s in _defense(chain, rate, untold)]
    if settings.get("epochs") and settings.pop("local-steps", None):
        untold.append("local-steps: the job names epochs and steps; epochs are taken")
    settings = {key: value for key, value in settings.items() if value not in (None, [])}
    if settings.get("clients") is None:
        untold.append("clients: how many there are; add clients: N")
    if "records" not in settings and not {"local-steps", "batch-size"} <= settings.keys():
        untold.append("records: how many a client trains on in a round; add records: N")
    if "optimizer" not in settings:
        untold.append("optimizer: the training's code is not read; add optimizer: sgd or adam")
    if settings.get("optimizer", "sgd") == "sgd" and "momentum" not in settings:
        untold.append("momentum: the training's code is not read; 0 is taken; add momentum: M")
    silent = settings.keys().isdisjoint({"records", "epochs", "local-steps", "optimizer"})
    return {**settings, "algorithm": "fedavg"} if silent else settings


def _training(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Find the settings of local training in the job's files, by their common names."""
    plain = {str(k).rpartition(".")[2].replace("_", "-").lower(): v for k, v in settings.items()}
    for key, names in _NAMES.items():
        found = next((plain[name] for name in names if name in plain), None)
        try:
            value = str(found).lower() if key == "optimizer" else float(found or 0)
        except (TypeError, ValueError):
            continue
        if value in ("sgd", "adam") or (isinstance(value, float) and value > 0):
            yield key, int(value) if key in _WHOLE else value


def _defense(chain: JobChain, rate: float | None, untold: list[str]) -> Iterator[str]:
    """Describe a chain as a defense, where the framework's code gives its law.

    The chain clips differences of weights; the federation's updates are those over the rate.
    """
    if not (chain.chosen and chain.carries == "update" and chain.links):
        return
    law, names = chain.known, ", ".join(link.name for link in chain.links)
    if law is not None and rate is not None:
        yield f"dp:clip={law.clip / rate:g},sigma={law.sigma / rate:g},per=release"
        return
    why = "its scale is that of the rate, which the job does not say" if law else "no law is known"
    untold.append(f"defense: {names} of {chain.task}: {why}; gradaudit job measures it")
