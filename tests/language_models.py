"""Small models of transformers with random weights, as folders that ``save_pretrained`` wrote."""

import random
from pathlib import Path
from typing import Any

import torch

from gradaudit.core.huggingface import library

SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "a bird in the hand is worth two in the bush",
    "all that glitters is not gold",
    "still waters run deep",
    "the early bird gets the worm and the second mouse gets the cheese",
    "birds of a feather flock together",
    "fortune favours the bold",
    "the pen is mightier than the sword",
)
SPECIAL = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
_BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
_SHAPES = {"GPT2": _GPT2, "Bert": _BERT, "Roberta": {**_BERT, "pad_token_id": 1}}


class Shelf:
    """Models, adapters and texts in a folder, each written once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def model(self, architecture: str) -> Path:
        """The folder of a model such as ``GPT2LMHeadModel``."""
        path = self.root / architecture
        return path if path.exists() else folder_of(path, architecture)

    def adapter(self, architecture: str, *layers: str) -> Path:
        """The folder of an adapter of these layers of it."""
        path = self.root / f"adapter of {' '.join(layers)} of {architecture}"
        if path.exists():
            return path
        return adapter_of(path, self.model(architecture), architecture, target_modules=[*layers])

    def texts(self, records: int = 6) -> Path:
        """A table of texts."""
        path = self.root / f"{records}.csv"
        return path if path.exists() else table_in(path, records)


def folder_of(path: Path, architecture: str, **settings: Any) -> Path:
    """A folder with a model such as ``GPT2LMHeadModel``, its weights and its tokenizer."""
    transformers = library("transformers")
    family = next(name for name in _SHAPES if architecture.startswith(name))
    tokenizer = tokenizer_in(path, ends=family != "GPT2", types=family == "Bert")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=None,
        **{**_SHAPES[family], "initializer_range": 0.3, **settings},
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        getattr(transformers, architecture)(config).save_pretrained(path)
    return path


def adapter_of(path: Path, folder: Path, architecture: str, **settings: Any) -> Path:
    """A folder with an adapter of rank 2 of the model in another, with random weights."""
    peft, transformers = library("peft"), library("transformers")
    model = getattr(transformers, architecture).from_pretrained(folder, local_files_only=True)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        given = {"r": 2, "init_lora_weights": False, **settings}
        peft.get_peft_model(model, peft.LoraConfig(**given)).save_pretrained(path)
    return path


def tokenizer_in(path: Path, *, ends: bool = False, types: bool = False) -> Any:
    """A tokenizer of the words in ``SENTENCES``, saved into a folder.

    With ``ends`` it puts tokens around texts, and with ``types`` says which a pair's tokens are of.
    """
    tokenizers = library("tokenizers")
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    known = {word: k for k, word in enumerate([*SPECIAL.values(), *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token=SPECIAL["unk"]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if ends:
        named = [(SPECIAL[name], known[SPECIAL[name]]) for name in ("cls", "sep")]
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=named
        )
    special = {f"{name}_token": token for name, token in SPECIAL.items()}
    names = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    saved = library("transformers").PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=names, **special
    )
    saved.save_pretrained(path)
    return saved


def table_in(path: Path, records: int = 40) -> Path:
    """A CSV file of texts of several lengths, with a label, an attribute and a user."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    draws = random.Random(0)
    lines = ["text,mood,sex,who"]
    for k in range(records):
        text = " ".join(draws.choices(words, k=3 + k % 12))
        lines.append(f"{text},{('bad', 'good')[k % 2]},{'fm'[k // 2 % 2]},u{k % 5}")
    path.write_text("\n".join(lines) + "\n")
    return path
