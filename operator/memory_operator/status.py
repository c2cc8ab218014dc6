"""What a resource's status should say, given what was decided and what happened."""

from dataclasses import dataclass
from datetime import datetime

from memory_operator import conditions
from memory_operator.api import Kind, Model, Resource, Status
from memory_operator.conditions import Finding
from memory_operator.desired import Verdict


@dataclass(slots=True)
class Server:
    """What is known of the SpiceDB server as a whole."""

    schema_problem: str = ""
    outdated_version: str = ""
    reachable: bool = False


def status_of(
    resource: Resource[Model],
    verdict: Verdict,
    server: Server,
    now: datetime,
    problem: Finding | None = None,
    zed_token: str = "",
) -> Status:
    """Give the whole status; one that says the same keeps its times and its ZedToken."""
    if not problem and server.schema_problem:
        problem = conditions.schema_refused(server.schema_problem)
    findings = [verdict.refusal or problem or conditions.ready(), *verdict.findings]
    if resource.key.kind is Kind.ACCESS_GRANT and server.outdated_version:
        findings.append(conditions.spicedb_outdated(server.outdated_version))
    generation = resource.metadata.generation
    return type(resource.status)(
        observedGeneration=generation,
        zedToken=zed_token or resource.status.zed_token,
        conditions=conditions.merge(
            resource.status.conditions, findings, generation=generation, now=now
        ),
        **dict(verdict.status),
    )
