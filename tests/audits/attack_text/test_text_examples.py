"""Texts that were recovered, written beside the originals and shown on the page."""

import json
from pathlib import Path
from typing import Any

import pytest
from language_models import Shelf
from report_builder import make_report, row

from gradaudit.audits.attack_text.recovery.recover import Answer
from gradaudit.audits.attack_text.text_examples import TextExamples
from gradaudit.data.records import SpelledTexts
from gradaudit.formats.html import Html
from gradaudit.report import Report
from gradaudit.view.examples import texts_of
from tests.command_line import run

WORDS = ["", "a", "bird", "in", "the", "hand", "gold"]


def spell(texts: Any) -> SpelledTexts:
    return SpelledTexts([[WORDS[token] for token in text] for text in texts], "a note")


def written(folder: Path, *answers: Answer, **how: Any) -> list[Any]:
    examples = TextExamples(folder, "text", how.get("spelling", spell))
    examples.write(answers, how.get("truth", ()))
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_each_original_stands_beside_the_answer_that_is_nearest(tmp_path: Path) -> None:
    answer = Answer(texts=((4, 5, 2), (1, 2, 6, 3)))
    (content,) = written(tmp_path, answer, truth=[[(1, 2, 3, 4, 5), (4, 5)]])
    assert content["note"] == "a note"
    assert content["private"].startswith("private data")
    assert content["texts"] == [
        {
            "original": [
                *(["a", "right"], ["bird", "right"], ["in", "right"]),
                *(["the", "elsewhere"], ["hand", "elsewhere"]),
            ],
            "rebuilt": [["a", "right"], ["bird", "right"], ["gold", "wrong"], ["in", "right"]],
        },
        {
            "original": [["the", "right"], ["hand", "right"]],
            "rebuilt": [["the", "right"], ["hand", "right"], ["bird", "elsewhere"]],
        },
    ]


def test_a_text_without_an_answer_stands_beside_nothing(tmp_path: Path) -> None:
    first, second = written(tmp_path, Answer(), Answer(texts=((2,),)), truth=[[(2,)], [(3,), (2,)]])
    assert first["texts"] == [{"original": [["bird", "wrong"]], "rebuilt": []}]
    assert second["texts"][0] == {"original": [["in", "wrong"]], "rebuilt": []}


def test_without_a_truth_nothing_is_called_wrong(tmp_path: Path) -> None:
    (content,) = written(tmp_path, Answer(texts=((2, 3),)), spelling=None)
    assert content["texts"] == [{"original": [], "rebuilt": [["2", "right"], [" 3", "right"]]}]
    assert "numbers" in content["note"]


@pytest.mark.slow
def test_a_model_of_texts_shows_them_on_the_page(shelf: Shelf, tmp_path: Path) -> None:
    folder, table = shelf.model("GPT2LMHeadModel"), shelf.texts()
    examples, report, page = tmp_path / "examples", tmp_path / "r.json", tmp_path / "r.html"
    args = ["--model", f"hf:{folder}", "--data", f"text:{table}?text=text&length=6"]
    args += ["--batch-size", "1", "--batches", "2", "--decoys", "2", "-q"]
    done = run("attack", "text", *args, "--save-examples", examples, "-o", report, "-o", page)
    assert done.status == 0, done.err
    (_, first), (_, second) = texts_of(Report.from_file(report))
    texts = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    for shown in (*first.texts, *second.texts):
        said = "".join(piece for piece, _ in shown.original)
        assert any(text.startswith(said) for text in texts)
        assert said in page.read_text()
    assert "Private data:</strong> these texts show records" in page.read_text()
    assert (examples / "text-01.json").stat().st_mode & 0o077 == 0
    assert run("render", report, "--redact", "-o", page).status == 0
    assert "Private data" not in page.read_text()


@pytest.mark.slow
def test_texts_are_shown_only_where_they_are_searched_for(shelf: Shelf, tmp_path: Path) -> None:
    args = ["--model", f"hf:{shelf.model('GPT2LMHeadModel')}"]
    args += ["--data", f"text:{shelf.texts()}?text=text", "--no-search"]
    done = run("attack", "text", *args, "--save-examples", tmp_path)
    assert (done.status, done.err.count("leave out --no-search")) == (2, 1)


def saved(folder: Path) -> Report:
    report = make_report(row("attack.rouge1", None, 0.5))
    report.provenance["audits"] = {"attack text": {"save_examples": str(folder)}}
    return report


def test_no_other_file_is_read(tmp_path: Path) -> None:
    good = {"private": "", "note": "", "texts": [{"original": [["<b>", "right"]], "rebuilt": []}]}
    text = json.dumps(good)
    wrong = {**good, "texts": [{"original": [["a", "best"]], "rebuilt": []}]}
    for name, content in {
        "text-01": text,
        "text-02": "{",
        "text-03": json.dumps({**good, "more": 1}),
        "text-04": json.dumps(wrong),
        "passwords": text,
        "text-05": text + " " * (1 << 20),
    }.items():
        (tmp_path / f"{name}.json").write_text(content)
    (tmp_path / "text-06.json").symlink_to(tmp_path / "passwords.json")
    assert [name for name, _ in texts_of(saved(tmp_path))] == ["text-01"]
    assert "&lt;b&gt;" in Html().render(saved(tmp_path))
