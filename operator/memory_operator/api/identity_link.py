"""IdentityLink: this agent acts for this person."""

from typing import Annotated

from pydantic import Field

from memory_operator.api.common import Model, ResourceName, Status


class Person(Model):
    """One human in one channel."""

    provider: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z][a-z0-9-]*$")]
    """The channel that gave the id, for instance `slack`, `telegram` or `email`."""

    id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^[^\pZ\pC]+$",
            json_schema_extra={
                "x-kubernetes-validations": [
                    {"rule": "self != '*'", "message": "'*' would mean everyone: name one person"}
                ]
            },
        ),
    ]
    """The id that the channel gives the person, letter by letter (`U0123ABC`)."""


class IdentityLinkSpec(Model):
    """Whom the agent represents."""

    agent: Annotated[
        ResourceName,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "agent can't be changed: make a new IdentityLink",
                    }
                ]
            }
        ),
    ]
    """The MemoryAgent; also the name of this object, so that an agent has at most one link."""

    person: Person
    """The agent's owner: what this person took part in, the agent may recall."""

    aliases: Annotated[
        tuple[Person, ...],
        Field(
            max_length=16,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["provider", "id"],
            },
        ),
    ] = ()
    """The same human in other channels."""


class IdentityLinkStatus(Status):
    """What became of the link."""
