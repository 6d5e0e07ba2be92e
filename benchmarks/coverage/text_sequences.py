"""How many texts come back word for word, by batch size, model, and precision of the gradient.

    python -m benchmarks.coverage.text_sequences FOLDER [--batches 1,4,8,16] [--length 32]
        [--updates 1] [--bf16] [--threads 2] [--row]

FOLDER is one that ``text_models.py`` made. For each batch size, in a process of its own: of so many
updates of real reviews (their first 32 tokens) the share of texts that are named exactly, ROUGE-1
and ROUGE-2, seconds of the attack alone and of everything, and the most memory.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import arguments, data_file, peak
from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.text_scores import scores_of
from gradaudit.audits.attack_text.text_threat import TextThreat, texts_of
from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.sharing.protocol import SharingProtocol


def opened(folder: Path, length: int) -> tuple[TextThreat, Records]:
    """The model and the reviews' beginnings, as the command line opens them."""
    classifier = "SequenceClassification" in (folder / "config.json").read_text()
    label = "&label=sentiment" if classifier else ""
    data = f"text:{data_file('imdb_16k.csv.gz')}?text=text&length={length}{label}"
    subject = open_subject(SubjectSettings(model=f"hf:{folder}", data=data))
    return TextThreat(subject.target, SharingProtocol(), subject.layers), subject.records


def row(folder: Path, batch: int, length: int, updates: int, *, half: bool) -> dict[str, float]:
    """One batch size."""
    begun = time.perf_counter()
    threat, records = opened(folder, length)
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
        "mib": 1024 * peak(),
    }


def main() -> None:
    given = arguments(__doc__)
    if given.row:
        made = given.folder, int(given.batches), given.length, given.updates
        print(json.dumps(row(*made, half=given.bf16)))
        return
    for batch in given.batches.split(","):
        command = [sys.executable, "-m", "benchmarks.coverage.text_sequences", *sys.argv[1:]]
        command += ["--row", "--batches", batch]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print("  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
