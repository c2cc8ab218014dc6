"""What SpiceDB should hold by the custom resources, worked out anew and as plainly as possible.

This is the judge of the operator, so it shares no code with it.
"""

import string
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]
_PLAIN = frozenset(string.ascii_letters + string.digits + "_-")


def expected_rows(bodies: Iterable[Json], *, prefix: str = "") -> set[str]:
    """Give the rows, in zed's notation, that objects as the API server gives them stand for.

    Objects on their way out stand for none, and neither do ended grants: of those, SpiceDB may keep
    the rows for ten minutes, see `ended_rows`.
    """
    living = [body for body in bodies if "deletionTimestamp" not in body["metadata"]]
    accounts = Counter(_account(body) for body in living if body["kind"] == "MemoryAgent")
    found: set[str] = set()
    for body in living:
        shared = body["kind"] == "MemoryAgent" and accounts[_account(body)] > 1
        if not shared and not _has_ended(body):
            found |= _rows(body, prefix)
    return found


def ended_rows(bodies: Iterable[Json], *, prefix: str = "") -> set[str]:
    """Give the rows that may still be there of grants that are over."""
    return {row for body in bodies if _has_ended(body) for row in _rows(body, prefix)}


def _rows(body: Json, prefix: str) -> set[str]:
    spec, name = body["spec"], body["metadata"]["name"]

    def object_id(*parts: str) -> str:
        namespace = body["metadata"]["namespace"]
        whole = (prefix, namespace, *parts) if prefix else (namespace, *parts)
        return "/".join(_encoded(part) for part in whole)

    match body["kind"]:
        case "MemoryAgent":
            agent = f"agent:{object_id(name)}"
            return {f"organization:{object_id()}#member@{agent}"} | {
                f"group:{object_id(group['name'])}#"
                f"{'writer' if group['access'] == 'write' else 'reader'}@{agent}"
                for group in spec.get("groups", ())
            }
        case "IdentityLink":
            agent = f"agent:{object_id(spec['agent'])}"
            people = [
                f"person:{object_id(person['provider'], person['id'])}"
                for person in (spec["person"], *spec.get("aliases", ()))
            ]
            return {f"{agent}#owner@{people[0]}"} | {f"{each}#agent@{agent}" for each in people}
        case _:
            grant = f"access_grant:{object_id(name)}"
            pool = f"pool:{object_id(spec['grantorRole'], spec['resourceScope'])}"
            holder = f"agent:{object_id(spec['granteeAgent'])}"
            opens = spec.get("validFrom") or body["metadata"]["creationTimestamp"]
            return {f"{pool}#grant@{grant}", f"{grant}#{_holding(holder, opens, spec)}"}


def _holding(holder: str, opens: str, spec: Json) -> str:
    ends = spec.get("validTo")
    if ends is None:
        return f'holder@{holder}[not_before:{{"valid_from":"{opens}"}}]'
    thrown_away = (_parsed(ends) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    window = f'[grant_window:{{"valid_from":"{opens}","valid_to":"{ends}"}}]'
    return f"holder_until@{holder}{window}[expiration:{thrown_away}]"


def _has_ended(body: Json) -> bool:
    ends = body["spec"].get("validTo") if body["kind"] == "AccessGrant" else None
    return ends is not None and _parsed(ends) <= datetime.now(UTC)


def _account(body: Json) -> tuple[str, str]:
    metadata = body["metadata"]
    return metadata["namespace"], body["spec"].get("serviceAccountName") or metadata["name"]


def _parsed(instant: str) -> datetime:
    return datetime.fromisoformat(instant)


def _encoded(part: str) -> str:
    return "".join(
        each if each in _PLAIN else "".join(f"={byte:02X}" for byte in each.encode())
        for each in part
    )
