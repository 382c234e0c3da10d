"""Which web pages may reach the API: against DNS rebinding and cross-origin requests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from multidict import CIMultiDictProxy

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_CORS_METHODS = ("GET", "POST")
_CORS_EXPOSED = "X-Request-Id, Retry-After"
_CORS_MAX_AGE_SECONDS = 600

_HOST = re.compile(r"(?:\[(?P<literal>[0-9a-f.]*:[0-9a-f:.]*)\]|(?P<name>[^:\[\]]*))(?::\d*)?")
"""A Host header as RFC 9110 has it: a name or a bracketed literal, then nothing or a port."""


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's loopback by its spelling alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def host_name(value: str) -> str:
    """The name in a Host header: lower case, without port, brackets and final dot.

    A bare IPv6 address is one too. Empty for what is neither a name nor an address with at most
    a port behind it, such as ``[::1].evil.example``.
    """
    value = value.strip().lower()
    match = _HOST.fullmatch(value)
    if match is None:
        return value if _is_address(value) else ""
    return match["literal"] or (match["name"] or "").removesuffix(".")


class HostGuard:
    """Says which Host headers and origins are welcome.

    On loopback, a page whose name an attacker lets resolve to 127.0.0.1 still sends its own name
    as Host, so only loopback names and ``allowed_hosts`` are taken there. ``cors_origins`` are the
    origins whose pages may call the API; ``*`` stands for all.
    """

    def __init__(
        self, bound_to: str, allowed_hosts: Iterable[str], cors_origins: Iterable[str]
    ) -> None:
        self._checks_hosts = is_loopback(host_name(bound_to))
        self._hosts = frozenset(host_name(host) for host in allowed_hosts) - {""}
        self._origins = frozenset(origin.rstrip("/").lower() for origin in cors_origins)

    def refused_host(self, headers: CIMultiDictProxy[str]) -> str | None:
        """The Host header that is not welcome; None if all is well.

        A request without one comes from no browser.
        """
        if not self._checks_hosts:
            return None
        for value in headers.getall("Host", ()):
            name = host_name(value)
            if not is_loopback(name) and name not in self._hosts:
                return value
        return None

    def allows_origin(self, origin: str) -> bool:
        """Whether the settings let pages of this origin call the API."""
        return "*" in self._origins or origin.lower() in self._origins

    def refused_origin(
        self, method: str, scheme: str, headers: CIMultiDictProxy[str]
    ) -> str | None:
        """The origin whose page must not do this; None if all is well.

        Reading is left to the browser's own same-origin rule. A bearer token without cookies can
        not have been added by a browser on its own.
        """
        if method in _SAFE_METHODS:
            return None
        bearer = headers.get("Authorization", "").lower().startswith("bearer ")
        if bearer and "Cookie" not in headers:
            return None
        origin = _last(headers, "Origin")
        if origin is not None and self.allows_origin(origin):
            return None
        site = _last(headers, "Sec-Fetch-Site")
        if site is not None:
            return None if site in ("same-origin", "none") else origin or site
        if origin is None:
            return None
        return None if _same_origin(origin, scheme, _last(headers, "Host") or "") else origin

    def cors_headers(self, origin: str | None) -> Mapping[str, str]:
        """What tells a browser that a page of ``origin`` may read the answer."""
        if not self._origins:
            return {}
        if origin is None or not self.allows_origin(origin):
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _CORS_EXPOSED,
        }

    def is_preflight(self, method: str, headers: CIMultiDictProxy[str]) -> bool:
        """Whether this is a browser's question before the request that it is about."""
        return (
            method == "OPTIONS"
            and "Origin" in headers
            and "Access-Control-Request-Method" in headers
        )

    def preflight(
        self, headers: CIMultiDictProxy[str], methods: Iterable[str] = _CORS_METHODS
    ) -> Mapping[str, str] | None:
        """The answer to a preflight; None if pages of its origin may not call.

        ``methods`` are those of the route.
        """
        if not self.allows_origin(headers.get("Origin", "")):
            return None
        asked = headers.get("Access-Control-Request-Headers", "Authorization, Content-Type")
        return {
            "Access-Control-Allow-Methods": ", ".join(sorted({*methods, "OPTIONS"})),
            "Access-Control-Allow-Headers": asked,
            "Access-Control-Max-Age": str(_CORS_MAX_AGE_SECONDS),
        }


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _last(headers: CIMultiDictProxy[str], name: str) -> str | None:
    values = headers.getall(name, ())
    return values[-1] if values else None


def _same_origin(origin: str, scheme: str, host: str) -> bool:
    try:
        parts, own = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        return _place(parts.scheme, parts.hostname, parts.port) == _place(
            own.scheme, own.hostname, own.port
        )
    except ValueError:
        return False


def _place(scheme: str, host: str | None, port: int | None) -> tuple[str, str | None, int | None]:
    return scheme, host, port or {"http": 80, "https": 443}.get(scheme)
