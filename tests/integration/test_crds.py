"""Every rule of the three kinds, asked of a real API server: what it takes, what it refuses, and why.

The tables go through the API with strict field validation, as kubectl asks for it, and dry: the API
server does all but keep the object. What depends on how an object is written goes through kubectl.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from authzed.api.v1 import SyncClient
from kubernetes import client

from memory_operator.names import API_VERSION, FIELD_MANAGER, FINALIZER, GROUP, VERSION
from tests import cluster
from tests.support.organization import Organization, instant, new_organization, rows

Json = dict[str, Any]

SPECS: dict[str, Json] = {
    "MemoryAgent": {"role": "engineer"},
    "IdentityLink": {"agent": "pm", "person": {"provider": "slack", "id": "U0123ABC"}},
    "AccessGrant": {"grantorRole": "pm", "granteeAgent": "bot", "resourceScope": "private"},
}
"""The least that each kind needs."""

LONG_NAME = ".".join(["a" * 63] * 3 + ["b" * 61])  # 253 characters
UTC_SECONDS = "in UTC and whole seconds, as 2027-01-31T18:00:00Z"
YEARS = "the year must lie between 1970 and 9998"
NO_DAY = "no calendar has this day"
EARLIER = "spec.validTo: Invalid value: validTo must be later than validFrom"
TAKEN_AWAY = "validTo can be moved but not taken away"


@pytest.fixture(scope="module")
def tenant(api: client.ApiClient) -> Iterator[Organization]:
    """A namespace; no operator is needed here, and one that runs is in nobody's way."""
    with new_organization(api) as namespace:
        yield namespace


def _create(tenant: Organization, kind: str, name: str, spec: Json) -> Json:
    created: Json = tenant.objects.create_namespaced_custom_object(
        GROUP,
        VERSION,
        tenant.name,
        f"{kind.lower()}s",
        {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec},
        field_validation="Strict",
        dry_run="All",
    )
    return created


def _refusal(tenant: Organization, kind: str, name: str, spec: Json) -> str:
    with pytest.raises(client.ApiException) as refused:
        _create(tenant, kind, name, spec)
    assert refused.value.status in (400, 422)
    return str(json.loads(refused.value.body)["message"])


def _yaml(namespace: str, kind: str, name: str, spec: Json) -> str:
    """Give an object in the YAML that is JSON."""
    metadata = {"name": name, "namespace": namespace}
    return json.dumps({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})


# What is added to the least spec of the kind; None takes a field away.
_ABSENT: Any = object()


def _spec(kind: str, changes: Json) -> Json:
    spec = deepcopy(SPECS[kind]) | changes
    return {key: value for key, value in spec.items() if value is not _ABSENT}


TAKEN: list[tuple[str, str, Json]] = [
    ("AccessGrant", "no end", {}),
    ("AccessGrant", "first year", {"validFrom": "1970-01-01T00:00:00Z"}),
    ("AccessGrant", "last second", {"validTo": "9998-12-31T23:59:59Z"}),
    ("AccessGrant", "int64 nanoseconds and beyond", {"validTo": "2262-04-12T00:00:00Z"}),
    ("AccessGrant", "leap year", {"validTo": "2028-02-29T23:59:59Z"}),
    ("AccessGrant", "leap century", {"validTo": "2000-02-29T00:00:00Z"}),
    ("AccessGrant", "in the past", {"validTo": "2001-01-01T00:00:00Z"}),
    (
        "AccessGrant",
        "one second",
        {"validFrom": "2027-01-01T00:00:00Z", "validTo": "2027-01-01T00:00:01Z"},
    ),
    ("AccessGrant", "longest grantee", {"granteeAgent": LONG_NAME}),
    ("AccessGrant", "longest role", {"grantorRole": "r" * 63}),
    ("AccessGrant", "role with dots", {"grantorRole": "pm.emea.1"}),
    ("AccessGrant", "longest reason", {"reason": "ж" * 1024}),
    (
        "MemoryAgent",
        "64 groups",
        {"groups": [{"name": f"g{n}", "access": "write"} for n in range(64)]},
    ),
    ("MemoryAgent", "longest account", {"serviceAccountName": LONG_NAME}),
    ("IdentityLink", "e-mail", {"person": {"provider": "email", "id": "a.b+c@example.com"}}),
    ("IdentityLink", "negative number", {"person": {"provider": "telegram", "id": "-100123"}}),
    ("IdentityLink", "any script", {"person": {"provider": "wechat", "id": "李小龍@Жук"}}),
    ("IdentityLink", "star inside", {"person": {"provider": "x", "id": "**"}}),
    ("IdentityLink", "slashes", {"person": {"provider": "matrix", "id": "@a:hs/../b|c=2A"}}),
    ("IdentityLink", "longest id", {"person": {"provider": "p" * 32, "id": "漢" * 256}}),
    (
        "IdentityLink",
        "16 aliases",
        {"aliases": [{"provider": "slack", "id": f"U{n}"} for n in range(16)]},
    ),
    (
        "IdentityLink",
        "one id in two channels",
        {"aliases": [{"provider": "x", "id": "1"}, {"provider": "y", "id": "1"}]},
    ),
]


@pytest.mark.parametrize(
    ("kind", "changes"), [pytest.param(k, c, id=f"{k}: {what}") for k, what, c in TAKEN]
)
def test_takes(tenant: Organization, kind: str, changes: Json) -> None:
    spec = _spec(kind, changes)

    assert _create(tenant, kind, spec.get("agent", "any"), spec)["spec"].items() >= spec.items()


def test_takes_names_of_253_characters_with_dots(tenant: Organization) -> None:
    for kind, spec in SPECS.items():
        named = spec | ({"agent": LONG_NAME} if kind == "IdentityLink" else {})
        _create(tenant, kind, LONG_NAME, named)


def test_an_agent_is_a_reader_of_a_group_unless_it_is_said_otherwise(tenant: Organization) -> None:
    created = _create(
        tenant, "MemoryAgent", "any", _spec("MemoryAgent", {"groups": [{"name": "g"}]})
    )

    assert created["spec"]["groups"] == [{"name": "g", "access": "read"}]


INSTANTS: list[tuple[str, Any, str]] = [
    ("no zone", "2027-01-01T00:00:00", UTC_SECONDS),
    ("zero offset", "2027-01-01T00:00:00+00:00", UTC_SECONDS),
    ("offset", "2027-01-01T00:00:00-05:00", UTC_SECONDS),
    ("impossible offset", "2027-01-01T00:00:00+99:99", UTC_SECONDS),
    ("fraction", "2027-01-01T00:00:00.5Z", UTC_SECONDS),
    ("fraction of zero", "2027-01-01T00:00:00.000Z", UTC_SECONDS),
    ("comma fraction", "2027-01-01T00:00:00,5Z", UTC_SECONDS),
    ("what the date-time format takes for a fraction", "2027-01-01T00:00:00x5Z", UTC_SECONDS),
    ("leap second", "2026-12-31T23:59:60Z", UTC_SECONDS),
    ("hour 24", "2026-12-31T24:00:00Z", UTC_SECONDS),
    ("month 13", "2026-13-01T00:00:00Z", UTC_SECONDS),
    ("day 0", "2026-12-00T00:00:00Z", UTC_SECONDS),
    ("lower-case t", "2027-01-01t00:00:00Z", UTC_SECONDS),
    ("lower-case z", "2027-01-01T00:00:00z", UTC_SECONDS),
    ("date only", "2027-01-01", UTC_SECONDS),
    ("space for the T", "2027-01-01 00:00:00Z", UTC_SECONDS),
    ("space behind", "2027-01-01T00:00:00Z ", UTC_SECONDS),
    ("line break behind", "2027-01-01T00:00:00Z\n", UTC_SECONDS),
    ("year of five digits", "12027-01-01T00:00:00Z", UTC_SECONDS),
    ("digits of another script", "\uff12\uff10\uff12\uff17-01-01T00:00:00Z", UTC_SECONDS),
    ("epoch as text", "1767225600", UTC_SECONDS),
    ("epoch", 1767225600, "must be of type string"),
    ("empty", "", UTC_SECONDS),
    ("null", None, "can't be null: give it an instant, or leave it out"),
    ("year 0000", "0000-01-01T00:00:00Z", YEARS),
    ("year 1969", "1969-12-31T23:59:59Z", YEARS),
    ("year 9999", "9999-01-01T00:00:00Z", YEARS),
    ("end of year 9999", "9999-12-31T23:59:59Z", YEARS),
    ("30 February", "2027-02-30T00:00:00Z", NO_DAY),
    ("29 February of a common year", "2027-02-29T00:00:00Z", NO_DAY),
    ("29 February of a century", "2100-02-29T00:00:00Z", NO_DAY),
    ("31 April", "2027-04-31T00:00:00Z", NO_DAY),
]


@pytest.mark.parametrize("field", ["validFrom", "validTo"])
@pytest.mark.parametrize(
    ("value", "why"), [pytest.param(value, why, id=what) for what, value, why in INSTANTS]
)
def test_refuses_what_is_no_instant(tenant: Organization, field: str, value: Any, why: str) -> None:
    message = _refusal(tenant, "AccessGrant", "any", _spec("AccessGrant", {field: value}))

    assert f"spec.{field}" in message
    assert why in message


PATTERN = "should match"
LENGTH = "should be at least 1 chars long"
EVERYONE = "'*' would mean everyone: name one person"

REFUSED: list[tuple[str, str, Json, str, str]] = [
    (
        "AccessGrant",
        "an end at the beginning",
        {"validFrom": "2027-01-01T00:00:00Z", "validTo": "2027-01-01T00:00:00Z"},
        "spec.validTo",
        "validTo must be later than validFrom",
    ),
    (
        "AccessGrant",
        "an end before the beginning",
        {"validFrom": "2027-01-01T00:00:00Z", "validTo": "2026-12-31T23:59:59Z"},
        "spec.validTo",
        "validTo must be later than validFrom",
    ),
    ("AccessGrant", "role *", {"grantorRole": "*"}, "spec.grantorRole", PATTERN),
    ("AccessGrant", "grantee *", {"granteeAgent": "*"}, "spec.granteeAgent", PATTERN),
    ("AccessGrant", "empty role", {"grantorRole": ""}, "spec.grantorRole", LENGTH),
    ("AccessGrant", "no role", {"grantorRole": _ABSENT}, "spec.grantorRole", "Required value"),
    ("AccessGrant", "no grantee", {"granteeAgent": _ABSENT}, "spec.granteeAgent", "Required value"),
    ("AccessGrant", "no scope", {"resourceScope": _ABSENT}, "spec.resourceScope", "Required value"),
    (
        "AccessGrant",
        "unknown scope",
        {"resourceScope": "everything"},
        "spec.resourceScope",
        'supported values: "private", "team", "global"',
    ),
    ("AccessGrant", "upper-case role", {"grantorRole": "PM"}, "spec.grantorRole", PATTERN),
    ("AccessGrant", "slash in a role", {"grantorRole": "a/b"}, "spec.grantorRole", PATTERN),
    (
        "AccessGrant",
        "over-long role",
        {"grantorRole": "r" * 64},
        "spec.grantorRole",
        "may not be more than 63",
    ),
    (
        "AccessGrant",
        "over-long grantee",
        {"granteeAgent": LONG_NAME + "b"},
        "spec.granteeAgent",
        "may not be more than 253",
    ),
    (
        "AccessGrant",
        "grantee of another namespace",
        {"granteeAgent": "globex/bot"},
        "spec.granteeAgent",
        PATTERN,
    ),
    (
        "AccessGrant",
        "over-long reason",
        {"reason": "r" * 1025},
        "spec.reason",
        "may not be more than 1024",
    ),
    ("AccessGrant", "unknown field", {"org": "globex"}, "spec.org", "unknown field"),
    ("AccessGrant", "misspelt field", {"validto": "x"}, "spec.validto", "unknown field"),
    ("MemoryAgent", "role *", {"role": "*"}, "spec.role", PATTERN),
    ("MemoryAgent", "empty role", {"role": ""}, "spec.role", LENGTH),
    ("MemoryAgent", "no role", {"role": _ABSENT}, "spec.role", "Required value"),
    ("MemoryAgent", "line break in a role", {"role": "pm\n"}, "spec.role", PATTERN),
    (
        "MemoryAgent",
        "account *",
        {"serviceAccountName": "*"},
        "spec.serviceAccountName",
        PATTERN,
    ),
    (
        "MemoryAgent",
        "empty account",
        {"serviceAccountName": ""},
        "spec.serviceAccountName",
        LENGTH,
    ),
    ("MemoryAgent", "group *", {"groups": [{"name": "*"}]}, "spec.groups[0].name", PATTERN),
    ("MemoryAgent", "empty group", {"groups": [{"name": ""}]}, "spec.groups[0].name", LENGTH),
    (
        "MemoryAgent",
        "unknown access",
        {"groups": [{"name": "g", "access": "admin"}]},
        "spec.groups[0].access",
        'supported values: "read", "write"',
    ),
    (
        "MemoryAgent",
        "a group twice",
        {"groups": [{"name": "g"}, {"name": "g", "access": "write"}]},
        "spec.groups[1]",
        "Duplicate value",
    ),
    (
        "MemoryAgent",
        "65 groups",
        {"groups": [{"name": f"g{n}"} for n in range(65)]},
        "spec.groups",
        "must have at most 64 items",
    ),
    ("MemoryAgent", "unknown field", {"roles": ["a"]}, "spec.roles", "unknown field"),
    (
        "IdentityLink",
        "person *",
        {"person": {"provider": "slack", "id": "*"}},
        "spec.person.id",
        EVERYONE,
    ),
    (
        "IdentityLink",
        "alias *",
        {"aliases": [{"provider": "slack", "id": "*"}]},
        "spec.aliases[0].id",
        EVERYONE,
    ),
    (
        "IdentityLink",
        "provider *",
        {"person": {"provider": "*", "id": "U1"}},
        "spec.person.provider",
        PATTERN,
    ),
    (
        "IdentityLink",
        "empty provider",
        {"person": {"provider": "", "id": "U1"}},
        "spec.person.provider",
        LENGTH,
    ),
    (
        "IdentityLink",
        "over-long provider",
        {"person": {"provider": "p" * 33, "id": "U1"}},
        "spec.person.provider",
        "may not be more than 32",
    ),
    (
        "IdentityLink",
        "empty id",
        {"person": {"provider": "slack", "id": ""}},
        "spec.person.id",
        LENGTH,
    ),
    (
        "IdentityLink",
        "over-long id",
        {"person": {"provider": "slack", "id": "U" * 257}},
        "spec.person.id",
        "may not be more than 256",
    ),
    *(
        (
            "IdentityLink",
            f"id with {what}",
            {"person": {"provider": "slack", "id": id_}},
            "spec.person.id",
            PATTERN,
        )
        for what, id_ in {
            "a space": "U1 U2",
            "a space behind": "U1 ",
            "a no-break space": "U1\u00a0",
            "a line separator": "U1\u2028",
            "a tab": "U1\tU2",
            "a line break": "U1\n",
            "NUL": "U1\x00",
            "DEL": "U1\x7f",
            "a zero-width joiner": "U1\u200d",
            "a right-to-left override": "U1\u202e2U",
            "a byte order mark": "\ufeffU1",
        }.items()
    ),
    (
        "IdentityLink",
        "an alias twice",
        {"aliases": [{"provider": "x", "id": "1"}, {"provider": "x", "id": "1"}]},
        "spec.aliases[1]",
        "Duplicate value",
    ),
    (
        "IdentityLink",
        "17 aliases",
        {"aliases": [{"provider": "slack", "id": f"U{n}"} for n in range(17)]},
        "spec.aliases",
        "must have at most 16 items",
    ),
    ("IdentityLink", "no person", {"person": _ABSENT}, "spec.person", "Required value"),
    (
        "IdentityLink",
        "unknown field of a person",
        {"person": {"provider": "slack", "id": "U1", "name": "Ann"}},
        "spec.person.name",
        "unknown field",
    ),
]


@pytest.mark.parametrize(
    ("kind", "changes", "field", "why"),
    [pytest.param(k, c, f, w, id=f"{k}: {what}") for k, what, c, f, w in REFUSED],
)
def test_refuses(tenant: Organization, kind: str, changes: Json, field: str, why: str) -> None:
    spec = _spec(kind, changes)

    message = _refusal(tenant, kind, spec.get("agent", "any"), spec)

    assert field in message
    assert why in message


def test_refuses_an_identity_link_that_does_not_bear_its_agents_name(tenant: Organization) -> None:
    message = _refusal(tenant, "IdentityLink", "other", SPECS["IdentityLink"])

    assert "metadata.name must equal spec.agent" in message


@pytest.mark.parametrize("field", ["validFrom", "validTo"])
@pytest.mark.parametrize("way", [("create",), ("apply", "--server-side")], ids=" ".join)
def test_refuses_null_however_it_is_created(
    control_plane: cluster.Cluster, tenant: Organization, way: tuple[str, ...], field: str
) -> None:
    """An empty value in a template must not become a grant that has no end or is open at once."""
    body = _yaml(tenant.name, "AccessGrant", "null", _spec("AccessGrant", {field: None}))

    answer = control_plane.kubectl(*way, "-f", "-", input=body, check=False)

    assert f"{field} can't be null: give it an instant, or leave it out" in answer
    assert tenant.get("AccessGrant", "null") is None


def test_grants_nothing_by_a_null_that_kubectl_has_left_out(
    control_plane: cluster.Cluster, organization: Organization, zed: SyncClient
) -> None:
    """A client-side apply that creates an object sends no null, so the API server can't refuse it."""
    spec = _spec("AccessGrant", {"validTo": None})
    apply = ("apply", "-f", "-")
    control_plane.kubectl(*apply, input=_yaml(organization.name, "AccessGrant", "null", spec))

    organization.wait_condition("AccessGrant", "null", "False", "InvalidSpec")
    assert rows(zed, organization.name) == set()
    del spec["validTo"]
    control_plane.kubectl(*apply, input=_yaml(organization.name, "AccessGrant", "null", spec))
    organization.wait_ready("AccessGrant")
    assert len(rows(zed, organization.name)) == 2


def test_takes_null_for_absent_where_nothing_is_granted_by_it(tenant: Organization) -> None:
    created = _create(tenant, "AccessGrant", "any", _spec("AccessGrant", {"reason": None}))

    assert "reason" not in created["spec"]


Way = tuple[str, ...]
MERGE_PATCH: Way = ("patch", "--type=merge")
JSON_PATCH: Way = ("patch", "--type=json")
WHOLE: list[Way] = [("apply",), ("apply", "--server-side"), ("replace",)]
"""Ways to write a whole object, each with an object that came about in the same way."""


def _existing(
    plane: cluster.Cluster, tenant: Organization, way: Way, name: str, spec: Json
) -> None:
    first = ("create",) if way == ("replace",) else way
    plane.kubectl(*first, "-f", "-", input=_yaml(tenant.name, "AccessGrant", name, spec))


def _written(plane: cluster.Cluster, tenant: Organization, way: Way, name: str, spec: Json) -> str:
    body = _yaml(tenant.name, "AccessGrant", name, spec)
    return plane.kubectl(*way, "-f", "-", input=body, check=False)


def _patched(
    plane: cluster.Cluster, tenant: Organization, way: Way, kind: str, name: str, patch: Any
) -> str:
    return plane.kubectl(
        *way, kind, name, f"--namespace={tenant.name}", "--patch", json.dumps(patch), check=False
    )


@pytest.mark.parametrize("way", WHOLE, ids=" ".join)
def test_an_end_can_be_moved_and_added_but_not_taken_away(
    control_plane: cluster.Cluster, tenant: Organization, way: Way
) -> None:
    name = "-".join(way).replace("--", "")
    spec = _spec("AccessGrant", {})
    _existing(control_plane, tenant, way, name, spec)

    for end in ("2027-01-01T00:00:00Z", "2027-06-01T00:00:00Z", "2026-06-01T00:00:00Z"):
        _written(control_plane, tenant, way, name, spec | {"validTo": end})
        assert (tenant.get("AccessGrant", name) or {})["spec"]["validTo"] == end

    assert TAKEN_AWAY in _written(control_plane, tenant, way, name, spec)
    answer = _written(control_plane, tenant, way, name, spec | {"validTo": None})
    assert TAKEN_AWAY in answer or "validTo can't be null" in answer
    assert (tenant.get("AccessGrant", name) or {})["spec"]["validTo"] == end
    # Of the same manager, so that it is the rule that answers and no conflict.
    later = spec | {"validFrom": end}
    assert EARLIER in _written(control_plane, tenant, way, name, later | {"validTo": end})


def test_patches_move_an_end_but_do_not_take_it_away(
    control_plane: cluster.Cluster, tenant: Organization
) -> None:
    tenant.grant("patched", "bot", validTo="2027-01-01T00:00:00Z")

    def patched(way: Way, patch: Any) -> str:
        return _patched(control_plane, tenant, way, "agrant", "patched", patch)

    assert TAKEN_AWAY in patched(MERGE_PATCH, {"spec": {"validTo": None}})
    assert TAKEN_AWAY in patched(JSON_PATCH, [{"op": "remove", "path": "/spec/validTo"}])
    at_the_end = {"spec": {"validFrom": "2027-01-01T00:00:00Z"}}
    assert EARLIER in patched(MERGE_PATCH, at_the_end)
    assert UTC_SECONDS in patched(MERGE_PATCH, {"spec": {"validTo": "tomorrow"}})
    assert "patched" in patched(MERGE_PATCH, {"spec": {"validTo": "2028-01-01T00:00:00Z"}})
    assert "patched" in patched(MERGE_PATCH, {"spec": {"grantorRole": "cto", "granteeAgent": "x"}})
    assert (tenant.get("AccessGrant", "patched") or {})["spec"] == {
        "grantorRole": "cto",
        "granteeAgent": "x",
        "resourceScope": "private",
        "validTo": "2028-01-01T00:00:00Z",
    }


def test_the_agent_of_a_link_stays_and_its_person_may_change(
    control_plane: cluster.Cluster, tenant: Organization
) -> None:
    tenant.link("pm", "slack/U1")

    def patched(spec: Json) -> str:
        return _patched(control_plane, tenant, MERGE_PATCH, "ilink", "pm", {"spec": spec})

    answer = patched({"agent": "other"})
    assert "spec.agent: Invalid value" in answer
    assert "agent can't be changed: make a new IdentityLink" in answer
    assert "patched" in patched({"person": {"provider": "slack", "id": "U2"}})


def test_kubectl_refuses_unknown_fields(
    control_plane: cluster.Cluster, tenant: Organization
) -> None:
    body = _yaml(tenant.name, "MemoryAgent", "typo", {"role": "pm", "serviceAcountName": "x"})

    for way in (("create",), ("apply",), ("apply", "--server-side")):
        answer = control_plane.kubectl(*way, "-f", "-", input=body, check=False)
        assert "serviceAcountName" in answer
    assert tenant.get("MemoryAgent", "typo") is None


def test_the_definitions_are_small_enough_for_client_side_apply(
    control_plane: cluster.Cluster,
) -> None:
    """`kubectl apply` keeps each whole in an annotation, of which there may be 256 KiB."""
    for kind in SPECS:
        name = f"{kind.lower()}s.{GROUP}"
        definition = json.loads(control_plane.kubectl("get", "crd", name, "--output=json"))
        annotations = definition["metadata"]["annotations"]
        assert len(annotations["kubectl.kubernetes.io/last-applied-configuration"]) < 100_000
        assert {c["type"]: c["status"] for c in definition["status"]["conditions"]} == {
            "NamesAccepted": "True",
            "Established": "True",
        }


def test_applying_again_what_the_operator_has_touched_is_no_conflict(
    control_plane: cluster.Cluster, organization: Organization
) -> None:
    org = organization.name
    objects = "\n---\n".join(_yaml(org, k, s.get("agent", "pm"), s) for k, s in SPECS.items())
    apply = ("apply", "--server-side", "-f", "-")
    control_plane.kubectl(*apply, input=objects)
    for kind in SPECS:
        organization.wait_ready(kind)

    control_plane.kubectl(*apply, input=objects)

    for kind in SPECS:
        body = organization.get(kind, "pm") or {}
        assert body["metadata"]["generation"] == 1
        assert body["metadata"]["finalizers"] == [FINALIZER]
        for entry in body["metadata"]["managedFields"]:
            assert (entry["manager"] == FIELD_MANAGER) != ("f:spec" in entry["fieldsV1"])


def test_kubectl_shows_what_people_look_for(
    control_plane: cluster.Cluster, organization: Organization
) -> None:
    organization.agent("pm", role="lead")
    organization.link("pm", "slack/U0123ABC")
    organization.grant("oncall", "pm", role="sre", resourceScope="team", validTo=instant(3600))
    for kind in SPECS:
        organization.wait_ready(kind)
    organization.wait_condition("AccessGrant", "oncall", "True", type_="Active")
    end = (organization.get("AccessGrant", "oncall") or {})["spec"]["validTo"]

    def shown(what: str, *more: str) -> list[list[str]]:
        table = control_plane.kubectl("get", what, f"--namespace={organization.name}", *more)
        return [line.split() for line in table.replace("VALID TO", "VALID-TO").splitlines()]

    head, agent = shown("magent")
    assert head == ["NAME", "ROLE", "READY", "AGE"]
    assert agent[:3] == ["pm", "lead", "True"]
    head, agent = shown("magent", "--output=wide")
    assert head == ["NAME", "ROLE", "OWNER", "READY", "REASON", "AGE"]
    assert agent[:5] == ["pm", "lead", "slack/U0123ABC", "True", "Reconciled"]
    head, link = shown("ilink")
    assert head == ["NAME", "PROVIDER", "READY", "AGE"]
    assert link[:3] == ["pm", "slack", "True"]
    head, link = shown("ilink", "--output=wide")
    assert head == ["NAME", "PROVIDER", "PERSON", "READY", "REASON", "AGE"]
    head, grant = shown("agrant")
    assert head == ["NAME", "GRANTEE", "ROLE", "SCOPE", "WINDOW", "VALID-TO", "READY", "AGE"]
    assert grant[:7] == ["oncall", "pm", "sre", "team", "Active", end, "True"]

    names = {line[0] for line in shown("memory", "--no-headers")}
    assert names == {
        f"memoryagent.{GROUP}/pm",
        f"identitylink.{GROUP}/pm",
        f"accessgrant.{GROUP}/oncall",
    }
    everywhere = control_plane.kubectl("get", "magent,ilink,agrant", "--all-namespaces")
    assert sum(line.startswith(organization.name) for line in everywhere.splitlines()) == 3
