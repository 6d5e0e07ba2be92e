"""``torch.export`` archives as models, read as untrusted data.

``torch.export.load`` runs pickles and evaluates expressions out of the archive, so it is not used.
The graph is read as JSON, the weights as raw bytes, and an :class:`ExportedModel` runs the graph's
ATen operators itself, each looked up in a list of what may run.
"""

from gradaudit.loading.exported.module import ExportedModel, load_exported

__all__ = ["ExportedModel", "load_exported"]
