"""How many texts come back word for word, by batch size, model, and precision of the gradient.

    python benchmarks/text_sequences.py SHARED FOLDER [--batches 1,4,8,16] [--length 32]
        [--updates N] [--bf16] [--threads 2]

FOLDER is one that ``text_models.py`` made. For each batch size, in a process of its own: of so many
updates of real reviews (their first 32 tokens) the share of texts that are named exactly, ROUGE-1
and ROUGE-2, seconds of the attack alone and of everything, and the most memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gradaudit.audits.attack_text.observing import TextThreat, texts_of
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.scores import scores_of
from gradaudit.audits.attack_text.structure import Structure
from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.opening import open_subject
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol


def opened(shared: Path, folder: Path, length: int) -> tuple[TextThreat, Records]:
    """The model and the reviews' beginnings, as the command line opens them."""
    classifier = "SequenceClassification" in (folder / "config.json").read_text()
    label = "&label=sentiment" if classifier else ""
    data = f"text:{shared / 'data' / 'imdb_16k.csv.gz'}?text=text&length={length}{label}"
    subject = open_subject(SubjectSettings(model=f"hf:{folder}", data=data))
    return TextThreat(subject.target, SharingProtocol(), subject.layers), subject.records


def row(
    shared: Path, folder: Path, batch: int, length: int, updates: int, *, half: bool
) -> dict[str, float]:
    """One batch size."""
    begun = time.perf_counter()
    threat, records = opened(shared, folder, length)
    order = np.random.default_rng(0).permutation(len(records))
    seconds, scores = 0.0, []
    for number in range(updates):
        chosen = records.take(np.sort(order[number * batch : (number + 1) * batch]))
        view = threat.view(chosen, torch.Generator().manual_seed(number))
        if half:
            update = {name: part.bfloat16().float() for name, part in view.update.items()}
            view = replace(view, update=update)
        before = time.perf_counter()
        answer = recover(view, Structure.of(view), number, Silent())
        seconds += time.perf_counter() - before
        texts = texts_of(chosen)
        pairs = zip(texts.ids.tolist(), texts.lengths.tolist(), strict=True)
        truth = [ids[:length] for ids, length in pairs]
        scores.append(scores_of(answer.texts, answer.tokens, truth))
    return {
        "batch": batch,
        "exact": sum(s.sequences[0] for s in scores) / sum(s.sequences[1] for s in scores),
        "texts": sum(s.sequences[1] for s in scores),
        "rouge1": float(np.mean([s.rouge1 for s in scores])),
        "rouge2": float(np.mean([s.rouge2 for s in scores])),
        "attack_s": seconds / updates,
        "all_s": time.perf_counter() - begun,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", default="1,4,8,16")
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    batches = [int(batch) for batch in given.batches.split(",")]
    if given.row:
        made = given.shared, given.folder, batches[0], given.length, given.updates
        print(json.dumps(row(*made, half=given.bf16)))
    else:
        for batch in batches:
            command = [sys.executable, __file__, *sys.argv[1:], "--row", "--batches", str(batch)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print("  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
