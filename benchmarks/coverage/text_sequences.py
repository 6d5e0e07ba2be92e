"""How many texts come back word for word, by batch size, model, and precision of the gradient.

    python -m benchmarks.coverage.text_sequences FOLDER [--shape gpt2|small|bert]
        [--vocabulary 8192] [--batches 1 4 8 16 …] [--length 32] [--updates 1] [--bf16]
        [--threads 2]

FOLDER gets an untrained language model and a tokenizer of real reviews where it has none; ``small``
is a GPT-2 of width 256 and 4 blocks. For each batch size: of so many updates of real reviews (their
first 32 tokens) the share of texts that are named exactly, ROUGE-1 and ROUGE-2, and seconds of an
update.
"""

import csv
import gzip
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import arguments, data_file, heading, line
from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.text_scores import TextScores, scores_of
from gradaudit.audits.attack_text.text_threat import TextThreat, texts_of
from gradaudit.config import SubjectSettings
from gradaudit.core.huggingface import library
from gradaudit.data.records import Records
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.sharing.protocol import SharingProtocol

SMALL = {"n_embd": 256, "n_layer": 4, "n_head": 8}


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
    config = transformers.BertConfig if shape == "bert" else transformers.GPT2Config
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    settings = config(vocab_size=vocabulary, **ends, **(SMALL if shape == "small" else {}))
    torch.manual_seed(0)
    if shape == "bert":
        return transformers.BertForSequenceClassification(settings)
    return transformers.GPT2LMHeadModel(settings)


def make(folder: Path, shape: str, vocabulary: int) -> None:
    """Save a tokenizer and a model into a folder, for ``hf:FOLDER``."""
    with gzip.open(data_file("imdb_16k.csv.gz"), "rt") as file:
        texts = [row["text"] for row in islice(csv.DictReader(file), 4000)]
    tokenizer = tokenizer_of(texts, vocabulary, ends=shape == "bert")
    tokenizer.save_pretrained(folder)
    model_of(shape, len(tokenizer)).save_pretrained(folder)


def opened(folder: Path, length: int) -> tuple[TextThreat, Records]:
    """The model and the reviews' beginnings, as the command line opens them."""
    classifier = "SequenceClassification" in (folder / "config.json").read_text()
    label = "&label=sentiment" if classifier else ""
    data = f"text:{data_file('imdb_16k.csv.gz')}?text=text&length={length}{label}"
    subject = open_subject(SubjectSettings(model=f"hf:{folder}", data=data))
    return TextThreat(subject.target, SharingProtocol(), subject.layers), subject.records


def attacked(
    threat: TextThreat, records: Records, batch: int, updates: int, *, half: bool
) -> Iterator[TextScores]:
    """What comes back of each update."""
    order = np.random.default_rng(0).permutation(len(records))
    for number in range(updates):
        chosen = records.take(np.sort(order[number * batch : (number + 1) * batch]))
        view = threat.view(chosen, torch.Generator().manual_seed(number))
        if half:
            update = {name: part.bfloat16().float() for name, part in view.update.items()}
            view = replace(view, update=update)
        answer = recover(view, Structure.of(view), number, Silent())
        texts = texts_of(chosen)
        pairs = zip(texts.ids.tolist(), texts.lengths.tolist(), strict=True)
        yield scores_of(answer.texts, answer.tokens, [ids[:length] for ids, length in pairs])


def main() -> None:
    given = arguments(__doc__)
    if not (given.folder / "config.json").exists():
        make(given.folder, given.shape, given.vocabulary)
    threat, records = opened(given.folder, given.length)
    heading("batch", "exact", "texts", "ROUGE-1", "ROUGE-2", "s an update")
    for batch in given.batches:
        begun = time.perf_counter()
        scores = list(attacked(threat, records, batch, given.updates, half=given.bf16))
        exact, texts = (sum(s.sequences[k] for s in scores) for k in (0, 1))
        rouge = (
            f"{np.mean([getattr(s, name) for s in scores]):.3f}" for name in ("rouge1", "rouge2")
        )
        seconds = (time.perf_counter() - begun) / given.updates
        line(batch, f"{exact / texts:.3f}", texts, *rouge, f"{seconds:.1f}")


if __name__ == "__main__":
    main()
