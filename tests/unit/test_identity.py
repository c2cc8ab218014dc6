"""Ids: one name, one id, whatever the name is made of."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_operator.errors import InvalidIdentityError
from memory_operator.identity import MAX_LENGTH, Ids, decode, encode

ACCEPTED_BY_SPICEDB = re.compile(r"[a-zA-Z0-9/_|\-=+]{1,1024}")

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
tricky = names | st.sampled_from(
    ["*", "/", "a/b", "=", "=2F", "=3D2F", ".", "..", " ", "@", "a=2Eb"]
)
prefixes = st.just("") | tricky


@given(tricky)
def test_decoding_gives_back_what_was_encoded(part: str) -> None:
    assert decode(encode(part)) == part


@given(st.text("=2FfEeab/*é", max_size=8))
def test_what_can_be_decoded_is_exactly_what_encoding_gives(encoded: str) -> None:
    try:
        part = decode(encoded)
    except InvalidIdentityError:
        return
    assert encode(part) == encoded


@given(tricky)
def test_an_encoded_part_holds_no_separator_and_no_wildcard(part: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_\-=]+", encode(part))


@given(st.lists(tricky, min_size=1, max_size=4), st.lists(tricky, min_size=1, max_size=4), prefixes)
def test_different_lists_of_parts_make_different_ids(
    one: list[str], other: list[str], prefix: str
) -> None:
    ids = Ids(prefix)
    assert (ids.join(*one) == ids.join(*other)) == (one == other)


@given(st.lists(tricky, min_size=1, max_size=4), prefixes)
def test_an_id_splits_into_the_parts_it_was_joined_from(parts: list[str], prefix: str) -> None:
    ids = Ids(prefix)
    assert ids.split(ids.join(*parts), len(parts)) == tuple(parts)
    assert ids.split(ids.join(*parts), len(parts) + 1) is None


@given(st.lists(tricky, min_size=2, max_size=2), prefixes, prefixes)
def test_no_cluster_takes_anothers_ids_for_its_own(parts: list[str], one: str, other: str) -> None:
    if one != other:
        assert Ids(one).split(Ids(other).join(*parts), 2) is None


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=4), prefixes)
def test_spicedb_accepts_every_id_that_is_not_refused_here(parts: list[str], prefix: str) -> None:
    try:
        object_id = Ids(prefix).join(*parts)
    except InvalidIdentityError:
        return
    assert ACCEPTED_BY_SPICEDB.fullmatch(object_id)


@given(st.text())
def test_splitting_foreign_text_never_fails(text: str) -> None:
    parts = Ids().split(text, 2)
    assert parts is None or Ids().join(*parts) == text


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        pytest.param("pm", "pm", id="plain names stay as they are"),
        pytest.param("Team_A-1", "Team_A-1", id="letters digits underscore hyphen"),
        pytest.param("*", "=2A", id="the wildcard is a name like any other"),
        pytest.param("a.b", "a=2Eb", id="dot"),
        pytest.param("jo@acme.example", "jo=40acme=2Eexample", id="e-mail"),
        pytest.param("@handle", "=40handle", id="handle"),
        pytest.param("a/b", "a=2Fb", id="separator"),
        pytest.param("=2F", "=3D2F", id="what looks encoded"),
        pytest.param("é", "=C3=A9", id="two bytes"),
        pytest.param("日", "=E6=97=A5", id="three bytes"),
        pytest.param("🙂", "=F0=9F=99=82", id="four bytes"),
        pytest.param(" ", "=20", id="space"),
        pytest.param("a|b+c", "a=7Cb=2Bc", id="allowed by SpiceDB and encoded all the same"),
    ],
)
def test_names_are_encoded_as(name: str, encoded: str) -> None:
    assert encode(name) == encoded
    assert decode(encoded) == name


@pytest.mark.parametrize("part", ["", "\ud800", "a\udfff"])
def test_a_part_without_content_or_encoding_is_refused(part: str) -> None:
    with pytest.raises(InvalidIdentityError):
        encode(part)


@pytest.mark.parametrize(
    "encoded",
    ["", "=", "=2", "=2f", "=zz", "a.b", "*", "é", "a/b", "=FF", "=C3", "=41", "=2D", "=C0=AF"],
)
def test_what_encoding_never_gives_is_not_decoded(encoded: str) -> None:
    with pytest.raises(InvalidIdentityError):
        decode(encoded)


def test_the_longest_id_is_accepted_and_one_more_character_is_not() -> None:
    rest = MAX_LENGTH - len("acme/")
    assert len(Ids().join("acme", "a" * rest)) == MAX_LENGTH
    with pytest.raises(InvalidIdentityError, match="1025 characters"):
        Ids().join("acme", "a" * (rest + 1))


def test_the_longest_names_of_kubernetes_fit_even_when_full_of_dots() -> None:
    name = ".".join("a" * 127)
    assert len(name) == 253
    assert Ids("p" * 63).join("n" * 63, name)


@pytest.mark.parametrize("parts", [("acme", "slack", "U0SECRET" * 200), ("acme", "\ud800U0SECRET")])
def test_a_refusal_does_not_repeat_the_name(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidIdentityError) as caught:
        Ids().join(*parts)
    assert "SECRET" not in str(caught.value)


def test_a_prefix_stands_before_the_organisation() -> None:
    assert Ids("east").join("acme", "pm") == "east/acme/pm"
    assert Ids("east").split("east/acme/pm", 2) == ("acme", "pm")
