"""The trainers of Lightning and transformers, with their own loops."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from language_models import folder_of
from late import Late
from observer.training import model, records, state_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradaudit.errors import UsageError
from gradaudit.observer import Blocked, Observer
from gradaudit.report import Report

if TYPE_CHECKING:
    from lightning import Callback, LightningModule

lightning, transformers = Late("lightning"), Late("transformers")
of_lightning = Late("gradaudit.integrations.lightning")
of_transformers = Late("gradaudit.integrations.transformers")
pytestmark = pytest.mark.usefixtures("torchvision")


@cache
def module_class() -> type[LightningModule]:
    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def training_step(self, batch: list[Tensor]) -> Tensor:
            inputs, labels = batch
            return nn.functional.cross_entropy(self.inner(inputs), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module


def generous(folder: Path | None = None, **options: Any) -> Observer:
    observer = Observer(folder, **options)
    observer.allowance.earn(1000)
    return observer


def fit(module: LightningModule, callback: Callback, folder: Path) -> None:
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[callback],
    )
    trainer.fit(module, DataLoader(TensorDataset(*records(12)), batch_size=3))


@pytest.mark.slow
def test_lightning_shows_the_gradients_of_its_steps(tmp_path: Path) -> None:
    callback = of_lightning.ObserverCallback(generous(tmp_path / "reports"))
    fit(module_class()(), callback, tmp_path)
    assert callback.steps.steps == callback.steps.looked_at == 4
    assert callback.steps.worst is not None
    report = callback.steps.worst.report
    assert report is not None
    assert {layer.name for layer in report.target.layers} == {f"inner.{n}" for n in (0, 2, 3, 4)}
    assert Report.from_file(tmp_path / "reports" / "worst-step.json").measurements


def test_lightning_is_stopped_by_a_policy_or_skips_the_step(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules:\n  - {metric: observe.labels_named, layers: '', max: 0}\n")
    blocking = of_lightning.ObserverCallback(generous(policy=policy, on_fail="raise"))
    with pytest.raises(Blocked):
        fit(module_class()(), blocking, tmp_path)
    module = module_class()()
    before = state_of(module)
    holding = generous(policy=policy, on_fail="withhold")
    fit(module, of_lightning.ObserverCallback(holding), tmp_path)
    parameters = dict(module.named_parameters())
    assert all(torch.equal(before[name], kept) for name, kept in parameters.items())


def test_options_beside_an_observer_are_refused() -> None:
    with pytest.raises(UsageError, match="share: give it to the observer"):
        of_lightning.ObserverCallback(generous(), share=0.5)


@pytest.mark.slow
def test_transformers_shows_the_gradients_of_its_steps(tmp_path: Path) -> None:
    language_model = transformers.GPT2LMHeadModel.from_pretrained(
        folder_of(tmp_path / "gpt2", "GPT2LMHeadModel")
    )
    texts = [{"input_ids": torch.arange(6) + k, "labels": torch.arange(6) + k} for k in range(4)]
    callback = of_transformers.ObserverCallback(generous(tmp_path / "reports"))
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        label_smoothing_factor=0.1,
    )
    transformers.Trainer(
        language_model, arguments, train_dataset=texts, callbacks=[callback]
    ).train()
    assert callback.steps.steps == callback.steps.looked_at == 2
    assert callback.steps.observer.smoothing == 0.1
    assert callback.steps.worst is not None
    report = callback.steps.worst.report
    assert report is not None
    positions = report.select("observe.tokens_named", layer="transformer.wpe")[0]
    assert positions.value == 5  # nothing is asked for after the last of six tokens
