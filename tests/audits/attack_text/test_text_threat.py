"""What an attacker gets of a batch: tokens, lengths, the task, and how the model is called."""

import pytest
import torch
from audits.attack_text.sentences import LENGTH, WORDS, subject, texts, transformer, view
from torch import Tensor, nn

from gradaudit.audits.attack_text.text_threat import TextThreat, task_of, texts_of
from gradaudit.audits.attack_text.view import packed_inputs
from gradaudit.data.common.packing import InputPart
from gradaudit.data.records import IGNORED, Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol

IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])


def part(name: str) -> InputPart:
    return InputPart(name, (4,), "tokens")


def masked(*names: str, mask: torch.Tensor = MASK) -> Records:
    blocks = {"input_ids": IDS, "attention_mask": mask, "token_type_ids": torch.zeros_like(IDS)}
    inputs = torch.cat([blocks[name] for name in names], dim=1)
    return Records(inputs, torch.tensor([0, 1]), ("a", "b"), parts=tuple(map(part, names)))


@pytest.mark.parametrize(
    "names", [("input_ids", "attention_mask"), ("attention_mask", "input_ids")]
)
def test_masks_tell_lengths(names: tuple[str, ...]) -> None:
    found = texts_of(masked(*names))
    assert torch.equal(found.ids, IDS)
    assert found.lengths.tolist() == [3, 2]
    assert texts_of(masked("input_ids")).lengths.tolist() == [4, 4]


def test_a_text_fills_one_position_at_least() -> None:
    assert texts_of(masked("input_ids", "attention_mask", mask=0 * MASK)).lengths.tolist() == [1, 1]


def test_what_are_no_texts_is_refused() -> None:
    with pytest.raises(NotApplicable, match="no tokens"):
        texts_of(Records(IDS.float(), torch.zeros(2).long()))
    with pytest.raises(NotApplicable, match="input_ids"):
        texts_of(masked("attention_mask", "token_type_ids"))
    with pytest.raises(NotApplicable, match="behind their last token"):
        texts_of(masked("input_ids", "attention_mask", mask=MASK.flip(1)))


def test_labels_tell_the_task() -> None:
    assert task_of(texts(3)) == "next-token"
    assert task_of(texts(3, causal=False)) == "class"
    ids = texts(3).inputs
    labels = torch.full_like(ids, IGNORED)
    labels[:, 2] = (ids[:, 2] + 1) % WORDS
    assert task_of(Records(ids, labels)) == "masked"


def test_texts_are_packed_as_the_data_hold_them() -> None:
    records = masked("token_type_ids", "input_ids", "attention_mask")
    packed = packed_inputs(records.parts, IDS, torch.tensor([3, 2]))
    assert torch.equal(packed, records.inputs)
    assert torch.equal(packed_inputs((), IDS), IDS)
    assert packed_inputs(records.parts, IDS)[:, 8:].all()


def test_positions_may_be_more_than_tokens() -> None:
    """The vocabulary is that of the table that tokens are looked up in, not of the largest."""
    made, _ = view(2)
    assert made.vocabulary == WORDS
    small = transformer()
    small.places = torch.nn.Embedding(2 * WORDS, small.places.embedding_dim)
    target = Target(small.eval(), CrossEntropy())
    threat = TextThreat(target, SharingProtocol(), target.layers)
    assert threat.view(texts(2), torch.Generator()).vocabulary == WORDS


def test_tokens_beyond_the_table_are_an_error_of_one_line() -> None:
    target = subject().target
    threat = TextThreat(target, SharingProtocol(), target.layers)
    beyond = Records(texts(2).inputs + WORDS, texts(2).labels)
    with pytest.raises(AuditError, match="cannot be run"):
        threat.view_of(beyond, {})


def test_the_attacker_is_told_the_sum_of_lengths_alone() -> None:
    assert view(2)[0].knowledge["lengths"] == "their sum"
    assert view(2, causal=False)[0].knowledge["lengths"] == "known"
    made, _ = view(2, hide=("head",))
    assert "head" not in str(made.knowledge["layers"])
    assert set(made.update) == set(made.model.parameters) - {"head.weight"}
    assert made.length == LENGTH


class ByPosition(nn.Module):
    """Reads a table, or one for each position, at a position at a time, but for the last ones."""

    def __init__(self, tables: int, left: int = 0) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(12, 3) for _ in range(tables))
        self.left, self.head = left, nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        columns = ids[:, : ids.shape[1] - self.left].unbind(1)
        read = [self.tables[i % len(self.tables)](column) for i, column in enumerate(columns)]
        found: Tensor = self.head(torch.stack(read).sum(dim=0))
        return found


def vocabulary_of(model: nn.Module) -> int:
    target = Target(model, CrossEntropy())
    threat = TextThreat(target, SharingProtocol(), target.layers)
    records = Records(IDS, torch.tensor([0, 1]))
    return threat.view(records, torch.Generator()).vocabulary


@pytest.mark.parametrize("left", [0, 1])
def test_texts_may_be_read_word_by_word(left: int) -> None:
    assert vocabulary_of(ByPosition(1, left)) == int(IDS.max()) + 1


def test_columns_with_tables_of_their_own_are_no_texts() -> None:
    with pytest.raises(NotApplicable, match="their columns have tables of their own"):
        vocabulary_of(ByPosition(4))


def test_an_attacker_runs_a_model_that_drops_units_without_dropping_any() -> None:
    """Nobody knows the masks of the clients, whose updates are made with them."""
    model, batch = transformer(), texts(2)
    model.blocks = torch.nn.Sequential(torch.nn.Dropout(0.5), *model.blocks)
    views = {}
    for mode in ("train", "eval"):
        target = Target(model, CrossEntropy(), mode)
        threat = TextThreat(target, SharingProtocol(), target.layers)
        views[mode] = threat.view(batch, torch.Generator().manual_seed(0))
    first = "blocks.1.qkv.weight"
    came_in = [seen.seen([first], batch.inputs)[first] for seen in views.values()]
    assert torch.equal(*came_in)
    updates = [seen.update[first] for seen in views.values()]
    assert not torch.allclose(*updates, rtol=0.01)
