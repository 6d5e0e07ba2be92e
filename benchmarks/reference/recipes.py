"""How each reference model is made: its data, its architecture, its training."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from runpy import run_path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import SAMPLES, entropy, epochs_of, fit
from benchmarks.reference import datasets
from benchmarks.reference.architectures import (
    FtTransformer,
    GruClassifier,
    UNet,
    WaveNet1d,
    resnet18_gn,
)
from gradaudit.core.huggingface import library
from gradaudit.data.records import Records
from gradaudit.zoo import build

SEED = 0
BATCH = 32


@dataclass(frozen=True)
class Recipe:
    """A reference model.

    Attributes:
        title: what it is, in the table.
        says: architecture and task, in a sentence.
        data: what the records are, in a clause.
        attribute: the private attribute that is attacked.
        records: makes the records.
        model: makes the model for them, with torch's global generator.
        epochs: over four fifths of the records, in batches of ``BATCH``.
        rate: of Adam.
    """

    title: str
    says: str
    data: str
    attribute: str
    records: Callable[[], Records]
    model: Callable[[Records], nn.Module]
    epochs: int
    rate: float = 1e-3


def trained(recipe: Recipe, seed: int = SEED) -> tuple[nn.Module, Records, Records]:
    """The model after its training, all its records, and those it was not trained on."""
    records = recipe.records()
    torch.manual_seed(seed)
    order = torch.randperm(len(records))
    held_out = records.take(order[len(order) * 4 // 5 :].numpy())
    model = recipe.model(records)
    fitted(model, records.take(order[: len(order) * 4 // 5].numpy()), recipe.epochs, recipe.rate)
    return model, records, held_out


def fitted(model: nn.Module, records: Records, epochs: int, rate: float) -> nn.Module:
    """Train what of a model is not frozen, in evaluation mode when done."""
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    batches = epochs_of(len(records), BATCH, epochs)
    return fit(model.train(), records.inputs, records.labels, adam, batches, entropy)


def vit(records: Records) -> nn.Module:
    """Two blocks of width 32 over patches of 8×8."""
    return _transformer(
        "ViTForImageClassification", "ViTConfig",
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, num_labels=len(records.classes),
    )  # fmt: skip


def gpt2(records: Records) -> nn.Module:
    """Two blocks of width 32."""
    return _transformer(
        "GPT2LMHeadModel", "GPT2Config",
        vocab_size=500, n_embd=32, n_layer=2, n_head=2, n_positions=32,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


def bert(records: Records) -> nn.Module:
    """Two blocks of width 32."""
    return _transformer(
        "BertForSequenceClassification", "BertConfig",
        vocab_size=500, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip


def _transformer(architecture: str, config: str, **sizes: int | None) -> nn.Module:
    transformers = library("transformers")
    made = getattr(transformers, config)(**sizes)
    model: nn.Module = getattr(transformers, architecture)(made)
    return model


def lora(records: Records) -> nn.Module:
    """BERT that 4,000 other reviews have trained, with adapters of rank 4 beside it."""
    base, peft = bert(records), library("peft")
    fitted(base, datasets.reviews("classification", 2000, 4000), epochs=4, rate=1e-3)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return peft.get_peft_model(base, config)  # type: ignore[no-any-return]


PEOPLE: dict[str, Any] = {
    "data": "3,000 people of Adult, whose sex is among the inputs",
    "attribute": "sex",
    "records": datasets.adult,
}
REVIEWS: dict[str, Any] = {
    "data": "2,000 reviews of IMDB, 32 words each",
    "attribute": "n_words",
    "records": partial(datasets.reviews, "classification"),
}
RECIPES = {
    "digits-cnn": Recipe(
        title="digits CNN",
        says="two convolutions and two fully connected layers tell digits apart",
        data="1,797 digits of 8×8 pixels, from scikit-learn",
        attribute="slant",
        records=datasets.digits,
        model=lambda _: run_path(str(SAMPLES / "models.py"))["digits_cnn"](),
        epochs=8,
    ),
    "lenet": Recipe(
        title="LeNet",
        says="two convolutions, pooled, and three fully connected layers tell digits apart",
        data="2,000 digits of 28×28 pixels, from the test pictures of MNIST",
        attribute="slant",
        records=datasets.pictures_of_digits,
        model=lambda _: build("lenet", shape=(1, 28, 28)),
        epochs=8,
    ),
    "resnet18-gn": Recipe(
        title="ResNet-18-GN",
        says="ResNet-18 with group norms and 4 to 32 channels tells women from men",
        data="2,000 faces of 16×16 pixels, from UTKFace",
        attribute="race",
        records=partial(datasets.faces, 16),
        model=lambda records: resnet18_gn(len(records.classes)),
        epochs=8,
    ),
    "vit": Recipe(
        title="ViT",
        says="a vision transformer of two blocks of width 32 tells women from men",
        data="2,000 faces of 32×32 pixels, from UTKFace",
        attribute="race",
        records=datasets.faces,
        model=vit,
        epochs=10,
    ),
    "adult-mlp": Recipe(
        title="MLP on Adult",
        says="a hidden layer of 32 units tells whether an income is above 50,000 dollars",
        **PEOPLE,
        model=lambda records: build(
            "mlp", inputs=records.inputs.shape[1:], hidden=(32,), classes=2
        ),
        epochs=10,
    ),
    "ft-transformer": Recipe(
        title="FT-Transformer",
        says="a transformer over the columns of a table tells whether an income is above 50,000 "
        "dollars",
        **PEOPLE,
        model=lambda records: FtTransformer(records.features),
        epochs=6,
    ),
    "gru": Recipe(
        title="GRU",
        says="a recurrent network of 16 units tells whether a review is kind",
        **REVIEWS,
        model=lambda _: GruClassifier(500),
        epochs=10,
    ),
    "tiny-gpt2": Recipe(
        title="tiny GPT-2",
        says="GPT-2 of two blocks of width 32 tells the next word",
        **REVIEWS | {"records": partial(datasets.reviews, "next-token")},
        model=gpt2,
        epochs=6,
    ),
    "lora": Recipe(
        title="LoRA",
        says="adapters of rank 4 beside a trained BERT, which is frozen, tell whether a review is "
        "kind",
        **REVIEWS,
        model=lora,
        epochs=4,
    ),
    "bert": Recipe(
        title="BERT",
        says="BERT of two blocks of width 32 tells whether a review is kind",
        **REVIEWS,
        model=bert,
        epochs=6,
    ),
    "unet": Recipe(
        title="U-Net",
        says="a U-Net of one step down tells which pixels are ink",
        data="1,797 digits of 8×8 pixels under noise, from scikit-learn",
        attribute="slant",
        records=datasets.ink,
        model=lambda _: UNet(),
        epochs=8,
    ),
    "wav": Recipe(
        title="wav",
        says="two convolutions over the samples of a wave tell vowels apart",
        data="1,500 made-up voices, 512 samples each, at 4,000 a second",
        attribute="voice",
        records=datasets.vowels,
        model=lambda records: WaveNet1d(len(records.classes)),
        epochs=12,
    ),
}
