"""Per-sample gradients against one batched backward pass, vmap of grad and a loop, in one run.

    python -m benchmarks.speed.per_sample_speed [--threads 1] [--rounds 5] [--nets lenet,gpt2]
        [--all]

For each model: milliseconds a record of an ordinary forward and batched backward pass, and how many
times that the gradients of single records (weights and biases) take, as ``per_sample_gradients``
gives them, by vmap of grad in the same batches, and by a loop; and what setting them up costs once,
in passes over the records. Methods alternate; medians of processor seconds.
``--all`` takes every model; language models need ``gradaudit[transformers]``.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, heading, in_turn, line, timed
from benchmarks.nets import of_config
from gradaudit.core.huggingface import library
from gradaudit.data.common.tokenizing import Tokens, packed_tokens, parts_of
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.outputs import unwrap
from gradaudit.models.target import Target, layers_of

LENGTH, TEXTS, VOCABULARY = 32, 48, 2000
GPT2 = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": LENGTH}
BERT = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": LENGTH,
}


class Net(NamedTuple):
    """How a model is made, the shape of a record, and how many records."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    records: int


def of_spec(spec: str, shape: tuple[int, ...], records: int) -> Net:
    return Net(lambda: load_model(spec), shape, records)


def of_text(architecture: str, sizes: dict[str, Any], *, adapted: bool = False) -> Net:
    """A language model, with low-rank adapters or without."""

    def make() -> nn.Module:
        kind = "bert" if architecture.startswith("Bert") else "gpt2"
        model = of_config(kind, architecture, vocab_size=VOCABULARY, **sizes).eval()
        if adapted:
            peft = library("peft")
            lora = peft.LoraConfig(r=8, target_modules=["c_attn", "c_fc"], init_lora_weights=False)
            model = peft.inject_adapter_in_model(lora, model)
        return model

    return Net(make, (LENGTH,), TEXTS)


NETS: dict[str, Net] = {
    "lenet": of_spec("zoo:lenet", (3, 32, 32), 256),
    "lenet, 28": of_spec("zoo:lenet?shape=1,28,28", (1, 28, 28), 256),
    "deep-leakage": of_spec("zoo:deep-leakage", (3, 32, 32), 256),
    "cnn3": of_spec("zoo:cnn3", (3, 32, 32), 256),
    "alexnet-mo21": of_spec("zoo:alexnet-mo21", (3, 32, 32), 128),
    "vgg9": of_spec("zoo:vgg9", (3, 32, 32), 64),
    "vgg11net": of_spec("zoo:vgg11net", (3, 32, 32), 64),
    "alexnet-32": of_spec("zoo:alexnet-32", (3, 32, 32), 64),
    "vgg16-gn": of_spec("zoo:vgg16-gn", (3, 32, 32), 16),
    "resnet18": of_spec("torchvision:resnet18", (3, 64, 64), 16),
    "gpt2": of_text("GPT2LMHeadModel", GPT2),
    "gpt2, head not tied": of_text("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "gpt2, LoRA of rank 8": of_text("GPT2LMHeadModel", GPT2, adapted=True),
    "bert": of_text("BertForMaskedLM", BERT),
    "bert, classifier": of_text("BertForSequenceClassification", BERT),
}


def texts(classes: bool) -> tuple[Tensor, Tensor]:
    """Tokens of texts of several lengths with their masks, and labels."""
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (TEXTS, LENGTH), generator=draws)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (TEXTS, 1), generator=draws)
    present = torch.arange(LENGTH) < lengths
    tokens = Tokens(ids.numpy(), present.numpy(), torch.zeros_like(present).numpy())
    labels = torch.arange(TEXTS) % 2 if classes else torch.where(present, ids, -100)
    return torch.from_numpy(packed_tokens(tokens)), labels


def pictures(net: Net) -> tuple[Tensor, Tensor]:
    """Random records and labels."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.rand(net.records, *net.shape, generator=draws)
    return inputs, torch.randint(10, (net.records,), generator=draws)


def measure(name: str, rounds: int) -> None:
    net, of_texts = NETS[name], NETS[name].shape == (LENGTH,)
    model = net.make().eval()
    inputs, labels = texts("classifier" in name) if of_texts else pictures(net)
    target = Target(model, CrossEntropy(), parts=parts_of(LENGTH) if of_texts else ())
    layers = layers_of(model, with_bias=True)
    trained = [p for p in model.parameters() if p.requires_grad]

    def backward(some: Tensor, wanted: Tensor) -> tuple[Tensor, ...]:
        given = {"input_ids": some[:, :LENGTH], "attention_mask": some[:, LENGTH:]}
        outputs = unwrap(model(**given)) if of_texts else model(some)
        return torch.autograd.grad(target.loss.of_batch(outputs, wanted), trained)

    gradients = per_sample_gradients(target, inputs, labels, layers)  # torch.func's first use
    setup = timed(lambda: per_sample_gradients(target, inputs, labels, layers))
    view = FunctionalModel.of(target, dtype=torch.float32)
    vmapped = torch.func.vmap(
        torch.func.grad(view.record_loss), in_dims=(None, 0, 0), chunk_size=gradients.batch
    )
    shared = {name: view.parameters[name] for layer in layers for name in layer.parameter_names}
    pairs = list(zip(inputs[:, None], labels[:, None], strict=True))
    seconds = in_turn(
        {
            "backward": lambda: backward(inputs, labels),
            "ours": lambda: [None for _ in gradients],
            "vmap": lambda: vmapped(shared, inputs, labels),
            "loop": lambda: [backward(*pair) for pair in pairs],
        },
        rounds,
    )
    found = {way: statistics.median(each) for way, each in seconds.items()}
    base = found.pop("backward")
    ratios = (f"{each / base:.2f}" for each in (*found.values(), setup))
    line(name, gradients.way, gradients.batch, f"{1000 * base / len(inputs):.3f}", *ratios)


def main() -> None:
    given = arguments(__doc__)
    heading("model", "way", "batch", "backward, ms", "ours", "vmap", "loop", "setup")
    for name in NETS if given.all else given.nets.split(","):
        measure(name, given.rounds)


if __name__ == "__main__":
    main()
