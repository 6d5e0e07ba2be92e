"""Modules that take long to import, each imported when a command first uses it.

Help, ``list``, ``schema`` and the commands on reports use none of them, and answer at once. A
command writes ``deferred.opening.load(settings)`` instead of an import inside a function.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradaudit import config as config
    from gradaudit.audits.job import measure as measure
    from gradaudit.audits.job import starting as starting
    from gradaudit.models import building as building
    from gradaudit.observer import saved_updates as saved_updates
    from gradaudit.protection import asking as asking
    from gradaudit.protection import planner as planner
    from gradaudit.protection import protection_plan as protection_plan
    from gradaudit.run import opening as opening
    from gradaudit.run import runner as runner
    from gradaudit.run import scaling as scaling
    from gradaudit.run import scan_plan as scan_plan
    from gradaudit.run import survey as survey
    from gradaudit.run import training as training
    from gradaudit.sweeping import curves as curves
else:

    def __getattr__(name: str) -> ModuleType:
        """The module of this name."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{_PLACES[name]}.{name}")


_RUN = ("opening", "runner", "scaling", "scan_plan", "survey", "training")
_PLACES = {
    "config": "gradaudit",
    **dict.fromkeys(_RUN, "gradaudit.run"),
    **dict.fromkeys(("measure", "starting"), "gradaudit.audits.job"),
    **dict.fromkeys(("asking", "planner", "protection_plan"), "gradaudit.protection"),
    "building": "gradaudit.models",
    "saved_updates": "gradaudit.observer",
    "curves": "gradaudit.sweeping",
}
