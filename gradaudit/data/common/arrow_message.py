"""Whether an Arrow message's buffers are compressed, from its header, a flatbuffer.

Source: the Apache Arrow columnar format, Message.fbs: Message(version, header_type, header, …) with
a RecordBatch(length, nodes, buffers, compression) or a DictionaryBatch(id, data: RecordBatch, …).
"""

import struct

_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DATA, _COMPRESSION = 1, 3


def is_compressed(metadata: bytes) -> bool:
    """Whether it is a batch whose buffers are compressed.

    Raises:
        struct.error: the header is cut short.
    """
    message = _offset(metadata, 0)
    kind = _field(metadata, message, _HEADER_TYPE)
    header = _field(metadata, message, _HEADER)
    if kind is None or header is None or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return False
    batch = _offset(metadata, header)
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _field(metadata, batch, _DATA)
        if data is None:
            return False
        batch = _offset(metadata, data)
    return _field(metadata, batch, _COMPRESSION) is not None


def _offset(data: bytes, place: int) -> int:
    """Where the table lies that is pointed to from a place."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies, None where it has none."""
    entries = table - int(struct.unpack_from("<i", data, table)[0])
    if entries < 0:
        raise struct.error("a table without entries")
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", data, entries)[0]:
        return None
    offset = int(struct.unpack_from("<H", data, entries + place)[0])
    return table + offset if offset else None
