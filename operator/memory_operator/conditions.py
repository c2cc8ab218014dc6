"""The words of the status: one constructor for each situation, and nowhere else.

Messages name roles, agents and what to do; never a person.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from memory_operator.api import Condition, ObjectKey, format_instant

READY = "Ready"
ACTIVE = "Active"

_LONGEST_MESSAGE = 1024
"""What the CRDs allow; reasons of SpiceDB and lists of faults may be longer."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition before it has a generation and a time."""

    type: str
    status: bool
    reason: str
    message: str


def ready() -> Finding:
    """SpiceDB was read back and holds what the resource says."""
    return Finding(READY, True, "Reconciled", "SpiceDB holds what this resource says")


def _not_ready(reason: str, message: str) -> Finding:
    return Finding(READY, False, reason, message)


def invalid_spec(problem: str) -> Finding:
    """The spec can't be read or encoded; nothing is granted by it."""
    return _not_ready(
        "InvalidSpec", f"{problem}. Nothing is granted by this resource until it is changed"
    )


def reserved_namespace(namespace: str) -> Finding:
    """The resource lies in the operator's own namespace."""
    return _not_ready(
        "ReservedNamespace",
        f"{namespace} is the operator's own namespace and no organisation: "
        "create this resource in the organisation's namespace",
    )


def conflict(account: str, rivals: Iterable[str]) -> tuple[Finding, Finding]:
    """Two agents claim one ServiceAccount; neither is let in."""
    message = (
        f"ServiceAccount {account} is also claimed by MemoryAgent {', '.join(rivals)}: "
        "give each agent its own serviceAccountName"
    )
    return _not_ready("Conflict", message), Finding(
        "Conflict", True, "SharedServiceAccount", message
    )


def wrong_name(agent: str) -> Finding:
    """An IdentityLink whose name isn't its agent's."""
    return _not_ready(
        "InvalidName",
        f"an IdentityLink bears the name of its agent: create one named {agent} instead",
    )


def spicedb_unavailable(reason: str) -> Finding:
    """SpiceDB could not be asked."""
    return _not_ready(
        "SpiceDBUnavailable", f"{reason}. Tried again by itself; grants still end when they should"
    )


def spicedb_refused(reason: str) -> Finding:
    """SpiceDB refused what this resource asks for."""
    return _not_ready("SpiceDBRefused", f"SpiceDB refused the relationships: {reason}")


def schema_refused(reason: str) -> Finding:
    """SpiceDB holds another schema and refuses ours."""
    return _not_ready(
        "SchemaRefused",
        f"SpiceDB refuses the operator's schema, so nothing new is granted: {reason}",
    )


def contended() -> Finding:
    """Somebody else writes the same relationships all the time."""
    return _not_ready(
        "Contended",
        "SpiceDB did not keep what was written: another writer changes the same relationships. "
        "Look for a second operator on this SpiceDB",
    )


def spicedb_outdated(version: str) -> Finding:
    """The server is too old to end grants exactly."""
    return Finding(
        "SpiceDBOutdated",
        True,
        "UnsafeVersion",
        f"SpiceDB {version} is older than 1.57.1 and can let ended grants through: upgrade it",
    )


def agent_found(type_: str, key: ObjectKey, *, found: bool) -> Finding:
    """Whether the MemoryAgent that the resource names exists (AgentFound, GranteeFound)."""
    name = f"MemoryAgent {key.namespace}/{key.name}"
    if found:
        return Finding(type_, True, "Found", f"{name} exists")
    return Finding(
        type_, False, "NotFound", f"{name} does not exist (yet); it gets access once it does"
    )


def pending(valid_from: datetime) -> Finding:
    """The grant has not opened yet."""
    return Finding(ACTIVE, False, "Pending", f"opens at {format_instant(valid_from)}")


def active(valid_to: datetime | None) -> Finding:
    """The grant is open."""
    end = f"ends at {format_instant(valid_to)}" if valid_to else "has no end"
    return Finding(ACTIVE, True, "Active", end)


def expired(valid_to: datetime) -> Finding:
    """The grant is over."""
    return Finding(ACTIVE, False, "Expired", f"ended at {format_instant(valid_to)}")


def merge(
    before: Iterable[Condition], findings: Iterable[Finding], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Turn findings into conditions; a time moves only where the status turns."""
    known = {condition.type: condition for condition in before}
    merged = []
    for finding in findings:
        status = "True" if finding.status else "False"
        old = known.get(finding.type)
        since = old.last_transition_time if old and old.status == status else format_instant(now)
        merged.append(
            Condition(
                type=finding.type,
                status=status,
                reason=finding.reason,
                message=finding.message[:_LONGEST_MESSAGE],
                observed_generation=generation,
                last_transition_time=since,
            )
        )
    return tuple(merged)
