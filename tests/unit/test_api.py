"""The models: what each kind accepts and refuses, and how odd objects are read."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from memory_operator.api import (
    AccessGrantSpec,
    AccessGrantStatus,
    IdentityLinkSpec,
    Kind,
    MemoryAgentSpec,
    ObjectKey,
    format_instant,
    parse_instant,
    read,
    window,
)

GRANT: dict[str, Any] = {
    "grantorRole": "pm",
    "granteeAgent": "dev",
    "resourceScope": "private",
}
LINK: dict[str, Any] = {"agent": "pm", "person": {"provider": "slack", "id": "U0123ABC"}}
AGENT: dict[str, Any] = {"role": "pm"}
LONGEST_NAME = ".".join("a" * 127)


def person(id_: Any = "U1", provider: Any = "slack") -> dict[str, Any]:
    return {"provider": provider, "id": id_}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="the role alone"),
        pytest.param({"role": "product.manager-2"}, id="dots and hyphens"),
        pytest.param({"role": "r" * 63}, id="longest role"),
        pytest.param({"serviceAccountName": LONGEST_NAME}, id="longest account"),
        pytest.param({"groups": []}, id="no groups"),
        pytest.param({"groups": [{"name": "eng"}]}, id="reading by default"),
        pytest.param({"groups": [{"name": "eng", "access": "write"}]}, id="writing"),
        pytest.param({"groups": [{"name": f"g{n}"} for n in range(64)]}, id="64 groups"),
        pytest.param({"comesLater": {"x": 1}}, id="a field of a newer version"),
    ],
)
def test_an_agent_may_have(changes: dict[str, Any]) -> None:
    assert MemoryAgentSpec.model_validate(AGENT | changes)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"role": ""}, id="empty role"),
        pytest.param({"role": None}, id="null role"),
        pytest.param({"role": 5}, id="number for a role"),
        pytest.param({"role": "*"}, id="wildcard role"),
        pytest.param({"role": "r" * 64}, id="long role"),
        pytest.param({"role": "Upper"}, id="upper-case role"),
        pytest.param({"role": "a/b"}, id="separator in the role"),
        pytest.param({"role": "pm\n"}, id="newline after the role"),
        pytest.param({"role": "-pm"}, id="hyphen first"),
        pytest.param({"serviceAccountName": ""}, id="empty account"),
        pytest.param({"serviceAccountName": LONGEST_NAME + ".a"}, id="long account"),
        pytest.param({"groups": None}, id="null groups"),
        pytest.param({"groups": "eng"}, id="text for groups"),
        pytest.param({"groups": [{"name": "eng", "access": "admin"}]}, id="unknown access"),
        pytest.param({"groups": [{"access": "read"}]}, id="nameless group"),
        pytest.param({"groups": [{"name": f"g{n}"} for n in range(65)]}, id="65 groups"),
    ],
)
def test_an_agent_may_not_have(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MemoryAgentSpec.model_validate(AGENT | changes)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="one person"),
        pytest.param({"person": person("jo@acme.example", "email")}, id="e-mail"),
        pytest.param({"person": person("@handle")}, id="handle"),
        pytest.param({"person": person("佐藤🙂")}, id="any script"),
        pytest.param({"person": person("x" * 256)}, id="longest id"),
        pytest.param({"person": person("a*")}, id="a star in an id"),
        pytest.param({"aliases": [person(f"U{n}") for n in range(16)]}, id="16 aliases"),
        pytest.param({"agent": LONGEST_NAME}, id="longest name"),
    ],
)
def test_a_link_may_have(changes: dict[str, Any]) -> None:
    assert IdentityLinkSpec.model_validate(LINK | changes)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"agent": ""}, id="no agent"),
        pytest.param({"person": None}, id="null person"),
        pytest.param({"person": {"provider": "slack"}}, id="no id"),
        pytest.param({"person": {"id": "U1"}}, id="no provider"),
        pytest.param({"person": person("")}, id="empty id"),
        pytest.param({"person": person("x" * 257)}, id="long id"),
        pytest.param({"person": person("a b")}, id="space"),
        pytest.param({"person": person("a\nb")}, id="newline"),
        pytest.param({"person": person("a\u200bb")}, id="invisible character"),
        pytest.param({"person": person(5)}, id="number"),
        pytest.param({"person": person("U1", "Slack")}, id="upper-case provider"),
        pytest.param({"person": person("U1", "s" * 33)}, id="long provider"),
        pytest.param({"person": person("U1", "a/b")}, id="separator in the provider"),
        pytest.param({"aliases": [person(f"U{n}") for n in range(17)]}, id="17 aliases"),
        pytest.param({"aliases": ["slack/U1"]}, id="text for an alias"),
    ],
)
def test_a_link_may_not_have(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        IdentityLinkSpec.model_validate(LINK | changes)


@pytest.mark.parametrize("scope", ["private", "team", "global"])
def test_a_grant_may_cover(scope: str) -> None:
    assert AccessGrantSpec.model_validate(GRANT | {"resourceScope": scope})


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"resourceScope": "everything"}, id="unknown scope"),
        pytest.param({"resourceScope": ""}, id="empty scope"),
        pytest.param({"grantorRole": "*"}, id="every role"),
        pytest.param({"granteeAgent": "*"}, id="everyone"),
        pytest.param({"granteeAgent": ""}, id="nobody"),
        pytest.param({"granteeAgent": "globex/pm"}, id="an agent of elsewhere"),
        pytest.param({"reason": "x" * 1025}, id="long reason"),
        pytest.param(
            {"validFrom": "2027-01-01T00:00:00Z", "validTo": "2027-01-01T00:00:00Z"},
            id="an empty window",
        ),
        pytest.param(
            {"validFrom": "2027-01-02T00:00:00Z", "validTo": "2027-01-01T00:00:00Z"},
            id="an end before the beginning",
        ),
    ],
)
def test_a_grant_may_not_have(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AccessGrantSpec.model_validate(GRANT | changes)


@pytest.mark.parametrize("missing", GRANT)
def test_a_grant_may_not_lack(missing: str) -> None:
    with pytest.raises(ValidationError):
        AccessGrantSpec.model_validate({k: v for k, v in GRANT.items() if k != missing})


@pytest.mark.parametrize("field", ["validFrom", "validTo"])
@pytest.mark.parametrize(
    "instant",
    [
        "1970-01-01T00:00:00Z",
        "2027-01-31T18:00:00Z",
        "2028-02-29T23:59:59Z",
        "9998-12-31T23:59:59Z",
    ],
)
def test_an_instant_may_be(field: str, instant: str) -> None:
    assert AccessGrantSpec.model_validate(GRANT | {field: instant})
    assert format_instant(parse_instant(instant)) == instant


@pytest.mark.parametrize("field", ["validFrom", "validTo"])
@pytest.mark.parametrize(
    "instant",
    [
        pytest.param("2027-01-01T00:00:00", id="no zone"),
        pytest.param("2027-01-01T00:00:00+00:00", id="an offset"),
        pytest.param("2027-01-01T00:00:00+99:99", id="an impossible offset"),
        pytest.param("2027-01-01T00:00:00x5Z", id="a letter"),
        pytest.param("2027-01-01T00:00:00,5Z", id="a comma"),
        pytest.param("2027-01-01T00:00:00.5Z", id="a fraction"),
        pytest.param("2027-01-01T00:00:00.123456789123Z", id="a long fraction"),
        pytest.param("2026-12-31T23:59:60Z", id="leap second"),
        pytest.param("2027-01-01T24:00:00Z", id="hour 24"),
        pytest.param("0000-01-01T00:00:00Z", id="year 0"),
        pytest.param("1969-12-31T23:59:59Z", id="before 1970"),
        pytest.param("9999-01-01T00:00:00Z", id="year 9999"),
        pytest.param("9999-12-31T23:59:59-01:00", id="beyond the calendar in UTC"),
        pytest.param("2027-01-01t00:00:00z", id="lower case"),
        pytest.param("2027-02-30T00:00:00Z", id="30 February"),
        pytest.param("2027-02-29T00:00:00Z", id="29 February of a common year"),
        pytest.param("2027-04-31T00:00:00Z", id="31 April"),
        pytest.param("2027-13-01T00:00:00Z", id="month 13"),
        pytest.param("2027-00-01T00:00:00Z", id="month 0"),
        pytest.param("2027-01-01", id="a day"),
        pytest.param("1767225600", id="digits"),
        pytest.param(1767225600, id="a number"),
        pytest.param("", id="empty"),
        pytest.param("tomorrow", id="a word"),
        pytest.param("2027-01-01T00:00:00Z\n", id="a newline"),
        pytest.param(" 2027-01-01T00:00:00Z", id="a space"),
        pytest.param("\uff12\uff10\uff12\uff17-01-01T00:00:00Z", id="full-width digits"),
        pytest.param(["2027-01-01T00:00:00Z"], id="a list"),
        pytest.param(None, id="an explicit null"),
    ],
)
def test_an_instant_may_not_be(field: str, instant: Any) -> None:
    with pytest.raises(ValidationError):
        AccessGrantSpec.model_validate(GRANT | {field: instant})


@given(st.datetimes(datetime(1970, 1, 1), datetime(9998, 12, 31, 23, 59, 59)))  # noqa: DTZ001
def test_every_instant_is_read_as_it_was_written(instant: datetime) -> None:
    whole = instant.replace(microsecond=0, tzinfo=UTC)
    assert parse_instant(format_instant(whole)) == whole


@given(st.text(max_size=25))
def test_text_is_an_instant_only_if_it_is_written_back_the_same(text: str) -> None:
    try:
        instant = parse_instant(text)
    except ValueError:
        return
    assert format_instant(instant) == text


def test_the_window_opens_at_the_creation_unless_the_grant_says_otherwise() -> None:
    created = datetime(2027, 1, 1, tzinfo=UTC)
    end = created + timedelta(hours=1)
    assert window(AccessGrantSpec.model_validate(GRANT), created) == (created, None)
    spec = AccessGrantSpec.model_validate(
        GRANT | {"validFrom": "2027-01-01T00:30:00Z", "validTo": "2027-01-01T01:00:00Z"}
    )
    assert window(spec, created) == (created + timedelta(minutes=30), end)


# Objects as the API server gives them


def body(kind: str = "AccessGrant", **parts: Any) -> dict[str, Any]:
    whole = {
        "apiVersion": "memory-operator.dev/v1alpha1",
        "kind": kind,
        "metadata": {
            "namespace": "acme",
            "name": "oncall",
            "uid": "u-1",
            "generation": 3,
            "resourceVersion": "77",
            "creationTimestamp": "2027-01-01T00:00:00Z",
        },
        "spec": GRANT,
    }
    return {name: part for name, part in (whole | parts).items() if part != "absent"}


def metadata(**fields: Any) -> dict[str, Any]:
    return {**body()["metadata"], **fields}


def test_an_object_is_read_whole() -> None:
    resource = read(body(status={"validFrom": "2027-01-01T00:00:00Z", "zedToken": "t"}))
    assert resource.key == ObjectKey(Kind.ACCESS_GRANT, "acme", "oncall")
    assert str(resource.key) == "AccessGrant acme/oncall"
    assert isinstance(resource.spec, AccessGrantSpec)
    assert isinstance(resource.status, AccessGrantStatus)
    assert resource.status.zed_token == "t"
    assert resource.problem == ""
    assert resource.metadata.uid == "u-1"
    assert resource.metadata.generation == 3
    assert resource.metadata.created == datetime(2027, 1, 1, tzinfo=UTC)
    assert not resource.metadata.deleting


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param("absent", "spec.grantorRole: Field required", id="no spec"),
        pytest.param(None, "spec.grantorRole: Field required", id="null spec"),
        pytest.param({}, "spec.grantorRole: Field required", id="empty spec"),
        pytest.param("text", "spec: Input should be a valid dictionary", id="text"),
        pytest.param([1], "spec: Input should be a valid dictionary", id="list"),
        pytest.param(7, "spec: Input should be a valid dictionary", id="number"),
        pytest.param(GRANT | {"validTo": "soon"}, "spec.validTo: Value error", id="instant"),
        pytest.param(
            GRANT | {"validFrom": "2027-01-02T00:00:00Z", "validTo": "2027-01-01T00:00:00Z"},
            "spec: Value error, validTo must be later than validFrom",
            id="window",
        ),
    ],
)
def test_a_spec_that_cannot_be_read_says_why(spec: Any, problem: str) -> None:
    resource = read(body(spec=spec))
    assert resource.spec is None
    assert problem in resource.problem


@pytest.mark.parametrize(
    "status",
    [
        "absent",
        None,
        "fine",
        [],
        {"conditions": "none"},
        {"conditions": [{"type": "Ready"}]},
        {"observedGeneration": "three"},
        {"validFrom": "yesterday"},
    ],
)
def test_a_status_that_is_not_ours_counts_as_none(status: Any) -> None:
    assert read(body(status=status)).status == AccessGrantStatus()


def test_fields_of_a_newer_version_are_passed_over() -> None:
    resource = read(body(spec=GRANT | {"color": "red"}, status={"color": "red"}))
    assert resource.spec == AccessGrantSpec.model_validate(GRANT)
    assert resource.status == AccessGrantStatus()


@pytest.mark.parametrize(
    ("entries", "manager"),
    [
        pytest.param([], "", id="nobody"),
        pytest.param(
            [
                {"manager": "helm", "time": "2027-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
                {"manager": "argocd", "time": "2027-01-03T00:00:00Z", "fieldsV1": {"f:spec": {}}},
                {"manager": "kubectl", "time": "2027-01-02T00:00:00Z", "fieldsV1": {"f:spec": {}}},
            ],
            "argocd",
            id="the last writer of the spec",
        ),
        pytest.param(
            [
                {"manager": "kubectl", "time": "2027-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
                {
                    "manager": "memory-operator",
                    "time": "2027-01-09T00:00:00Z",
                    "fieldsV1": {"f:status": {}},
                },
                {
                    "manager": "labeller",
                    "time": "2027-01-08T00:00:00Z",
                    "fieldsV1": {"f:metadata": {}},
                },
                {"manager": "odd"},
            ],
            "kubectl",
            id="not the writer of status or labels",
        ),
    ],
)
def test_the_manager_is_who_last_wrote_the_spec(
    entries: list[dict[str, Any]], manager: str
) -> None:
    assert read(body(metadata=metadata(managedFields=entries))).metadata.manager == manager


def applied(annotation: str, spec: Any = None) -> dict[str, Any]:
    """A grant as `kubectl apply` leaves it, with what was given to it in the annotation."""
    name = "kubectl.kubernetes.io/last-applied-configuration"
    return body(spec=spec or GRANT, metadata=metadata(annotations={name: annotation}))


def typed(**spec: Any) -> str:
    return json.dumps({"spec": GRANT | spec}, separators=(",", ":"))


@pytest.mark.parametrize("field", ["validFrom", "validTo"])
def test_a_null_that_apply_left_out_grants_nothing(field: str) -> None:
    resource = read(applied(typed(**{field: None})))
    assert resource.spec is None
    assert resource.problem.startswith(f"spec.{field}: null was applied")


@pytest.mark.parametrize(
    ("annotation", "spec"),
    [
        pytest.param(typed(), GRANT, id="no null"),
        pytest.param(typed(reason=None), GRANT, id="a null that opens nothing"),
        pytest.param(
            typed(validTo=None), GRANT | {"validTo": "2027-02-01T00:00:00Z"}, id="mended since"
        ),
        pytest.param('{"spec":null}', GRANT, id="no spec"),
        pytest.param('{"x":null', GRANT, id="no JSON"),
        pytest.param("[1,:null]", GRANT, id="no JSON at all"),
        pytest.param('[{"spec":null}]', GRANT, id="a list"),
        pytest.param('{"spec":"x","y":null}', GRANT, id="text for a spec"),
        pytest.param("", GRANT, id="empty"),
    ],
)
def test_any_other_annotation_of_apply_changes_nothing(
    annotation: str, spec: dict[str, Any]
) -> None:
    assert read(applied(annotation, spec)).problem == ""


def test_deletion_and_finalizers_are_seen() -> None:
    fields = metadata(deletionTimestamp="2027-01-02T00:00:00Z", finalizers=["a/b", "c/d"])
    resource = read(body(metadata=fields))
    assert resource.metadata.deleting
    assert resource.metadata.finalizers == ("a/b", "c/d")


@pytest.mark.parametrize("kind", ["Pod", "accessgrant", ""])
def test_an_object_of_another_kind_is_no_resource(kind: str) -> None:
    with pytest.raises(ValueError, match="is not a valid Kind"):
        read(body(kind=kind))


_SECRET = "U0SECRET"


@pytest.mark.parametrize(
    "spec",
    [
        LINK | {"person": person(f"{_SECRET} x")},
        LINK | {"person": person(_SECRET * 50)},
        LINK | {"person": person("U1", _SECRET)},
        LINK | {"person": _SECRET},
        LINK | {"person": {"provider": "slack", _SECRET: "id"}},
        LINK | {"person": person([_SECRET])},
        LINK | {"aliases": [person(f"{_SECRET} x")]},
        LINK | {"aliases": _SECRET},
        LINK | {"agent": _SECRET},
        _SECRET,
        [_SECRET],
    ],
)
def test_a_problem_never_repeats_what_may_be_a_person(spec: Any) -> None:
    resource = read(body("IdentityLink", spec=spec))
    assert resource.spec is None
    assert resource.problem
    assert _SECRET not in resource.problem


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["agent", "person", "provider", "id", "aliases", "role", "groups", "name"]
            ),
            children,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from([kind.value for kind in Kind]), _JSON, _JSON)
def test_whatever_stands_in_spec_and_status_the_object_is_read(
    kind: str, spec: Any, status: Any
) -> None:
    resource = read(body(kind, spec=spec, status=status))
    assert (resource.spec is None) == bool(resource.problem)
    assert json.loads(resource.status.model_dump_json())
