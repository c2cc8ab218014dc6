"""Relationships as values, and the difference between those that are and those that should be.

`current` is always read back from SpiceDB and never kept in a status that can lag or be edited, so a
plan is right whatever happened before: a crash, a hand-made change, a restored backup.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

from memory_operator.api import format_instant

NOT_BEFORE = "not_before"
GRANT_WINDOW = "grant_window"


@dataclass(frozen=True, slots=True, order=True)
class Object:
    """An object of the SpiceDB schema; its string is ``type:id``."""

    type: str
    id: str

    def __str__(self) -> str:
        return f"{self.type}:{self.id}"


@dataclass(frozen=True, slots=True, order=True)
class Caveat:
    """The condition under which a relationship counts; context values are RFC 3339 instants."""

    name: str
    context: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        values = ",".join(f'"{key}":"{value}"' for key, value in self.context)
        return f"[{self.name}:{{{values}}}]"


@dataclass(frozen=True, slots=True)
class Relationship:
    """One row of SpiceDB; its string is the notation of zed and the Playground."""

    resource: Object
    relation: str
    subject: Object
    caveat: Caveat | None = None
    expires_at: datetime | None = None

    @property
    def row(self) -> tuple[Object, str, Object]:
        """What makes it unique in SpiceDB, whatever its caveat and expiration."""
        return (self.resource, self.relation, self.subject)

    def __str__(self) -> str:
        caveat = self.caveat or ""
        expiration = f"[expiration:{format_instant(self.expires_at)}]" if self.expires_at else ""
        return f"{self.resource}#{self.relation}@{self.subject}{caveat}{expiration}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows of one resource type, narrowed by whatever else is given."""

    resource_type: str
    relation: str | None = None
    resource_id: str | None = None
    resource_id_prefix: str | None = None
    subject: Object | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """What SpiceDB should hold for one resource."""

    required: frozenset[Relationship] = frozenset()
    tolerated: frozenset[Relationship] = frozenset()
    """May be there or be gone: an ended grant's rows, which SpiceDB throws away by itself."""


@dataclass(frozen=True, slots=True)
class Changes:
    """One write: touches and deletes that take effect together."""

    touch: frozenset[Relationship] = frozenset()
    delete: frozenset[Relationship] = frozenset()

    def __len__(self) -> int:
        return len(self.touch) + len(self.delete)

    @classmethod
    def union(cls, parts: Iterable["Changes"]) -> "Changes":
        """Put the changes of several resources into one write."""
        touch: set[Relationship] = set()
        delete: set[Relationship] = set()
        for part in parts:
            touch |= part.touch
            delete |= part.delete
        return cls(frozenset(touch), frozenset(delete))

    def applied_to(self, current: AbstractSet[Relationship]) -> frozenset[Relationship]:
        """Give what SpiceDB holds after the write."""
        rows = {relationship.row for relationship in self.touch | self.delete}
        return self.touch.union(item for item in current if item.row not in rows)

    def first(self, limit: int) -> "Changes":
        """Only so many of them, those that take access away before the others."""
        delete = sorted(self.delete, key=str)[:limit]
        touch = sorted(self.touch, key=str)[: limit - len(delete)]
        return Changes(frozenset(touch), frozenset(delete))

    def removals(self, current: AbstractSet[Relationship]) -> "Changes":
        """Only what takes access away: a row that would be replaced goes without a successor."""
        replaced = {relationship.row for relationship in self.touch}
        return Changes(delete=self.delete.union(item for item in current if item.row in replaced))


def plan(current: AbstractSet[Relationship], desired: Desired) -> Changes:
    """Decide what to write so that `current` becomes `desired`.

    A touch replaces a row of another caveat or expiration, so such a row is not deleted as well:
    SpiceDB refuses a request that names a row twice.
    """
    wanted = {relationship.row for relationship in desired.required}
    return Changes(
        touch=desired.required - current,
        delete=frozenset(
            relationship
            for relationship in current
            if relationship.row not in wanted and relationship not in desired.tolerated
        ),
    )
