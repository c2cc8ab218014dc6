"""MemoryAgent: an agent of an organisation, its role and its groups."""

from typing import Annotated, Literal

from pydantic import Field

from memory_operator.api.common import Label, Model, ResourceName, Status


class GroupMembership(Model):
    """An agent's place in a group of its organisation."""

    name: Label
    """The group, for instance `slack-eng`."""

    access: Literal["read", "write"] = "read"
    """`read`: recall what the group keeps. `write`: also add to it."""


class MemoryAgentSpec(Model):
    """What the organisation says of its agent. The agent's id is the object's name."""

    role: Label
    """The role with which the agent's memories are kept; AccessGrants name it as `grantorRole`."""

    service_account_name: ResourceName | None = None
    """The ServiceAccount under which the agent runs (default: the object's own name). Two agents
    can't share one: both are refused until only one names it."""

    groups: Annotated[
        tuple[GroupMembership, ...],
        Field(
            max_length=64,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = ()
    """The groups whose memories the agent reads, or reads and adds to."""


class MemoryAgentStatus(Status):
    """What became of the agent."""

    subject: Annotated[str | None, Field(max_length=1100)] = None
    """The agent as SpiceDB knows it, for instance `agent:acme/pm`."""

    owner: Annotated[str | None, Field(max_length=1100)] = None
    """The person for whom the agent acts, by its IdentityLink."""
