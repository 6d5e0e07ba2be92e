from gradaudit.attacks.names import reconstruction_summaries
from gradaudit.attacks.reconstruction import reconstructions


def test_the_listed_attacks_are_those_there_are() -> None:
    found = {name: attack.summary for name, attack in reconstructions().items()}
    assert reconstruction_summaries() == found
