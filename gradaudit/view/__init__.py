"""Content of every readable format of a report, in order; formats lay it out and escape it.

Verdict, scope, findings, layers, not tested, provenance; the last line repeats the verdict.
"""

from gradaudit.view.cells import Cell, LayerLine, MetricColumn
from gradaudit.view.concerns import Concern
from gradaudit.view.gaps import UnmeasuredPart
from gradaudit.view.layers import ArrayLine, Layers
from gradaudit.view.model import View, view
from gradaudit.view.scope import Scope
from gradaudit.view.verdict_sentence import ReportVerdict

__all__ = [
    "ArrayLine",
    "Cell",
    "Concern",
    "LayerLine",
    "Layers",
    "MetricColumn",
    "ReportVerdict",
    "Scope",
    "UnmeasuredPart",
    "View",
    "view",
]
