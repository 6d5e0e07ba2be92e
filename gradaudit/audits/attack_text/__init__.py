"""The audit of tokens and texts that an update gives away."""

from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from gradaudit.audits.attack_reconstruct.options import RoundsOptions
from gradaudit.audits.base import Audit, Metric


class TextOptions(RoundsOptions):
    """Options of the attack on texts."""

    batch_size: int = Field(4, ge=1, description="Number of texts behind an update.")
    batches: int = Field(
        16, ge=1, description="Number of updates to attack; --samples only lowers it."
    )
    decoys: int = Field(
        32,
        ge=1,
        description="Number of decoy texts that each text is compared with at every layer.",
    )
    given: tuple[int, ...] = Field(
        (),
        description="Numbers, from 0, of the data set's texts whose presence in the first "
        "update is tested.",
    )
    search: bool = Field(
        True, description="Search for whole texts; without it the audit only measures layers."
    )
    save_examples: Path | None = Field(
        None, description="Folder for the original texts beside the rebuilt ones (private data)."
    )


_of_model = partial(Metric, riskier="higher", per_layer=False)


class AttackText(Audit[TextOptions]):
    """Recover the tokens and texts behind an update, and test each layer for a text's presence.

    Tokens are read off the rows of the embedding that moved. The gradient Σ_t δ_t a_tᵀ of a linear
    map has its rows in the span of what came in, so a token at a position is possible where what it
    would bring in lies in the span of the first maps; a text of a causal model is grown token by
    token where each lies in the spans behind the first block, one of a bidirectional model found by
    exchanging tokens until all do (Petrov et al. 2024, DAGER, sections 4 and 5). What noise leaves
    of a span is found from its singular values, never by a fixed tolerance. The last token of a
    text of a next-token loss stands in the head's rows alone. Where no span is whole, its strongest
    directions and the model's own predictions rank texts of the tokens that rows of the embedding
    or of the head name (Balunović et al. 2022, LAMP, for the prior).

    Answers are matched with the batch's texts by an optimal assignment; ROUGE-1 and ROUGE-2 are the
    F-measures of common tokens and pairs (Lin 2004). At each layer a text is told from decoys of
    its length and with tokens as frequent, by the energy that it would bring in outside the span
    there: text_auroc is the share of pairs in which the text has less; the same of another
    batch's update stands beside it as the floor. Where there are as many tokens as the map is wide
    its span says nothing ("void"). A rank below the number of tokens hides no text by itself: what
    came in still has more energy in the span than a decoy. For low-rank adapters the share of
    tokens that is expected from their ranks, summed where they share an input, stands beside the
    measured one. Intervals are over updates, and hold for any number of them: of n updates of which
    every token is named, a share below .025^(1/n) is excluded, .69 with ten and .79 with sixteen,
    the default. A given text is tested against decoys by the sum of its ranks at all layers:
    text_p_value is (1 + decoys that fit as well)/(1 + decoys). Rounds that the same texts make are
    joined where what comes in is the same in them up to noise: ranks of adapters on a frozen base
    add up.
    """

    name = "attack text"
    summary = "Recover the tokens and texts in an update of a language model."
    paper = "https://arxiv.org/abs/2405.15586"
    applies_defenses = True
    metrics = (
        _of_model(
            id="tokens_recovered",
            title="Share of the batch's tokens that the attacker names",
            question="records",
            chance=0.0,
            warning=0.25,
            error=0.75,
            why="an attacker recovers most words of a batch from its update",
            finding="Tokens are recovered.",
            asks="Are tokens recovered?",
            noun="share of tokens",
            cleared="not recovered",
            helps="larger batches (--deployment), or noise (--defense)",
        ),
        _of_model(
            id="sequences_recovered",
            title="Share of the batch's texts that the attacker names word for word",
            question="records",
            chance=0.0,
            warning=0.0,
            error=0.1,
            why="an attacker recovers texts of the batch word for word",
            finding="Texts are recovered word for word.",
            asks="Are texts recovered word for word?",
            noun="share of texts",
            cleared="not recovered",
            helps="larger batches (--deployment), or noise (--defense)",
        ),
        Metric(
            id="lora_predicted",
            title="Share of tokens that low-rank adapters give away, predicted from their ranks",
            per_layer=False,
        ),
        _of_model(id="rouge1", title="ROUGE-1 of the attacker's texts"),
        _of_model(id="rouge2", title="ROUGE-2 of the attacker's texts"),
        Metric(
            id="text_auroc",
            title="How well a text of the batch is distinguished from decoys",
            riskier="higher",
            question="records",
            chance=0.5,
            warning=0.6,
            error=0.9,
            why="this layer's gradient reveals whether a given text is in the batch",
            finding="The presence of a text is inferred.",
            asks="Is the presence of a text inferred?",
            noun="AUROC",
            cleared="not distinguished",
            helps="larger batches (--deployment), or noise (--defense)",
        ),
        Metric(
            id="text_p_value",
            title="How likely a text that was not in the batch fits its update so well",
            riskier="lower",
            per_layer=False,
            question="records",
        ),
        Metric(id="span_rank", title="Dimensions of the span of what came in"),
        Metric(id="span_rank_share", title="Dimensions of the span, over the batch's tokens"),
    )
    headline = ("text_auroc",)
    Options = TextOptions
    examples = (
        "-m hf:DIR -d 'text:FILE.csv?text=COL' --save-examples texts -o report.html",
        "-m hf:DIR -d 'text:FILE.csv?text=COL&length=16' --batch-size 8 --defense sign --given 3,5",
    )
    priority = 15
    least: ClassVar = {"batches": 1, "batch_size": 1, "decoys": 8, "search": False}
    quick: ClassVar = {"batches": 2, "decoys": 8}
    plain: ClassVar = {"decoys": 16}
    thorough: ClassVar = {"batches": 40}
