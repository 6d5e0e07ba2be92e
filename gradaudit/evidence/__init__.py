"""Evidence about a report that others can check: statements, signatures, commitments, an annex.

Digests, signatures and timestamps are made and checked by the standard library, securesystemslib
and rfc3161-client; nothing here implements cryptography.
"""

from gradaudit.evidence.annex import annex
from gradaudit.evidence.commitment import Commitment, commit, stamp
from gradaudit.evidence.pack import PackCheck, verify
from gradaudit.evidence.statement import statement_of

__all__ = ["Commitment", "PackCheck", "annex", "commit", "stamp", "statement_of", "verify"]
