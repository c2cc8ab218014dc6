r"""Ids of SpiceDB objects: one injective, reversible encoding for names from any source.

SpiceDB allows ``[a-zA-Z0-9/_|\-=+]`` in an object id, at most 1024 of them, and reads ``*`` as
everyone. Names of people, roles and resources know no such limits, so every part of an id goes
through `encode` and the parts are joined by ``/``, which no encoded part can contain: two different
lists of parts never make the same id.
"""

import re
from dataclasses import dataclass

from memory_operator.errors import InvalidIdentityError

MAX_LENGTH = 1024
"""The longest object id that SpiceDB accepts, in characters (all of them ASCII)."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ENCODED = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")


def encode(part: str) -> str:
    """Encode one part of an id: every UTF-8 byte outside ``[A-Za-z0-9_-]`` becomes ``=XX``.

    Raises:
        InvalidIdentityError: the part is empty or is no valid Unicode (a lone surrogate).
    """
    if not part:
        raise InvalidIdentityError("an id can't have an empty part: give the name a value")
    try:
        data = part.encode()
    except UnicodeEncodeError as error:
        raise InvalidIdentityError(f"a name is no valid Unicode: {error.reason}") from error
    return "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in data)


def decode(encoded: str) -> str:
    """Reverse `encode`.

    Raises:
        InvalidIdentityError: the text is not what `encode` gives for any part.
    """
    if not _ENCODED.fullmatch(encoded):
        raise InvalidIdentityError(f"{encoded!r} is no encoded name")
    data = re.sub(rb"=([0-9A-F]{2})", lambda m: bytes.fromhex(m[1].decode()), encoded.encode())
    try:
        part = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidIdentityError(f"{encoded!r} does not hold UTF-8") from error
    if encode(part) != encoded:
        raise InvalidIdentityError(f"{encoded!r} encodes a character that stands for itself")
    return part


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of one cluster's objects; `prefix` keeps several clusters apart in one SpiceDB."""

    prefix: str = ""

    def join(self, *parts: str) -> str:
        """Encode and join the parts, the first of which is the organisation.

        Raises:
            InvalidIdentityError: a part is empty or not Unicode, or the id would be too long.
        """
        head = (self.prefix, *parts) if self.prefix else parts
        object_id = "/".join(encode(part) for part in head)
        if len(object_id) > MAX_LENGTH:
            # The parts stay unnamed: they may be a person's.
            raise InvalidIdentityError(
                f"an id would have {len(object_id)} characters once encoded; SpiceDB allows "
                f"{MAX_LENGTH}: use a shorter name or fewer special characters"
            )
        return object_id

    def split(self, object_id: str, count: int) -> tuple[str, ...] | None:
        """Give back the `count` parts of an id, or None if it is not one of this cluster's."""
        parts = object_id.split("/")
        if self.prefix:
            if parts[0] != encode(self.prefix):
                return None
            parts = parts[1:]
        if len(parts) != count:
            return None
        try:
            return tuple(decode(part) for part in parts)
        except InvalidIdentityError:
            return None
