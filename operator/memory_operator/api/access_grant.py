"""AccessGrant: this agent may read what role R keeps in scope S, until `validTo`."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from memory_operator.api.common import (
    FIRST_YEAR,
    LAST_YEAR,
    Instant,
    Label,
    Model,
    ResourceName,
    Status,
)

Scope = Literal["private", "team", "global"]


_FIRST = f"{FIRST_YEAR}-01-01T00:00:00Z"
_LAST = f"{LAST_YEAR}-12-31T23:59:59Z"


def _instant_rules(field: str) -> list[dict[str, str]]:
    # Instants of this one form sort as text, so the bounds need no parsing that could fail first.
    return [
        {
            "rule": f"!has(self.{field}) || (self.{field} >= '{_FIRST}' && self.{field} <= '{_LAST}')",
            "message": f"{field}: the year must lie between {FIRST_YEAR} and {LAST_YEAR}",
            "fieldPath": f".{field}",
        },
        {
            "rule": f"!has(self.{field}) || string(timestamp(self.{field})) == self.{field}",
            "message": f"{field}: no calendar has this day",
            "fieldPath": f".{field}",
        },
    ]


class AccessGrantSpec(
    Model,
    json_schema_extra={
        "x-kubernetes-validations": [
            *_instant_rules("validFrom"),
            *_instant_rules("validTo"),
            {
                "rule": "!has(self.validFrom) || !has(self.validTo) "
                "|| self.validTo > self.validFrom",
                "message": "validTo must be later than validFrom",
                "fieldPath": ".validTo",
            },
            {
                # A null in a merge patch, as `kubectl apply` sends it for an empty template value,
                # deletes the field: without this rule it would make the grant permanent.
                "rule": "!has(oldSelf.validTo) || has(self.validTo)",
                "message": "validTo can be moved but not taken away: for a grant without an end, "
                "delete this one and create it anew",
                "fieldPath": ".validTo",
            },
        ]
    },
):
    """Who may read what, and for how long. A grant covers reading only, within one organisation."""

    grantor_role: Label
    """Memories kept with this role become readable."""

    grantee_agent: ResourceName
    """The MemoryAgent that may read them."""

    resource_scope: Scope
    """Memories of this scope become readable."""

    valid_from: Instant | None = None
    """The first instant at which the grant opens (UTC, whole seconds); default: its creation."""

    valid_to: Instant | None = None
    """The first instant at which the grant is closed (UTC, whole seconds); without it, it has no end."""

    reason: Annotated[str | None, Field(max_length=1024)] = None
    """Why, for the people who read it later."""

    @model_validator(mode="after")
    def _window_is_not_empty(self) -> "AccessGrantSpec":
        if self.valid_from and self.valid_to and self.valid_to <= self.valid_from:
            raise ValueError("validTo must be later than validFrom")
        return self


class AccessGrantStatus(Status):
    """What became of the grant."""

    valid_from: Annotated[Instant | None, Field()] = None
    """The first instant at which the grant opens, also where the spec leaves it to the creation."""


def window(spec: AccessGrantSpec, created: datetime) -> tuple[datetime, datetime | None]:
    """Give the half-open window of a grant that was created at `created`."""
    return spec.valid_from or created, spec.valid_to
