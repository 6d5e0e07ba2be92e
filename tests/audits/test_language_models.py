"""Audits of transformers' models, padded texts and adapters: each layer has its numbers."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _pytest.mark.structures import ParameterSet
from language_models import Shelf
from torch import Tensor

from gradaudit.audits import audits
from gradaudit.config import SubjectSettings, settle
from gradaudit.data.records import IGNORED
from gradaudit.report import Report
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run
from gradaudit.subject import Subject

LENGTH = 5
GPT2, BERT = "GPT2LMHeadModel", "BertForSequenceClassification"
MODELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gpt2": (GPT2, ()),
    "bert": (BERT, ()),
    "masked": ("BertForMaskedLM", ()),
    "gpt2-lora": (GPT2, ("c_attn", "c_fc")),
    "bert-lora": (BERT, ("query", "dense")),
}


def slow(*values: str) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.slow)


CHEAP: Mapping[str, Mapping[str, Any]] = {
    "sensitivity": {"probes": 8},
    "subspace": {"permutations": 19},
    "forward": {},
    "copa-metric": {"records": 1},
    "attack labels": {"batches": 1, "method": ("idlg",)},
    "attack reconstruct": {"batches": 1},
    "attack tracing": {},
    "attack attribute": {},
    "dp-audit": {"mechanism": "dp:clip=1,sigma=1"},
    "tradeoff": {"defense": ("prune:0.5",), "rounds": 1, "clients": 2},
}
DEAR: Mapping[str, Mapping[str, Any]] = {
    "vinfo": {"repeats": 2, "batch_size": 2, "family": ("logistic",)},
    "attack property": {"shadow": 20, "batch_size": 5, "trials": 20},
    "attack distribution": {"shadow": 20, "batch_size": 5, "trials": 20},
}
WHY_NOT = {
    "copa-metric": "the model has no convolution modules",
    "attack attribute": "is no column of the inputs",
    "attack reconstruct": "are of tokens",
    "attack tracing": "are of tokens",
    "dp-audit": "is not a column of the inputs",
    "tradeoff": "tokens have none to move along",
}


def opened(shelf: Shelf, name: str, records: int, *layers: str) -> Subject:
    model, adapted = MODELS[name]
    adapter = f"?adapter={shelf.adapter(model, *adapted)}" if adapted else ""
    label = "&label=mood" if model == BERT else ""
    settings = SubjectSettings(
        model=f"hf:{shelf.model(model)}{adapter}",
        data=f"text:{shelf.texts(records)}?text=text&length={LENGTH}{label}",
        attribute=("sex",),
        samples=records,
        layer=layers,
    )
    return open_subject(settings)


def audited(subject: Subject, wanted: Mapping[str, Mapping[str, Any]]) -> Report:
    known = audits()
    chosen = [known[name](settle(known[name].Options, {}, dict(o))) for name, o in wanted.items()]
    report = run(subject, chosen)
    assert report.provenance["broken"] == {}
    assert not [row for row in report.measurements if row.status == "failed"]
    return report


@pytest.mark.parametrize("name", ["bert-lora", slow("gpt2"), slow("masked")])
def test_every_layer_has_a_number_or_the_audit_a_reason(name: str, shelf: Shelf) -> None:
    subject = opened(shelf, name, 12)
    report = audited(subject, {n: how for n, how in CHEAP.items() if n not in WHY_NOT})
    for layer in subject.layers:
        for metric in ("sensitivity.input_f", "sensitivity.label_f", "forward.fraction"):
            assert report.select(metric, layer=layer.name, variant={})[0].status == "measured"
        (row,) = report.select("subspace.grassmann", layer=layer.name, variant={})
        assert row.status == "measured" or "dimensions" in (row.reason or "")
    for audit, reason in WHY_NOT.items():
        own = audited(subject, {audit: CHEAP[audit]}).measurements
        assert all(row.status == "skipped" and reason in (row.reason or "") for row in own), audit


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2-lora"])
def test_adversaries_see_what_is_shared(name: str, shelf: Shelf) -> None:
    subject = opened(shelf, name, 90, "*wte", "*word_embeddings", "*.0.*c_attn*", "*.0.*query")
    report = audited(subject, DEAR)
    for layer in subject.layers:
        for row in report.select("vinfo.auroc", layer=layer.name, variant={}):
            assert row.status == "measured", row.reason
    measured = {row.variant.get("attack") for row in report.measurements if row.number is not None}
    assert {"property", "distribution"} <= measured


def jacobian_norm(subject: Subject, layer: str, record: int) -> float:
    """‖∂G/∂e‖ with e what the library takes in the place of embedded tokens."""
    model = copy.deepcopy(subject.target.model).double().eval()
    ids, present = subject.records.inputs[record].split(LENGTH)
    labels = subject.records.labels[record : record + 1].flatten()
    embedded = model.get_input_embeddings()(ids[None]).detach()  # type: ignore[operator]
    weight = model.get_parameter(layer)

    def gradient(e: Tensor) -> Tensor:
        logits = model(inputs_embeds=e, attention_mask=present[None]).logits.flatten(0, -2)
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORED)
        return torch.autograd.grad(loss, weight, create_graph=True)[0]

    jacobian: Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        gradient, embedded, vectorize=True
    )
    return float(jacobian.norm())


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("gpt2", "transformer.ln_f"),
        slow("gpt2", "transformer.h.0.attn.c_attn"),
        slow("bert", "bert.encoder.layer.1.attention.self.key"),
        ("gpt2-lora", "transformer.h.1.mlp.c_fc.lora_B.default"),
    ],
)
def test_sensitivity_is_at_the_embeddings_output(name: str, layer: str, shelf: Shelf) -> None:
    subject = opened(shelf, name, 6, layer)
    report = audited(replace(subject, samples=3), {"sensitivity": {"probes": 0}})
    (row,) = report.select("sensitivity.input_f", layer=layer, variant={})
    looked_at = replace(subject, records=subject.sample(6, most=3))
    expected = [jacobian_norm(looked_at, f"{layer}.weight", k) for k in range(3)]
    assert row.value == pytest.approx(sum(expected) / 3, rel=1e-8)
