"""Names of certificates: the expected texts are those of Java's ``X500Principal.getName()`` for the same bytes."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.broker.security.certificate_names import subject
from tests.cases import case
from tests.kit.certificates import Authority

JAVA = {
    "3011310f300d06035504030c0620612c622320": r"CN=\ a\,b\#\ ",
    "3021310e300c06035504030c05613d622b63310f300d060355040a0c0671223c3e3b5c": r"O=q\"\<\>\;\\,CN=a\=b\+c",
    "3010310e300c06035504030c056e756c0078": r"CN=nul\00x",
    "300d310b300906035504030c022020": r"CN=\ \ ",
    "3020310e300c06035504030c05c3a9e6b0b4310e300c06035504070c05236c656164": r"L=\#lead,CN=é水",
    (
        "305c310f300d06035504031e060062006d0070312d302b06035504031c24000000750000006e0000006900000076000000650000007200"
        "000073000000610000006c310c300a06035504031403743631310c300a06035504031603696135"
    ): (
        r"CN=ia5,CN=t61,CN=#1c24000000750000006e0000006900000076000000650000007200000073000000610000006c,"
        r"CN=\00b\00m\00p"
    ),
    (
        "3039310b30090603550406130244453114300806035504030c01613008060355040b0c01623114301206092a864886f70d010901160578"
        "40792e7a"
    ): "1.2.840.113549.1.9.1=#16057840792e7a,CN=a+OU=b,C=DE",
    (
        "306431133011060a0992268993f22c6401191603636f6d3111300f060a0992268993f22c6401010c0175310a300806035504090c017331"
        "0a300806035504080c0174310a30080603550405130135310a3008060355040c0c0154310a3008060355042a0c0167"
    ): "2.5.4.42=#0c0167,2.5.4.12=#0c0154,2.5.4.5=#130135,ST=t,STREET=s,UID=u,DC=com",
    "3000": "",
    "302e310d300b06035504030c0461202062311d301b06035504030c14746162096e65770a6c696e652728292f3a3f2e2d": (
        "CN=tab\tnew\nline'()/:?.-,CN=a  b"
    ),
}


def certificate(name: bytes, *, with_version: bool = True) -> bytes:
    """As far as `subject` reads one."""
    version = bytes.fromhex("a003020102") if with_version else b""
    return element(element(version + bytes.fromhex("0201053000" + "3000" + "3000") + name + b"\x30\0") + b"\x30\0")


def element(data: bytes) -> bytes:
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
    return b"\x30" + length + data


@pytest.mark.parametrize("name", JAVA)
@pytest.mark.parametrize("with_version", [True, False])
def test_a_name_is_written_as_java_writes_it(name: str, with_version: bool) -> None:
    assert subject(certificate(bytes.fromhex(name), with_version=with_version)) == JAVA[name]


def test_a_real_certificate(tmp_path: Path) -> None:
    chain = Authority(tmp_path).issue("a", common_name="ann").chain.read_text()
    assert subject(ssl.PEM_cert_to_DER_cert(chain)) == "CN=ann"


@given(st.data())
def test_bytes_that_are_no_certificate_raise_valueerror_only(data: st.DataObject) -> None:
    name = bytearray(certificate(bytes.fromhex(data.draw(st.sampled_from(sorted(JAVA))))))
    for _ in range(data.draw(st.integers(1, 4))):
        name[data.draw(st.integers(0, len(name) - 1))] = data.draw(st.integers(0, 255))
    case()
    with suppress(ValueError):
        subject(bytes(name[: data.draw(st.integers(0, len(name)))]))
