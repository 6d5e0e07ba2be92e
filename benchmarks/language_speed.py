"""Per-sample gradients of language models: ours against vmap of grad and a loop, in one run.

For each model it prints processor seconds of an ordinary batched backward pass over the records,
and how many times that the gradients of single records take: by ``per_sample_gradients`` as factors
and formed, by vmap of grad, by a loop; and the largest relative difference between ours and the
loop's in float64.
Methods alternate; medians are printed.

Run as ``python benchmarks/language_speed.py``; it needs ``gradaudit[transformers]``.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.data.common.reading import packed_tokens, parts_of
from gradaudit.data.common.tokens import Tokens
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.gradients.trace import Gradients
from gradaudit.huggingface import library
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.outputs import unwrap
from gradaudit.models.target import Target, layers_of

LENGTH, RECORDS, VOCABULARY = 32, 48, 2000
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": LENGTH}
BERT = {
    "model_type": "bert",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": LENGTH,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2, head not tied": ("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "gpt2, LoRA of rank 8": ("GPT2LMHeadModel", GPT2),
    "bert": ("BertForMaskedLM", BERT),
    "bert, classifier": ("BertForSequenceClassification", BERT),
}


def built(name: str) -> nn.Module:
    architecture, settings = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        config = {**settings, "architectures": [architecture], "vocab_size": VOCABULARY}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        model = load_model(f"hf:{folder}").eval()
    if "LoRA" in name:
        peft = library("peft")
        adapter = peft.LoraConfig(r=8, target_modules=["c_attn", "c_fc"], init_lora_weights=False)
        model = peft.inject_adapter_in_model(adapter, model)
    return model


def records(classes: bool) -> tuple[Tensor, Tensor]:
    """Texts of several lengths."""
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (RECORDS, LENGTH), generator=draws)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (RECORDS, 1), generator=draws)
    present = torch.arange(LENGTH) < lengths
    tokens = Tokens(ids.numpy(), present.numpy(), torch.zeros_like(present).numpy())
    labels = torch.arange(RECORDS) % 2 if classes else torch.where(present, ids, -100)
    return torch.from_numpy(packed_tokens(tokens)), labels


def seconds(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor time of each function over alternating rounds, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def runs(gradients: PerSampleGradients) -> list[Gradients]:
    """The gradients as they are used where their factors are enough."""
    starts = range(0, len(gradients), gradients.batch)
    return [gradients.run(k, min(k + gradients.batch, len(gradients))) for k in starts]


def measure(name: str, rounds: int) -> str:
    model = built(name)
    inputs, labels = records("classifier" in name)
    target = Target(model, CrossEntropy(), parts=parts_of(LENGTH))
    layers = layers_of(model)
    view = FunctionalModel.of(target, dtype=torch.float32)
    shared = {name: view.parameters[name] for layer in layers for name in layer.parameter_names}
    gradients = per_sample_gradients(target, inputs, labels, layers)
    vmapped = torch.func.vmap(
        torch.func.grad(view.record_loss), in_dims=(None, 0, 0), chunk_size=gradients.batch
    )
    trained = [p for p in model.parameters() if p.requires_grad]

    def backward(some: Tensor, told: Tensor) -> tuple[Tensor, ...]:
        ids, mask = some[:, :LENGTH], some[:, LENGTH:]
        logits = unwrap(model(input_ids=ids, attention_mask=mask))
        return torch.autograd.grad(target.loss.of_batch(logits, told), trained)

    pairs = list(zip(inputs[:, None], labels[:, None], strict=True))
    found = seconds(
        {
            "backward": lambda: backward(inputs, labels),
            "ours": lambda: [None for _ in gradients],
            "factors": lambda: runs(gradients),
            "vmap": lambda: vmapped(shared, inputs, labels),
            "loop": lambda: [backward(*pair) for pair in pairs],
        },
        rounds,
    )
    whole = [layer.name for layer in layers if gradients.ways[layer.name] != "factors"]
    ways = ("factors", "ours", "vmap", "loop")
    ratios = " | ".join(f"{found[way] / found['backward']:.2f}" for way in ways)
    off = difference(target, inputs, labels, backward)
    return f"| {name} | {found['backward']:.3f} | {ratios} | {off:.0e} | {', '.join(whole)} |"


def difference(
    target: Target, inputs: Tensor, labels: Tensor, backward: Callable[..., tuple[Tensor, ...]]
) -> float:
    """Of two records' gradients in float64, over the largest element of each parameter's."""
    target.model.double()
    layers = layers_of(target.model, with_bias=True)
    gradients = per_sample_gradients(target, inputs[:2], labels[:2], layers, dtype=torch.float64)
    found = {name: torch.cat([chunk[name] for chunk in gradients]) for name in gradients.ways}
    names = [name for name, p in target.model.named_parameters() if p.requires_grad]
    worst = 0.0
    for k in range(2):
        one = dict(zip(names, backward(inputs[k : k + 1], labels[k : k + 1]), strict=True))
        for layer in layers:
            expected = torch.cat([one[each].flatten() for each in layer.parameter_names])
            off = (found[layer.name][k] - expected).abs().max() / expected.abs().max()
            worst = max(worst, float(off.nan_to_num()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | backward, s | factors | ours | vmap | loop | off by | not by factors |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.models:
        print(measure(name, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
