"""What is known of the custom resources: the newest state of each, and who depends on whom.

A plain in-memory picture of the API server, fed by the watch, by the drift check's lists and by the
answers to our own patches. It decides nothing and talks to nobody.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from memory_operator.api import (
    AccessGrantSpec,
    IdentityLinkSpec,
    Kind,
    MemoryAgentSpec,
    Model,
    ObjectKey,
    Resource,
)

_SpecT = TypeVar("_SpecT", bound=Model)


def service_account(agent: Resource[MemoryAgentSpec]) -> str:
    """Name the ServiceAccount of an agent whose spec could be read."""
    assert agent.spec is not None
    return agent.spec.service_account_name or agent.key.name


class Inventory:
    """All resources by key, with the look-ups that decisions need."""

    def __init__(self) -> None:
        self._resources: dict[ObjectKey, Resource[Model]] = {}
        self._agents_by_account: dict[tuple[str, str], set[ObjectKey]] = defaultdict(set)
        self._grants_by_grantee: dict[tuple[str, str], set[ObjectKey]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._resources)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(tuple(self._resources))

    def get(self, key: ObjectKey) -> Resource[Model] | None:
        """Give the resource, or None where there is none."""
        return self._resources.get(key)

    def put(self, resource: Resource[Model]) -> set[ObjectKey]:
        """Take in a state; give the other resources whose state depends on what changed."""
        before = self.remove(resource.key)
        self._resources[resource.key] = resource
        self._index(resource, add=True)
        return before | self._dependents(resource)

    def remove(self, key: ObjectKey) -> set[ObjectKey]:
        """Forget a resource; give those that depended on it."""
        resource = self._resources.pop(key, None)
        if resource is None:
            return set()
        dependents = self._dependents(resource)
        self._index(resource, add=False)
        return dependents

    def agent(self, namespace: str, name: str) -> Resource[MemoryAgentSpec] | None:
        """Give a MemoryAgent that is there to stay and could be read."""
        return _living(self.get(ObjectKey(Kind.MEMORY_AGENT, namespace, name)), MemoryAgentSpec)

    def link(self, namespace: str, agent: str) -> Resource[IdentityLinkSpec] | None:
        """Give the IdentityLink of an agent."""
        return _living(self.get(ObjectKey(Kind.IDENTITY_LINK, namespace, agent)), IdentityLinkSpec)

    def rivals(self, agent: Resource[MemoryAgentSpec]) -> list[str]:
        """Name the other agents that claim the same ServiceAccount, in order."""
        claims = self._agents_by_account[(agent.key.namespace, service_account(agent))]
        return sorted(
            key.name
            for key in claims
            if key != agent.key and not self._resources[key].metadata.deleting
        )

    def _index(self, resource: Resource[Model], *, add: bool) -> None:
        index, name = None, ""
        if isinstance(resource.spec, MemoryAgentSpec):
            index = self._agents_by_account
            name = resource.spec.service_account_name or resource.key.name
        elif isinstance(resource.spec, AccessGrantSpec):
            index, name = self._grants_by_grantee, resource.spec.grantee_agent
        if index is None:
            return
        place = (resource.key.namespace, name)
        if add:
            index[place].add(resource.key)
        else:
            index[place].discard(resource.key)
            if not index[place]:
                del index[place]

    def _dependents(self, resource: Resource[Model]) -> set[ObjectKey]:
        kind, namespace, name = resource.key
        match kind:
            case Kind.MEMORY_AGENT:
                account = name
                if isinstance(resource.spec, MemoryAgentSpec):
                    account = resource.spec.service_account_name or name
                dependents = set(self._agents_by_account.get((namespace, account), ()))
                dependents |= self._grants_by_grantee.get((namespace, name), set())
                dependents.add(ObjectKey(Kind.IDENTITY_LINK, namespace, name))
            case Kind.IDENTITY_LINK:
                dependents = {ObjectKey(Kind.MEMORY_AGENT, namespace, name)}
            case Kind.ACCESS_GRANT:
                dependents = set()
        dependents.discard(resource.key)
        return {key for key in dependents if key in self._resources}


def _living(resource: Resource[Model] | None, spec: type[_SpecT]) -> Resource[_SpecT] | None:
    if resource is None or resource.metadata.deleting or not isinstance(resource.spec, spec):
        return None
    return resource  # type: ignore[return-value]  # the spec was just checked
