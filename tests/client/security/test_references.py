"""References to secrets: they are read again each time, on the machine that connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from seglog.client.security.references import Secrets, check_references, is_reference
from seglog.core.errors import InvalidConfigError


def test_values_of_files_directories_and_variables(tmp_path: Path) -> None:
    properties = tmp_path / "secrets.properties"
    properties.write_text("user=alice\na\\:b=${env:NAME}\n")
    (tmp_path / "password").write_text("geheim\n")
    secrets = Secrets(environment={"NAME": "x"})
    text = f"${{file:{properties}:user}}/${{directory:{tmp_path}:password}}/${{env:NAME}}/$HOME"
    assert secrets.resolve("o", text) == "alice/geheim/x/$HOME"
    assert secrets.resolve("o", f"${{file:{properties}:a:b}}") == "${env:NAME}", "a secret is no reference"


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    secrets, reference = Secrets(), f"${{directory:{tmp_path}:password}}"
    for password in ("old", "new"):
        (tmp_path / "password").write_text(password)
        assert secrets.resolve("o", reference) == password


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${env:NAME}", "o: the environment variable NAME is not set"),
        ("${file:/none/x:key}", "o: /none/x: No such file"),
        ("${directory:/none:key}", "o: /none/key: No such file"),
    ],
)
def test_a_secret_that_is_not_there(reference: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        Secrets(environment={}).resolve("o", reference)


def test_a_file_without_the_key_and_one_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("password=geheim")
    with pytest.raises(InvalidConfigError, match="has no key user") as raised:
        Secrets().resolve("o", f"${{file:{path}:user}}")
    assert "geheim" not in str(raised.value)
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidConfigError, match="not a text in UTF-8"):
        Secrets().resolve("o", f"${{file:{path}:user}}")
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(InvalidConfigError, match="1048577 bytes"):
        Secrets().resolve("o", f"${{file:{path}:user}}")


@pytest.mark.parametrize(
    "text",
    [
        "${vault:/a:b}",
        "${file:/a}",
        "${file::b}",
        "${file:/a:}",
        "${env:}",
        "${env:/a:b}",
        "${directory:/a:../b}",
        "${directory:/a:..}",
        "${:a}",
    ],
)
def test_references_without_a_value_on_any_machine(text: str) -> None:
    with pytest.raises(ValueError, match="not a reference"):
        check_references(f"x{text}y")


@pytest.mark.parametrize("text", ["", "$", "${a}", "{env:A}", "${file:/a:b:c}", "${env:A}${env:B}"])
def test_texts_that_may_be_given(text: str) -> None:
    check_references(text)


def test_one_reference_alone() -> None:
    assert is_reference(" ${env:A} ")
    assert not is_reference("${env:A}${env:B}")
