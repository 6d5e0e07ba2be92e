"""What comes back of texts where no span of what came in is whole.

    python -m benchmarks.coverage.text_failures [--updates 20] [--only '']

A GPT-2 and a BERT of 48 dimensions, two blocks and the 500 most frequent words, trained for 600
steps on reviews. Of updates of other reviews' 12 words each are printed the shares of tokens and
of texts that are named, ROUGE-1 and ROUGE-2, with 95 % intervals, and processor seconds an update.
"""

import csv
import gzip
import re
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.coverage.fine_tuning import following, told
from benchmarks.harness import arguments, data_file, drawn, entropy, fit, heading, line
from gradaudit.audits.attack_text import AttackText
from gradaudit.core.huggingface import library
from gradaudit.data.common.tokenizing import parts_of
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent
from gradaudit.subject import Subject

WORDS, LENGTH, WIDTH, STEPS, REVIEWS, HELD_OUT = 500, 12, 48, 600, 3000, 2000
SGD = {"local_steps": 5, "rate": 0.1}
ADAMW = {"local_steps": 5, "rate": 1e-4, "optimizer": "adamw"}
NAMES = ("tokens_recovered", "sequences_recovered", "rouge1", "rouge2")


def reviews() -> tuple[Tensor, Tensor]:
    """Runs of frequent words (runs, LENGTH) of reviews, four of each, and whether it is good."""
    with gzip.open(data_file("imdb_16k.csv.gz"), "rt") as file:
        rows = list(islice(csv.DictReader(file), REVIEWS))
    texts = [re.findall(r"[a-z']+|[.,!?]", row["text"].lower()) for row in rows]
    common = Counter(word for text in texts for word in text).most_common(WORDS - 1)
    numbers = {word: k for k, (word, _) in enumerate(common, start=1)}
    runs, labels = [], []
    for row, text in zip(rows, texts, strict=True):
        ids = [numbers[word] for word in text if word in numbers]
        some = [ids[k : k + LENGTH] for k in range(0, min(len(ids) - LENGTH, 4 * LENGTH), LENGTH)]
        runs += some
        labels += [int(row["sentiment"] in ("1", "positive"))] * len(some)
    return torch.tensor(runs), torch.tensor(labels)


def model_of(name: str, ids: Tensor, labels: Tensor) -> nn.Module:
    """A trained model: ``tied`` or ``untied`` GPT-2, or ``bert``."""
    transformers = library("transformers")
    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=4 * WIDTH, max_position_embeddings=16,
        )  # fmt: skip
        made: nn.Module = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=16, use_cache=False,
            attn_implementation="eager", bos_token_id=None, eos_token_id=None,
            tie_word_embeddings=name == "tied",
        )  # fmt: skip
        made, labels = transformers.GPT2LMHeadModel(config), following(ids)
    adam = torch.optim.AdamW(made.parameters(), 2e-3)
    return fit(made.eval(), ids, labels, adam, drawn(len(ids), 32, STEPS), entropy)


def cases() -> Iterator[tuple[str, str, int, bool, dict[str, Any]]]:
    """What is done, the model, texts of an update, whether the first block is frozen, options."""
    for name in ("untied", "tied"):
        yield f"GPT-2, {name} head, 48 tokens", name, 4, False, {}
        yield f"GPT-2, {name} head, 96 tokens", name, 8, False, {}
        yield f"GPT-2, {name} head, 48 tokens, 5 steps of SGD", name, 4, False, SGD
        yield f"GPT-2, {name} head, 48 tokens, 5 steps of AdamW", name, 4, False, ADAMW
    yield "GPT-2, first block and tables frozen, 36 tokens", "untied", 3, True, {}
    yield "GPT-2, first block and tables frozen, 48 tokens", "untied", 4, True, {}
    yield "BERT, 48 tokens", "bert", 4, False, {}


def main() -> None:
    asked, (ids, classes) = arguments(__doc__), reviews()
    models = {
        name: model_of(name, ids[HELD_OUT:], classes[HELD_OUT:])
        for name in dict.fromkeys(case[1] for case in cases() if asked.only in case[0])
    }
    heading("update", "tokens named", "whole texts", "ROUGE-1", "ROUGE-2", "seconds")
    for title, name, texts, frozen, how in cases():
        if asked.only not in title:
            continue
        model = models[name].requires_grad_(not frozen)
        if frozen:
            for part in (model.get_submodule("transformer.h.1"), model.get_submodule("lm_head")):
                part.requires_grad_(True)
        order = torch.randperm(HELD_OUT, generator=torch.Generator().manual_seed(1))
        some = ids[order[: texts * (asked.updates + 2)]]
        labels = classes[order[: len(some)]] if name == "bert" else following(some)
        inputs = torch.cat([some, torch.ones_like(some)], dim=1)
        records = Records(inputs, labels, parts=parts_of(LENGTH))
        target = Target(model, CrossEntropy(), parts=parts_of(LENGTH))
        options = {"batch_size": texts, "batches": asked.updates, "decoys": 1, **how}
        subject = Subject((target,), records, layers_of(model))
        begun = time.process_time()
        attack = AttackText(AttackText.Options.model_validate(options))
        rows = {row.metric: row for row in attack.run(subject, Silent()) if row.layer is None}
        seconds = (time.process_time() - begun) / asked.updates
        line(title, *(told(rows[metric]) for metric in NAMES), f"{seconds:.1f}")


if __name__ == "__main__":
    main()
