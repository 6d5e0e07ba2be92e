"""``torch.export`` archives as models: the user's code, as a factory is.

``torch.export.load`` reads pickles, compiles expressions and runs any operator that the archive
names, so an archive is only ever opened where ``--model`` names it by its suffix ``.pt2``.
"""

from gradaudit.models.exported.module import ExportedModel, load_exported

__all__ = ["ExportedModel", "load_exported"]
