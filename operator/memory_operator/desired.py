"""Resource to relationships: what each custom resource wants SpiceDB to hold, decided without I/O.

Every relationship that the operator writes belongs to exactly one resource, its *unit*, and can be
found in two ways: by the unit's two filters (`filters_for`), which read what is there for one
resource, and by `unit_of`, which names the unit of any row, so that rows without a resource are seen.
Rows of other relations (`memory_fragment`, `pool#open_to`, persons in groups) are never ours.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from memory_operator import conditions
from memory_operator.api import (
    AccessGrantSpec,
    IdentityLinkSpec,
    Kind,
    MemoryAgentSpec,
    Model,
    ObjectKey,
    Resource,
    format_instant,
    window,
)
from memory_operator.conditions import Finding
from memory_operator.errors import InvalidIdentityError
from memory_operator.identity import Ids
from memory_operator.inventory import Inventory, service_account
from memory_operator.relationships import (
    GRANT_WINDOW,
    NOT_BEFORE,
    Caveat,
    Desired,
    Filter,
    Object,
    Relationship,
)

EXPIRATION_DELAY = timedelta(minutes=10)
"""How long after `validTo` SpiceDB throws the row away. The caveat alone ends access; the delay
makes sure that a datastore whose clock runs ahead ends nothing early."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is decided about one resource."""

    desired: Desired
    findings: tuple[Finding, ...] = ()
    """Conditions other than Ready."""

    refusal: Finding | None = None
    """Why the resource can't be Ready, if it can't."""

    status: tuple[tuple[str, str | None], ...] = ()
    """Further fields of the status, by their name in the API."""

    wake_at: datetime | None = None
    """When the decision changes by itself."""


ABSENT = Verdict(Desired())
"""The resource is gone or going: nothing of it may stay."""

OWNED_RELATIONS = (
    ("organization", "member"),
    ("group", "reader"),
    ("group", "writer"),
    ("agent", "owner"),
    ("person", "agent"),
    ("access_grant", "holder"),
    ("access_grant", "holder_until"),
    ("pool", "grant"),
)
"""All that the operator writes; what it may delete."""


def decide(
    key: ObjectKey, inventory: Inventory, ids: Ids, own_namespace: str, now: datetime
) -> Verdict:
    """Decide what SpiceDB should hold for one resource and what its status should say."""
    resource = inventory.get(key)
    if resource is None or resource.metadata.deleting:
        return ABSENT
    if key.namespace == own_namespace:
        return _refused(conditions.reserved_namespace(key.namespace))
    if resource.spec is None:
        return _refused(conditions.invalid_spec(resource.problem))
    try:
        match resource.spec:
            case MemoryAgentSpec():
                return _agent(resource, resource.spec, inventory, ids)
            case IdentityLinkSpec():
                return _link(resource, resource.spec, inventory, ids)
            case AccessGrantSpec():
                return _grant(resource, resource.spec, inventory, ids, now)
    except InvalidIdentityError as error:
        return _refused(conditions.invalid_spec(str(error)))
    raise AssertionError(f"no decision for a {type(resource.spec).__name__}")


def filters_for(key: ObjectKey, ids: Ids) -> tuple[Filter, Filter]:
    """Give the filters that together find every owned row of one resource, and no other."""
    match key.kind:
        case Kind.MEMORY_AGENT:
            agent = _agent_object(key.namespace, key.name, ids)
            return Filter("organization", "member", subject=agent), Filter("group", subject=agent)
        case Kind.IDENTITY_LINK:
            agent = _agent_object(key.namespace, key.name, ids)
            return Filter("agent", "owner", agent.id), Filter("person", "agent", subject=agent)
        case Kind.ACCESS_GRANT:
            grant = _grant_object(key, ids)
            return (
                Filter("access_grant", resource_id=grant.id),
                Filter("pool", "grant", subject=grant),
            )


def unit_of(relationship: Relationship, ids: Ids) -> ObjectKey | None:
    """Name the resource to which an owned row belongs; None for rows that are not ours."""
    match (relationship.resource.type, relationship.relation, relationship.subject.type):
        case ("organization", "member", "agent") | ("group", "reader" | "writer", "agent"):
            kind, object_id = Kind.MEMORY_AGENT, relationship.subject.id
        case ("agent", "owner", _):
            kind, object_id = Kind.IDENTITY_LINK, relationship.resource.id
        case ("person", "agent", "agent"):
            kind, object_id = Kind.IDENTITY_LINK, relationship.subject.id
        case ("access_grant", "holder" | "holder_until", _):
            kind, object_id = Kind.ACCESS_GRANT, relationship.resource.id
        case ("pool", "grant", "access_grant"):
            kind, object_id = Kind.ACCESS_GRANT, relationship.subject.id
        case _:
            return None
    parts = ids.split(object_id, 2)
    return ObjectKey(kind, *parts) if parts else None


def _refused(finding: Finding, *others: Finding) -> Verdict:
    return Verdict(Desired(), findings=others, refusal=finding)


def _agent_object(namespace: str, name: str, ids: Ids) -> Object:
    return Object("agent", ids.join(namespace, name))


def _grant_object(key: ObjectKey, ids: Ids) -> Object:
    return Object("access_grant", ids.join(key.namespace, key.name))


def _agent(
    resource: Resource[Model], spec: MemoryAgentSpec, inventory: Inventory, ids: Ids
) -> Verdict:
    namespace, name = resource.key.namespace, resource.key.name
    agent = inventory.agent(namespace, name)
    assert agent is not None  # it is neither deleting nor unreadable
    if rivals := inventory.rivals(agent):
        return _refused(*conditions.conflict(service_account(agent), rivals))
    subject = _agent_object(namespace, name, ids)
    rows = {Relationship(Object("organization", ids.join(namespace)), "member", subject)}
    for group in spec.groups:
        relation = "writer" if group.access == "write" else "reader"
        rows.add(Relationship(Object("group", ids.join(namespace, group.name)), relation, subject))
    link = inventory.link(namespace, name)
    owner = None
    if link and link.spec and link.spec.agent == name:
        owner = f"{link.spec.person.provider}/{link.spec.person.id}"
    return Verdict(Desired(frozenset(rows)), status=(("subject", str(subject)), ("owner", owner)))


def _link(
    resource: Resource[Model], spec: IdentityLinkSpec, inventory: Inventory, ids: Ids
) -> Verdict:
    namespace, name = resource.key.namespace, resource.key.name
    if spec.agent != name:
        return _refused(conditions.wrong_name(spec.agent))
    agent = _agent_object(namespace, spec.agent, ids)
    people = [
        Object("person", ids.join(namespace, person.provider, person.id))
        for person in (spec.person, *spec.aliases)
    ]
    rows = {Relationship(person, "agent", agent) for person in people}
    rows.add(Relationship(agent, "owner", people[0]))
    return Verdict(
        Desired(frozenset(rows)), (_found("AgentFound", resource, spec.agent, inventory),)
    )


def _grant(
    resource: Resource[Model], spec: AccessGrantSpec, inventory: Inventory, ids: Ids, now: datetime
) -> Verdict:
    namespace = resource.key.namespace
    opens, ends = window(spec, resource.metadata.created)
    grant = _grant_object(resource.key, ids)
    pool = Object("pool", ids.join(namespace, spec.grantor_role, spec.resource_scope))
    holder = _agent_object(namespace, spec.grantee_agent, ids)
    rows = frozenset({Relationship(pool, "grant", grant), _holding(grant, holder, opens, ends)})
    found = _found("GranteeFound", resource, spec.grantee_agent, inventory)
    status = (("validFrom", format_instant(opens)),)
    if ends and ends <= now:
        return Verdict(Desired(tolerated=rows), (conditions.expired(ends), found), status=status)
    if now < opens:
        return Verdict(
            Desired(rows), (conditions.pending(opens), found), status=status, wake_at=opens
        )
    return Verdict(Desired(rows), (conditions.active(ends), found), status=status, wake_at=ends)


def _holding(grant: Object, holder: Object, opens: datetime, ends: datetime | None) -> Relationship:
    valid_from = ("valid_from", format_instant(opens))
    if ends is None:
        return Relationship(grant, "holder", holder, Caveat(NOT_BEFORE, (valid_from,)))
    return Relationship(
        grant,
        "holder_until",
        holder,
        Caveat(GRANT_WINDOW, (valid_from, ("valid_to", format_instant(ends)))),
        expires_at=ends + EXPIRATION_DELAY,
    )


def _found(type_: str, resource: Resource[Model], agent: str, inventory: Inventory) -> Finding:
    namespace = resource.key.namespace
    return conditions.agent_found(
        type_,
        ObjectKey(Kind.MEMORY_AGENT, namespace, agent),
        found=inventory.agent(namespace, agent) is not None,
    )
