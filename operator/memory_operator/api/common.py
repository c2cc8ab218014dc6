"""What the three kinds share: the base model, names, instants, metadata, conditions."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.functional_validators import BeforeValidator

_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_INSTANT = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ$"
)
FIRST_YEAR, LAST_YEAR = 1970, 9998
_INSTANT_RULE = "an instant is written in UTC and whole seconds, as 2027-01-31T18:00:00Z"
_YEAR_RULE = f"the year must lie between {FIRST_YEAR} and {LAST_YEAR}"
_DAY_RULE = "no calendar has this day"
_NO_DAY = r"-(02-3[01]|(04|06|09|11)-31)T"
_LEAP_DAY = r"-02-29T"
_LEAP_YEAR = r"^(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-"


class Kind(StrEnum):
    """The custom resources; the value is the kind as Kubernetes spells it."""

    MEMORY_AGENT = "MemoryAgent"
    IDENTITY_LINK = "IdentityLink"
    ACCESS_GRANT = "AccessGrant"

    @property
    def plural(self) -> str:
        """The name in URLs and in ``kubectl get``."""
        return f"{self.value.lower()}s"


class ObjectKey(NamedTuple):
    """One custom resource: the unit of reconciling."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.namespace}/{self.name}"


class Model(BaseModel):
    """Frozen, camelCase outside and snake_case inside; fields of newer versions are passed over.

    They are passed over and not refused, so that an operator that is rolled back does not take the
    access of every resource away; the API server has pruned what no version knows.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


def parse_instant(value: Any) -> datetime:
    """Read an instant in the one form that the API allows: UTC, whole seconds, ``…Z``.

    Raises:
        ValueError: another form, or a date that no calendar has.
    """
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not re.fullmatch(_INSTANT, value, re.ASCII):
        raise ValueError(_INSTANT_RULE)
    return datetime.fromisoformat(value)


def format_instant(value: datetime) -> str:
    """Write an instant as the API does: ``2027-01-31T18:00:00Z``."""
    # Not strftime: its %Y does not pad years below 1000 on every platform.
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _within_years(value: datetime) -> datetime:
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise ValueError(_YEAR_RULE)
    return value


def _matches(pattern: str) -> str:
    return f"self.matches(r'{pattern}')"


Instant = Annotated[
    datetime,
    BeforeValidator(parse_instant),
    AfterValidator(_within_years),
    PlainSerializer(format_instant),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": _INSTANT,
            "maxLength": 64,
            # The API server's word for a pattern is the pattern: these say what to do instead. All are
            # about text, since timestamp() of a bad one is an error that names no field.
            "x-kubernetes-validations": [
                {"rule": _matches(_INSTANT), "message": _INSTANT_RULE},
                {
                    "rule": f"self >= '{FIRST_YEAR}-' && self < '{LAST_YEAR + 1}-'",
                    "message": _YEAR_RULE,
                },
                {
                    "rule": f"!{_matches(_NO_DAY)} && "
                    f"(!{_matches(_LEAP_DAY)} || {_matches(_LEAP_YEAR)})",
                    "message": _DAY_RULE,
                },
            ],
        }
    ),
]
ResourceName = Annotated[str, Field(min_length=1, max_length=253, pattern=_SUBDOMAIN)]
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=_SUBDOMAIN)]
"""Names that people give to roles and groups."""


class Condition(Model):
    """One aspect of the state, as Kubernetes conventions have it."""

    type: Annotated[str, Field(max_length=63)]
    status: Annotated[str, Field(max_length=7, json_schema_extra={"enum": ["True", "False"]})]
    reason: Annotated[str, Field(max_length=63)]
    message: Annotated[str, Field(max_length=1024)]
    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
    last_transition_time: Annotated[str, Field(max_length=20)]


class Status(Model):
    """What the operator reports on every kind."""

    observed_generation: Annotated[
        int | None, Field(ge=0, json_schema_extra={"format": "int64"})
    ] = None
    """The generation of the spec that the rest of this status speaks of."""

    zed_token: Annotated[str | None, Field(max_length=1024)] = None
    """SpiceDB's token of the last write for this resource: reads at least as fresh see it."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = ()
    """Ready is True when SpiceDB was read back and holds what this resource says."""

    def condition(self, type_: str) -> Condition | None:
        """Give the condition of this type, if there is one."""
        return next((c for c in self.conditions if c.type == type_), None)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The part of an object's metadata that decisions use."""

    uid: str
    generation: int
    resource_version: str
    created: datetime
    deleting: bool
    finalizers: tuple[str, ...]
    manager: str
    """Who last wrote the spec, by field manager; empty if the API server does not say."""

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> "Metadata":
        """Read it from an object as the API server gives it."""
        return cls(
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            resource_version=metadata["resourceVersion"],
            created=parse_instant(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            finalizers=tuple(metadata.get("finalizers", ())),
            manager=_spec_manager(metadata.get("managedFields", ())),
        )


def _spec_manager(managed_fields: Iterable[Mapping[str, Any]]) -> str:
    writers = [
        (entry.get("time", ""), entry.get("manager", ""))
        for entry in managed_fields
        if "f:spec" in entry.get("fieldsV1", {})
    ]
    return str(max(writers, default=("", ""))[1])
