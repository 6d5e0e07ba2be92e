"""Defenses: what is done to an update before it is shared; one a file, found by name.

Importing this package and listing its defenses does not import torch.
"""

from gradaudit.defenses.base import Defense, DefenseOptions
from gradaudit.defenses.chain import Chain
from gradaudit.defenses.spec import defenses, parse_defense

__all__ = ["Chain", "Defense", "DefenseOptions", "defenses", "parse_defense"]
