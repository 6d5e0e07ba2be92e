import gc

import pytest

from gradaudit.cli.perform import without_garbage


@pytest.mark.parametrize("looking", [True, False])
def test_garbage_is_looked_for_as_before_but_among_what_is_there(looking: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        if not looking:
            gc.disable()
        with without_garbage():
            assert not gc.isenabled()
        assert gc.isenabled() == looking
        assert gc.get_freeze_count() > frozen
    finally:
        gc.enable()
        gc.unfreeze()
