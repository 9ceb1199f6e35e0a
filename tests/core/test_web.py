"""The names and origins that a server on this machine answers to."""

from __future__ import annotations

import pytest

from steps.core.web import host_name, is_address, is_foreign


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("A.b:80", "a.b"),
        ("[::1]:8000", "::1"),
        ("[::1]", "::1"),
        ("a b", ""),
        ("a/b", ""),
        ("a:80:80", ""),
        ("a:x", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("127.0.0.1", True), ("::1", True), ("10.0.0.5", True), ("localhost", False), ("1.2.3.4.evil.example", False)],
)
def test_an_address_is_no_name(name: str, is_one: bool) -> None:
    assert is_address(name) == is_one


@pytest.mark.parametrize(
    ("origins", "hosts", "foreign"),
    [
        ([], ["127.0.0.1:8000"], False),
        (["http://127.0.0.1:8000"], ["127.0.0.1:8000"], False),
        (["http://127.0.0.1:3000"], ["127.0.0.1:8000"], True),
        (["null"], ["127.0.0.1:8000"], True),
        ([""], ["127.0.0.1:8000"], True),
        (["http://127.0.0.1:8000", "http://evil.example"], ["127.0.0.1:8000"], True),
        (["http://a"], ["a", "a"], True),
        (["http://a"], [], True),
    ],
)
def test_a_page_of_another_server_is_foreign(origins: list[str], hosts: list[str], foreign: bool) -> None:
    assert is_foreign(origins, hosts) == foreign
