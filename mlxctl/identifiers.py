"""Identifiers by their first characters, as narrow listings show them."""

from __future__ import annotations

from collections.abc import Iterable

from mlxctl.errors import CtlError, ExitCode

_SHOWN = 5


def whole_id(given: str, known: Iterable[str], what: str) -> str:
    """The one of ``known`` that is ``given`` or begins with it; ``given`` where none does.

    Raises CtlError where several begin with it. ``what`` names the thing in that error.
    """
    known = dict.fromkeys(known)
    if given in known:
        return given
    found = [one for one in known if one.startswith(given)]
    if len(found) > 1:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CtlError(
            "ambiguous",
            f"{given!r} begins the id of more than one {what}: {', '.join(found[:_SHOWN])}{more}",
            ExitCode.USAGE,
            hint="give more of it",
        )
    return found[0] if found else given
