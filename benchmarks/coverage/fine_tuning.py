"""What fine-tuning gives away of texts: adapters of every rank, frozen bases in four bits, steps.

    python -m benchmarks.coverage.fine_tuning [--updates 20] [--only '']

A GPT-2 of 192 dimensions, two blocks and 3,000 tokens is trained for 60 steps on texts of Zipf's
law, and fine-tuned at its attention by what each line names. Updates are of four texts of 16
tokens; the base is frozen, so that its own gradients are shared where the whole model is trained
alone. Printed are the share of tokens that are named, whole texts, what adapters' ranks predict,
and the AUROC of texts against decoys at each layer that has one, with its 95 % interval.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, drawn, entropy, fit, heading, line
from gradaudit.audits.attack_text import AttackText
from gradaudit.core.huggingface import library
from gradaudit.data.common.tokenizing import parts_of
from gradaudit.data.records import IGNORED, Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Mode, Target, layers_of
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.subject import Subject

VOCABULARY, WIDTH, LENGTH, TEXTS, STEPS = 3000, 192, 16, 4, 60
DROPPED = 0.1
"""Share of embeddings, attention, residuals and adapters' inputs that dropout takes in training."""
ADAMW = {"local_steps": 20, "optimizer": "adamw", "rate": 1e-4, "warmup": 5}
LEVELS, BLOCK = 16, 64
"""Of a weight in four bits, over blocks of so many weights with a scale of their own."""


def texts(count: int, seed: int) -> Tensor:
    """(count, LENGTH) tokens of Zipf's law."""
    draws = torch.Generator().manual_seed(seed)
    frequent = 1 / torch.arange(1, VOCABULARY + 1).double()
    ids = torch.multinomial(frequent, count * LENGTH, replacement=True, generator=draws)
    return ids.reshape(count, LENGTH)


def following(ids: Tensor) -> Tensor:
    """The next token of each, for the loss."""
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = IGNORED
    return labels


def base() -> nn.Module:
    """The trained model that is fine-tuned."""
    transformers = library("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32,
        attn_pdrop=DROPPED, resid_pdrop=DROPPED, embd_pdrop=DROPPED, use_cache=False,
        attn_implementation="eager", bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    corpus, adam = texts(400, 99), torch.optim.AdamW(model.parameters(), 1e-3)
    return fit(model.eval(), corpus, following(corpus), adam, drawn(400, 16, STEPS), entropy)


def whole(model: nn.Module) -> nn.Module:
    return model


def lora(rank: int, start: bool = False) -> Callable[[nn.Module], nn.Module]:
    """Adapters of a rank, their second matrix zero at the start of fine-tuning."""

    def adapted(model: nn.Module) -> nn.Module:
        peft = library("peft")
        torch.manual_seed(1)
        config = peft.LoraConfig(
            r=rank, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=start,
            lora_dropout=DROPPED,
        )  # fmt: skip
        made: nn.Module = peft.inject_adapter_in_model(config, model)
        return made

    return adapted


def ia3(model: nn.Module) -> nn.Module:
    """One factor for every output of attention's input map and input of the network's second."""
    peft = library("peft")
    config = peft.IA3Config(
        target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"],
        fan_in_fan_out=True, init_ia3_weights=False,
    )  # fmt: skip
    made: nn.Module = peft.inject_adapter_in_model(config, model)
    return made


class Prefixed(nn.Module):
    """A frozen model with trained vectors in front of what attention looks at."""

    def __init__(self, model: nn.Module, length: int = 8) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        torch.manual_seed(2)
        self.prefix = nn.Parameter(torch.randn(length, WIDTH) / 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        table = self.model.get_input_embeddings()  # type: ignore[operator]
        prefix = self.prefix.expand(len(input_ids), -1, -1)
        seen = torch.cat([prefix, table(input_ids)], dim=1)
        mask = torch.cat([attention_mask.new_ones(prefix.shape[:2]), attention_mask], dim=1)
        logits: Tensor = self.model(inputs_embeds=seen, attention_mask=mask).logits
        return logits[:, prefix.shape[1] :]


def in_four_bits(model: nn.Module) -> nn.Module:
    """The model with the attention's and the networks' weights rounded to four bits."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".h." in name and weight.dim() == 2:
                blocks = weight.reshape(-1, BLOCK)
                scale = blocks.abs().amax(dim=1, keepdim=True) / (LEVELS / 2 - 1)
                weight.copy_(((blocks / scale).round() * scale).reshape_as(weight))
    return model


class Case(NamedTuple):
    """A way to fine-tune: what is trained of a model, and how an update is made."""

    name: str
    adapt: Callable[[nn.Module], nn.Module]
    options: Mapping[str, Any] = {}
    dtype: torch.dtype = torch.float32
    mode: Mode = "eval"


def cases() -> Iterator[Case]:
    yield Case("whole model", whole)
    for rank in (4, 8, 16, 32, 64, 96):
        yield Case(f"LoRA, rank {rank}", lora(rank))
    yield Case("LoRA, rank 16, at its start", lora(16, start=True))
    yield Case("LoRA, rank 16, base in 4 bits", lambda model: lora(16)(in_four_bits(model)))
    for rank in (16, 64):
        for steps in (5, 50):
            how = {"local_steps": steps, "optimizer": "adam", "rate": 1e-4}
            yield Case(f"LoRA, rank {rank}, {steps} steps of Adam", lora(rank), how)
        yield Case(f"LoRA, rank {rank}, bfloat16", lora(rank), dtype=torch.bfloat16)
    for name, of in (
        ("whole model", whole),
        ("LoRA, rank 16", lora(16)),
        ("LoRA, rank 64", lora(64)),
    ):
        yield Case(f"{name}, {DROPPED} dropped", of, mode="train")
        yield Case(f"{name}, 4 minibatches accumulated", of, {"local_batch": 1, "accumulate": 4})
        yield Case(f"{name}, 20 steps of AdamW, 5 of warm-up", of, ADAMW)
        together = {**ADAMW, "local_batch": 2, "accumulate": 2}
        yield Case(f"{name}, the same, of 2 minibatches each", of, together)
        yield Case(f"{name}, the same, {DROPPED} dropped", of, together, mode="train")
    yield Case("IA³", ia3)
    yield Case("prefix of 8 vectors", Prefixed)


def records(count: int, seed: int) -> Records:
    """Texts with their next tokens as labels."""
    ids = texts(count, seed)
    inputs = torch.cat([ids, torch.ones_like(ids)], dim=1)
    return Records(inputs, following(ids), parts=parts_of(LENGTH))


def measured(case: Case, model: nn.Module, updates: int) -> list[Measurement]:
    """The rows of the audit of updates made so."""
    tuned = case.adapt(model).to(case.dtype)
    target = Target(tuned, CrossEntropy(), case.mode, parts=parts_of(LENGTH))
    subject = Subject((target,), records(TEXTS * (updates + 40), 0), layers_of(tuned))
    options = {"batch_size": TEXTS, "batches": updates, **case.options}
    return list(AttackText(AttackText.Options.model_validate(options)).run(subject, Silent()))


def told(row: Measurement | None) -> str:
    """A row's value with its interval, or why there is none."""
    if row is None:
        return "–"
    if row.value is None:
        return row.reason or row.status
    ends = "" if row.interval is None else f" [{row.interval[0]:.2f}, {row.interval[1]:.2f}]"
    return f"{row.value:.2f}{ends}"


def main() -> None:
    """Print a line a way to fine-tune."""
    asked, trained = arguments(__doc__), base()
    names = ("tokens_recovered", "sequences_recovered", "lora_predicted")
    heading("what is trained", "tokens named", "whole texts", "predicted", "AUROC by layer")
    for case in cases():
        if not any(word in case.name for word in asked.only.split(";")):
            continue
        rows = measured(case, copy.deepcopy(trained), asked.updates)
        whole = {row.metric: row for row in rows if row.layer is None and not row.variant}
        layers = [row for row in rows if row.metric == "text_auroc" and row.value is not None]
        shown = "; ".join(f"{row.layer} {told(row)}" for row in layers)
        line(case.name, *(told(whole.get(name)) for name in names), shown)


if __name__ == "__main__":
    main()
