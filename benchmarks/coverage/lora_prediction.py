"""What is predicted of a GPT-2's low-rank adapters beside what the attack on texts names.

    python -m benchmarks.coverage.lora_prediction

A GPT-2 of 192 dimensions and 3,000 tokens, trained for 60 steps on texts of Zipf's law, has
adapters of rank 4 at its attention. For six batches of four texts of 16 tokens: the share of tokens
that the attack names, the prediction, and the prediction if every token were as likely.
"""

import statistics

import torch
from torch import Tensor, nn

from gradaudit.audits.attack_text.linear_maps import Structure, adapters, predicted
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.text_scores import scores_of
from gradaudit.audits.attack_text.text_threat import TextThreat
from gradaudit.core.huggingface import library
from gradaudit.data.common.tokenizing import parts_of
from gradaudit.data.records import IGNORED, Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol

VOCABULARY, WIDTH, LENGTH, TEXTS, RANK, STEPS, BATCHES = 3000, 192, 16, 4, 4, 60, 6


def texts(count: int, seed: int) -> Tensor:
    """(count, LENGTH) tokens of Zipf's law."""
    draws = torch.Generator().manual_seed(seed)
    frequent = 1 / torch.arange(1, VOCABULARY + 1).double()
    ids = torch.multinomial(frequent, count * LENGTH, replacement=True, generator=draws)
    return ids.reshape(count, LENGTH)


def adapted() -> nn.Module:
    """The model with its adapters."""
    transformers, peft = library("transformers"), library("peft")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32,
        attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, use_cache=False, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    optimizer, corpus = torch.optim.AdamW(model.parameters(), 1e-3), texts(400, 99)
    for _ in range(STEPS):
        batch = corpus[torch.randint(len(corpus), (16,))]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    lora = peft.LoraConfig(
        r=RANK, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False
    )
    made: nn.Module = peft.inject_adapter_in_model(lora, model.eval())
    return made


def records(ids: Tensor) -> Records:
    """Texts with their next tokens as labels."""
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = IGNORED
    return Records(torch.cat([ids, torch.ones_like(ids)], dim=1), labels, parts=parts_of(LENGTH))


def main() -> None:
    """Print a line a batch, and the means."""
    model = adapted()
    target = Target(model, CrossEntropy(), parts=parts_of(LENGTH))
    threat = TextThreat(target, SharingProtocol(), layers_of(model))
    pool, every = texts(100, 5000).flatten(), torch.arange(VOCABULARY)
    rows = []
    for seed in range(BATCHES):
        ids = texts(TEXTS, seed)
        view = threat.view(records(ids), torch.Generator().manual_seed(seed))
        structure = Structure.of(view)
        place = adapters(structure)
        assert place is not None
        answer = recover(view, structure, seed, Silent())
        named, there = scores_of(answer.texts, answer.tokens, ids.tolist()).tokens
        guesses = [predicted(view, structure, place, some, seed) for some in (pool, every)]
        rows.append([named / there, *guesses])
        print("measured {:.3f}, predicted {:.3f}, of even tokens {:.3f}".format(*rows[-1]))
    print("means", *(f"{statistics.fmean(column):.3f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
