"""Where ``jacobian`` looks for tables, which are in ``fast``."""

from gradaudit.gradients.fast.tables import Tabulated, tables_pay

__all__ = ["Tabulated", "tables_pay"]
