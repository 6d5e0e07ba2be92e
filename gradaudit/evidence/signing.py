"""Signs and checks statements as DSSE envelopes, by securesystemslib.

DSSE: https://github.com/secure-systems-lab/dsse. Keys are PEM files: Ed25519, ECDSA or RSA.
"""

from pathlib import Path
from typing import Any

from gradaudit.core.files import read_file
from gradaudit.core.parts import library
from gradaudit.errors import UsageError
from gradaudit.evidence.commitment import EXTRA

PAYLOAD = "application/vnd.in-toto+json"
MAX_KEY = 1 << 16
_LIBRARIES = (
    "securesystemslib.dsse",
    "securesystemslib.signer",
    "cryptography.hazmat.primitives.serialization",
)


class UnsignedError(Exception):
    """An envelope has no valid signature of the given key."""


def sign(payload: bytes, key: Path) -> dict[str, Any]:
    """Returns the DSSE envelope of a statement, signed with a private key.

    Raises:
        UsageError: securesystemslib is not installed, or the file is no private key without a
            password.
    """
    dsse, signer, pem = (library(name, EXTRA, str(key)) for name in _LIBRARIES)
    try:
        private = pem.load_pem_private_key(read_file(key, MAX_KEY), password=None)
        made = signer.CryptoSigner(private)
    except (ValueError, TypeError) as error:
        message = "no private key of Ed25519, ECDSA or RSA as PEM without a password"
        raise UsageError(f"{key}: {message}; make one with openssl genpkey") from error
    envelope = dsse.Envelope(payload, PAYLOAD, {})
    envelope.sign(made)
    return dict(envelope.to_dict())


def signed(envelope: dict[str, Any], key: Path) -> bytes:
    """Returns the payload of an envelope that the owner of a public key signed.

    Raises:
        UsageError: securesystemslib is not installed, or the file is no public key.
        UnsignedError: the envelope is malformed, or no signature is of this key.
    """
    dsse, signer, pem = (library(name, EXTRA, str(key)) for name in _LIBRARIES)
    try:
        public = signer.SSlibKey.from_crypto(pem.load_pem_public_key(read_file(key, MAX_KEY)))
    except ValueError as error:
        message = "no public key of Ed25519, ECDSA or RSA as PEM"
        raise UsageError(f"{key}: {message}; write it with openssl pkey -pubout") from error
    try:
        read = dsse.Envelope.from_dict(envelope)
        read.verify([public], 1)
    except Exception as error:
        raise UnsignedError from error
    if read.payload_type != PAYLOAD:
        raise UnsignedError
    return bytes(read.payload)
