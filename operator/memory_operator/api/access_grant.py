"""AccessGrant: this agent may read what role R keeps in scope S, until `validTo`."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from memory_operator.api.common import Instant, Label, Model, ResourceName, Status

Scope = Literal["private", "team", "global"]


class AccessGrantSpec(
    Model,
    json_schema_extra={
        "x-kubernetes-validations": [
            # The API server drops a null that a field does not allow, as if nothing had been written,
            # and a grant would have no end by it. So null is allowed there and refused here: a null
            # field is none for has(), but it is among the keys.
            *(
                {
                    "rule": f"has(self.{field}) || dyn(self).all(key, key != '{field}')",
                    "message": f"{field} can't be null: give it an instant, or leave it out",
                    "fieldPath": f".{field}",
                }
                for field in ("validFrom", "validTo")
            ),
            {
                # Instants of this one form sort as text.
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

    valid_from: Annotated[Instant | None, Field(json_schema_extra={"nullable": True})] = None
    """The first instant at which the grant opens (UTC, whole seconds); default: its creation."""

    valid_to: Annotated[Instant | None, Field(json_schema_extra={"nullable": True})] = None
    """The first instant at which the grant is closed (UTC, whole seconds); without it, it has no end."""

    reason: Annotated[str | None, Field(max_length=1024)] = None
    """Why, for the people who read it later."""

    @field_validator("valid_from", "valid_to", mode="before")
    @classmethod
    def _null_is_no_instant(cls, value: object) -> object:
        # The API server refuses it too. Here nothing else stands between a typo and "for ever".
        if value is None:
            raise ValueError("null is no instant: leave the field out")
        return value

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
