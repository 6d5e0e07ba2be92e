from gradaudit.attacks.names import PACKAGE, default_steps_in_words, names_in_words
from gradaudit.attacks.reconstruction import reconstructions
from gradaudit.parts import declared


def test_declarations_are_those_of_the_classes_and_of_their_options() -> None:
    for name, attack in reconstructions().items():
        iterations = attack.Options.model_fields.get("iterations")
        default = None if iterations is None else iterations.default
        assert declared(PACKAGE)[name].get("default_steps") == attack.default_steps == default


def test_lists_are_told_in_words() -> None:
    assert names_in_words() == "closed-form, copa, dlg, idlg, inverting-gradients or r-gap"
    assert default_steps_in_words() == "300 for dlg and idlg, 2400 for inverting-gradients"
