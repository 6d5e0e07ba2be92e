"""Folders of Hugging Face's libraries: models, adapters and tokenizers that are none."""

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hostile.case import CANARY, OUTPUT, Case

_WIDTH, _WORDS, _PLACES = 4, 8, 16
CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": _WORDS,
    "n_positions": _PLACES,
    "n_embd": _WIDTH,
    "n_layer": 1,
    "n_head": 1,
    "bos_token_id": None,
    "eos_token_id": None,
}
ADAPTER: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 2,
    "target_modules": ["c_attn"],
    "fan_in_fan_out": True,
    "task_type": "CAUSAL_LM",
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {
        "type": "WordLevel",
        "vocab": {"[UNK]": 0, "no": 1, "yes": 2, "a": 3},
        "unk_token": "[UNK]",
    },
}
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
_EVIL = f"open({CANARY!r}, 'w')"


@cache
def weights() -> bytes:
    """Weights of the model of ``CONFIG``."""
    wide = {"attn.c_attn": 3, "attn.c_proj": 1, "mlp.c_fc": 4}
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (_WORDS, _WIDTH)}
    shapes |= {"wpe.weight": (_PLACES, _WIDTH), "h.0.mlp.c_proj.weight": (4 * _WIDTH, _WIDTH)}
    shapes |= {"h.0.mlp.c_proj.bias": (_WIDTH,)}
    for name, times in wide.items():
        shapes |= {f"h.0.{name}.weight": (_WIDTH, times * _WIDTH)}
        shapes |= {f"h.0.{name}.bias": (times * _WIDTH,)}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"{name}.weight": (_WIDTH,), f"{name}.bias": (_WIDTH,)}
    draws = torch.Generator().manual_seed(0)
    return save(
        {f"transformer.{name}": torch.randn(s, generator=draws) for name, s in shapes.items()}
    )


def lora() -> bytes:
    """Weights of the adapter of ``ADAPTER``."""
    name = "base_model.model.transformer.h.0.attn.c_attn.lora_"
    return save(
        {f"{name}A.weight": torch.ones(2, _WIDTH), f"{name}B.weight": torch.ones(3 * _WIDTH, 2)}
    )


Files = Mapping[str, object]
"""Contents by name: bytes, text, what is written as JSON, or what makes a file at a path."""


def write(folder: Path, files: Files) -> None:
    """Write files into a new folder; None leaves one out."""
    folder.mkdir()
    for name, content in files.items():
        if callable(content):
            content(folder / name)
        elif isinstance(content, bytes):
            (folder / name).write_bytes(content)
        elif content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text)


def model(changed: Files | None = None, **settings: Any) -> Files:
    """Files of a folder with a model and its tokenizer."""
    return {
        "config.json": {**CONFIG, **settings},
        "model.safetensors": weights(),
        **tokenizer(),
        **(changed or {}),
    }


def adapter(changed: Files | None = None, **settings: Any) -> Files:
    """Files of a folder with an adapter."""
    return {
        "adapter_config.json": {**ADAPTER, **settings},
        "adapter_model.safetensors": lora(),
        **(changed or {}),
    }


def tokenizer(changed: Files | None = None, **parts: Any) -> Files:
    """Files of a folder with a tokenizer."""
    return {
        "tokenizer.json": {**TOKENIZER, **parts},
        "tokenizer_config.json": TOKENIZER_CONFIG,
        **(changed or {}),
    }


def replaced(pattern: object, text: str, times: int = 1) -> dict[str, Any]:
    """A normalizer that replaces what a pattern finds, several times over."""
    one = {"type": "Replace", "pattern": pattern, "content": text}
    return {"type": "Sequence", "normalizers": [one] * times}


def split(regex: str) -> dict[str, Any]:
    """Splits texts by an expression."""
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def added(count: int) -> list[dict[str, Any]]:
    """Many added tokens."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": 4 + number, "content": f"<{number}>", "special": True, **flags}
        for number in range(count)
    ]


def template(count: int) -> dict[str, Any]:
    """Puts so many tokens before a text."""
    token = {"SpecialToken": {"id": "a", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"a": {"id": "a", "ids": [3] * count, "tokens": ["a"] * count}}
    return {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [token, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


_DEEP = '{"a":' * 100_000
_LONG = "a" * 200 + "!"

MODELS: dict[str, tuple[Files, str]] = {
    "code of its own": (
        model({"evil.py": _EVIL}, auto_map={"AutoConfig": "evil.Config"}),
        "auto_map asks for code",
    ),
    "a list for settings": (model({"config.json": [1]}), "not a JSON object"),
    "deep settings": (model({"config.json": _DEEP}), "is not JSON"),
    "settings of 20 MiB": (
        model({"config.json": lambda path: os.truncate(made(path), 20 << 20)}),
        "larger than",
    ),
    "a pipe for settings": (model({"config.json": os.mkfifo}), "no regular file"),
    "a pipe for weights": (
        model({"model.safetensors": os.mkfifo}),
        "model.safetensors: is no regular file",
    ),
    "a type that is a path": (model(model_type="../evil"), "transformers cannot read it"),
    "an architecture of escapes": (
        model(architectures=["\x1b[31m::error::"]),
        "names no model with a loss",
    ),
    "ten million classes": (model(num_labels=10**7), "config.json: "),
    "a million classes": (model(num_labels=10**6), "config.json: "),
    "classes that are no text": (model(id2label={"0": [1], "1": {}}), "config.json: "),
    "a vocabulary of 10 ** 12": (model(vocab_size=10**12), "asks for 4,000,000,000,316 weights"),
    "a width below zero": (model(n_embd=-4), "config.json: "),
    "a width of a million": (model(n_embd=1 << 20), "config.json: "),
    "a billion layers": (model(n_layer=10**9), "config.json: "),
    "a million layers": (model(n_layer=10**6), "config.json: "),
    "a number of 400 digits": (model(n_head=10**400), "config.json: "),
    "no heads": (model(n_head=0), "config.json: "),
    "groups within groups": (
        model(
            {"model.safetensors": weights()},
            model_type="albert",
            architectures=["AlbertForMaskedLM"],
            inner_group_num=10**7,
        ),
        "config.json: ",
    ),
    "a million groups": (
        model(
            model_type="albert",
            architectures=["AlbertForMaskedLM"],
            inner_group_num=10**6,
            embedding_size=_WIDTH,
            hidden_size=_WIDTH,
            num_attention_heads=1,
            intermediate_size=_WIDTH,
        ),
        "config.json: ",
    ),
    "a decoder of a million layers": (
        model(
            model_type="bart", architectures=["BartForConditionalGeneration"], decoder_layers=10**6
        ),
        "config.json: ",
    ),
    "quantised weights": (model(quantization_config={"bits": 4}), "quantised"),
    "weights that are a pickle": (
        model({"model.safetensors": None, "pytorch_model.bin": b"\x80\x02cos\nsystem\n."}),
        "pytorch_model.bin",
    ),
    "a shard outside": (
        model(
            {
                "model.safetensors": None,
                "model.safetensors.index.json": {"weight_map": {"w": "../x.safetensors"}},
            }
        ),
        "not a file beside it",
    ),
    "weights of another model": (model({"model.safetensors": lora()}), "does not fit the model"),
}

ADAPTERS: dict[str, tuple[Files, str]] = {
    "deep settings": (adapter({"adapter_config.json": _DEEP}), "is not JSON"),
    "code of its own": (adapter(auto_map={"x": "evil.X"}), "auto_map asks for code"),
    "a module to import": (
        adapter(megatron_config={"a": 1}, megatron_core="evil"),
        "megatron_config: imports a module",
    ),
    "no kind": (adapter(peft_type="NONE"), "adapter_config.json: "),
    "a kind that is no text": (adapter(peft_type=[1]), "adapter_config.json: "),
    "a rank of ten million": (adapter(r=10**7), "adapter_config.json: "),
    "a rank of a million": (adapter(r=10**6), "does not fit the model"),
    "a rank below zero": (adapter(r=-3), "adapter_config.json: "),
    "a rank of a layer": (
        adapter(rank_pattern={"c_attn": 10**8}),
        "this model (it takes more than",
    ),
    "a regular expression": (
        adapter(target_modules="(([a-z_.0-9]+)+)+X"),
        "this model (it takes more than",
    ),
    "a regular expression of what is left out": (
        adapter(exclude_modules="(([a-z_.0-9]+)+)+X"),
        "this model (it takes more than",
    ),
    "a regular expression of layers": (
        adapter(layers_to_transform=[0], layers_pattern="(([a-z_.0-9]+)+)+X"),
        "this model (it takes more than",
    ),
    "a regular expression of ranks": (
        adapter(rank_pattern={"(([a-z_.0-9]+)+)+X": 2}),
        "this model (it takes more than",
    ),
    "a singular value decomposition without end": (
        adapter(init_lora_weights="pissa_niter_1000000000"),
        "this model (it takes more than",
    ),
    "GraLoRA of 131,072": (
        adapter(peft_type="GRALORA", r=1 << 17, gralora_k=2),
        "does not fit the model",
    ),
    "RandLoRA of 131,072": (adapter(peft_type="RANDLORA", r=1 << 17), "does not fit the model"),
    "VeRA of a million": (adapter(peft_type="VERA", r=1 << 20), "adapter_config.json: "),
    "LoHa of a million": (adapter(peft_type="LOHA", r=1 << 20), "adapter_config.json: "),
    "LoKr of no factor": (adapter(peft_type="LOKR", decompose_factor=0), "adapter_config.json: "),
    "BOFT of no blocks": (
        adapter(peft_type="BOFT", boft_block_size=0, boft_block_num=0),
        "adapter_config.json: ",
    ),
    "Fourier of a billion": (
        adapter(peft_type="FOURIERFT", n_frequency=10**9),
        "adapter_config.json: ",
    ),
    "a prompt": (
        adapter(peft_type="PROMPT_TUNING", num_virtual_tokens=10**6),
        "adapter_config.json: ",
    ),
    "a name without end": (adapter(target_modules=["c_attn" * 10**6]), "adapter_config.json: "),
    "another model": (
        adapter(base_model_name_or_path="base", target_modules=["q_proj"]),
        "adapter_config.json: ",
    ),
    "weights of NaN": (
        adapter({"adapter_model.safetensors": lora().replace(b"\0\0\x80\x3f", b"\0\0\xc0\x7f")}),
        "adapter_model.safetensors",
    ),
    "weights that are a pickle": (
        adapter(
            {"adapter_model.safetensors": None, "adapter_model.bin": b"\x80\x02cos\nsystem\n."}
        ),
        "adapter_model.bin",
    ),
    "no weights": (adapter({"adapter_model.safetensors": None}), "holds no adapter_model"),
    "weights of another width": (adapter(r=3), "does not fit the model"),
}

TOKENIZERS: dict[str, tuple[Files, str]] = {
    "code of its own": (
        tokenizer({"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.T", None]}}}),
        "auto_map asks for code",
    ),
    "an expression without end": (
        tokenizer(pre_tokenizer=split(r"(a+)+(b+)+(?!.*c)$")),
        "its tokenizer cannot be used",
    ),
    "an expression that is none": (tokenizer(pre_tokenizer=split("(((")), "cannot be used"),
    "an expression that looks back": (
        tokenizer(pre_tokenizer=split(r"(?=(a+))*\1$")),
        "cannot be used",
    ),
    "texts that grow": (
        tokenizer(normalizer=replaced({"String": "a"}, "a" * 50, 6)),
        "it takes more than",
    ),
    "texts that grow by an expression": (
        tokenizer(normalizer=replaced({"Regex": "."}, "aa" * 50, 6)),
        "it takes more than",
    ),
    "deep normalizers": (tokenizer({"tokenizer.json": _DEEP}), "cannot be used"),
    "a decoder that is none": (tokenizer(decoder={"type": "Evil"}), "cannot be used"),
    "200,000 added tokens": (tokenizer(added_tokens=added(200_000)), "it takes more than"),
    "a template of ten million": (tokenizer(post_processor=template(10**6)), "cannot be used"),
    "merges that are none": (
        tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}),
        "cannot be used",
    ),
    "a vocabulary of numbers below zero": (
        tokenizer(model={"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}),
        "cannot be used",
    ),
    "a token beyond the model's": (
        tokenizer(model={"type": "WordLevel", "vocab": {"a": 2**40}, "unk_token": "a"}),
        "cannot be used",
    ),
    "an unknown word without a token": (
        tokenizer(model={"type": "WordLevel", "vocab": {"no": 0}, "unk_token": "x"}),
        "cannot be used",
    ),
    "scores that are not numbers": (
        tokenizer(model={"type": "Unigram", "vocab": [["a", "x"]], "unk_id": 0}),
        "cannot be used",
    ),
    "an unknown piece outside": (
        tokenizer(model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}),
        "cannot be used",
    ),
    "characters mapped by noise": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "/w=="}),
        "cannot be used",
    ),
    "SentencePiece of noise": (
        {"tokenizer.model": bytes(range(256)) * 99, "tokenizer_config.json": TOKENIZER_CONFIG},
        "cannot be used",
    ),
    "SentencePiece without end": (
        {"spiece.model": b"\x0a\xff\xff\xff\xff\x0f" * 9, "config.json": {"model_type": "t5"}},
        "cannot be used",
    ),
    "a device": (
        {"tokenizer.json": lambda path: path.symlink_to("/dev/zero")},
        "holds no tokenizer",
    ),
    "no tokenizer": ({"tokenizer_config.json": TOKENIZER_CONFIG}, "holds no tokenizer"),
}


def made(path: Path) -> Path:
    """The path of a new empty file."""
    path.touch()
    return path


OF_WEIGHTS = frozenset(
    {
        *("does not fit the model", "pytorch_model.bin", "not a file beside it"),
        *("model.safetensors: is no regular file", "adapter_model.safetensors"),
        *("adapter_config.json: ", "this model (it takes more than", "adapter_model.bin"),
    }
)
"""Words of the refusals that end with the status of a broken file, and not of wrong usage."""
TEXTS = "-d 'text:texts.csv?text=text"


def _cases(kind: str, table: Mapping[str, tuple[Files, str]], spec: str) -> list[Case]:
    def made(files: Files) -> Callable[[Path], None]:
        def content(path: Path) -> None:
            write(path, files)
            write(path.with_name("base"), model())
            path.with_name("texts.csv").write_text(f"text,y\n{_LONG},no\nyes a,yes\n" * 4)

        return content

    return [
        Case(
            f"{kind}, {name}",
            "hostile",
            made(files),
            f"forward -m {spec} {OUTPUT}",
            words,
            3 if words in OF_WEIGHTS else 2,
            seconds=10,
            memory=1 << 30,
        )
        for name, (files, words) in table.items()
    ]


FOLDER_CASES = [
    *_cases("model", MODELS, f"hf:hostile {TEXTS}'"),
    *_cases("adapter", ADAPTERS, f"'hf:base?adapter=hostile' {TEXTS}'"),
    *_cases("tokenizer", TOKENIZERS, f"hf:base {TEXTS}&tokenizer=hostile'"),
]
