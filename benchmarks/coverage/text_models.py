"""Language models made here, with a tokenizer of real reviews, as folders for ``hf:DIR``.

    python -m benchmarks.coverage.text_models FOLDER [--shape small|gpt2|bert] [--steps 0]
        [--vocabulary 8192]

``small`` is a GPT-2 of width 256 and 4 blocks. ``--steps`` trains the model on the reviews for so
many batches of 16 texts of 32 tokens (AdamW, 3e-4), next tokens or, for bert, their sentiment; 0
leaves it as it was drawn.
"""

import csv
import gzip
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import arguments, data_file
from gradaudit.core.huggingface import library

SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": ("GPT2", {}),
    "small": ("GPT2", {"n_embd": 256, "n_layer": 4, "n_head": 8}),
    "bert": ("Bert", {}),
}
LENGTH, BATCH = 32, 16


def reviews() -> list[dict[str, str]]:
    """Rows with ``text`` and ``sentiment``."""
    with gzip.open(data_file("imdb_16k.csv.gz"), "rt") as file:
        return list(csv.DictReader(file))


def tokenizer_of(texts: list[str], vocabulary: int, *, ends: bool) -> Any:
    """A byte-level BPE tokenizer of these texts."""
    tokenizers = library("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    if ends:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True)
    given = {f"{name}_token": token for name, token in names}
    return library("transformers").PreTrainedTokenizerFast(tokenizer_object=made, **given)


def model_of(shape: str, vocabulary: int) -> Any:
    """A model of this shape with weights at random."""
    transformers = library("transformers")
    family, sizes = SHAPES[shape]
    config = getattr(transformers, f"{family}Config")(
        **sizes, vocab_size=vocabulary, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    kind = "GPT2LMHeadModel" if family == "GPT2" else "BertForSequenceClassification"
    torch.manual_seed(0)
    return getattr(transformers, kind)(config)


def train(model: Any, tokenizer: Any, rows: list[dict[str, str]], steps: int) -> None:
    """Some steps of AdamW on the reviews' beginnings."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draws = torch.Generator().manual_seed(0)
    model.train()
    for step in range(steps):
        chosen = [rows[k] for k in torch.randint(len(rows), (BATCH,), generator=draws)]
        given = tokenizer(
            [row["text"] for row in chosen],
            truncation=True,
            padding="max_length",
            max_length=LENGTH,
            return_tensors="pt",
        )
        ids, mask = given["input_ids"], given["attention_mask"]
        logits = model(input_ids=ids, attention_mask=mask).logits
        if logits.dim() == 3:
            wanted = torch.where(mask[:, 1:] > 0, ids[:, 1:], -100)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten())
        else:
            loss = F.cross_entropy(
                logits, torch.tensor([int(row["sentiment"] == "pos") for row in chosen])
            )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.eval()


def make(folder: Path, shape: str, steps: int, vocabulary: int) -> None:
    """Tokenizer and model, saved into a folder."""
    rows = reviews()
    tokenizer = tokenizer_of([row["text"] for row in rows[:4000]], vocabulary, ends=shape == "bert")
    tokenizer.save_pretrained(folder)
    model = model_of(shape, len(tokenizer))
    train(model, tokenizer, rows[8000:], steps)
    model.save_pretrained(folder)


def main() -> None:
    given = arguments(__doc__)
    begun = time.process_time()
    make(given.folder, given.shape, given.steps, given.vocabulary)
    print(f"{given.folder}: {time.process_time() - begun:.0f} CPU s")


if __name__ == "__main__":
    main()
