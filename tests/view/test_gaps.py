"""What was not tested, named as a reader who knows no command would ask for it."""

from gradaudit.view.gaps import UnmeasuredPart, untested


def test_audits_are_named_by_the_questions_that_they_answer() -> None:
    gaps = [
        UnmeasuredPart("attribute ink", "not asked for"),
        UnmeasuredPart("attack text", "the records are no texts"),
        UnmeasuredPart("floor, attack user", "not asked for"),
        UnmeasuredPart("vinfo", "no gradient", layers=("conv1",)),
        UnmeasuredPart("attack labels", "no labels", partial=True),
    ]
    first, last = (
        "attribute ink; which texts does an attacker read off an update of a language model; how "
        "near can any attacker at all come to a record, given the noise",
        "; can an attacker tell whose batch it is; can a private attribute be read from a layer's "
        "gradient in conv1",
    )
    assert untested(gaps, most=5) == first + last
    assert untested(gaps, most=4) == first + last.rpartition("; ")[0] + "; and 1 more question"
    assert untested(gaps, most=3) == first + "; and 2 more questions"
    assert untested([], most=3) == ""
