"""The name of a certificate's subject, as Java's ``X500Principal.getName()`` writes it (RFC 2253). Pure.

::

    Certificate ::= SEQUENCE { tbsCertificate, … }
    tbsCertificate ::= SEQUENCE { [0] version OPTIONAL, serialNumber, signature, issuer, validity, subject, … }
    subject ::= SEQUENCE OF SET OF SEQUENCE { type OBJECT IDENTIFIER, value ANY }

OpenSSL has parsed and verified the certificate before, so only its outer shape is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_BEFORE_SUBJECT: Final = 4
"""Serial number, signature, issuer and validity."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""``AVAKeyword.java``, those of RFC 2253. Other attributes have their object identifiers, and values in hexadecimal."""
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: Java reads all of them as UTF-8."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


def subject(certificate: bytes) -> str:
    """The subject of a certificate in DER. ValueError if it is none."""
    (outer,) = _children(certificate, 0, len(certificate), _SEQUENCE)
    to_be_signed = next(_children(certificate, *outer, _SEQUENCE))
    fields = list(_elements(certificate, *to_be_signed))
    if fields and fields[0][0] == _VERSION:
        fields = fields[1:]
    if len(fields) <= _BEFORE_SUBJECT or fields[_BEFORE_SUBJECT][0] != _SEQUENCE:
        raise ValueError("it has no subject")
    _, start, end = fields[_BEFORE_SUBJECT]
    parts = [
        "+".join(_attribute(certificate, *attribute) for attribute in _children(certificate, *together, _SEQUENCE))
        for together in _children(certificate, start, end, _SET)
    ]
    return ",".join(reversed(parts))


def _attribute(data: bytes, start: int, end: int) -> str:
    found = list(_elements(data, start, end))
    if len(found) != 2 or found[0][0] != _OID:
        raise ValueError("an attribute of its subject has no type")
    (_, first, last), (tag, value, _) = found
    oid = _oid(data[first:last])
    keyword = _KEYWORDS.get(oid, oid)
    if keyword == oid or tag not in _TEXTS:
        return f"{keyword}=#{data[last:end].hex()}"
    return f"{keyword}={_escaped(data[value:end].decode(errors='replace'))}"


def _escaped(text: str) -> str:
    """
    >>> _escaped(" a,b# ")
    '\\\\ a\\\\,b\\\\#\\\\ '
    """
    inner = text.strip(" ")
    if not inner:
        return "\\ " * len(text)
    written = "".join(f"\\{letter}" if letter in _ESCAPED else "\\00" if letter == "\0" else letter for letter in inner)
    before = len(text) - len(text.lstrip(" "))
    return "\\ " * before + written + "\\ " * (len(text) - before - len(inner))


def _oid(data: bytes) -> str:
    if not data or data[-1] & 0x80:
        raise ValueError("an object identifier ends too soon")
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _children(data: bytes, start: int, end: int, tag: int) -> Iterator[tuple[int, int]]:
    """The contents of the elements, which all must have this tag."""
    for found, first, last in _elements(data, start, end):
        if found != tag:
            raise ValueError(f"an element of type {found:#x} where {tag:#x} must be")
        yield first, last


def _elements(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Tag, start and end of the contents of each element."""
    while start < end:
        if end - start < 2:
            raise ValueError("it ends within an element")
        tag, length = data[start], data[start + 1]
        start += 2
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4 or size > end - start:
                raise ValueError("an element has a length of a kind that DER does not allow")
            length = int.from_bytes(data[start : start + size], "big")
            start += size
        if length > end - start:
            raise ValueError("it ends within an element")
        yield tag, start, start + length
        start += length
