"""Which host names the server answers to, and which pages may send it requests.

An address in numbers and `localhost` are always served: a machine behind a router or a cloud's address does not know its outer
number, and no foreign site can make a number point here. Names must be given, because the owner of a domain can make it point
at this server and then read as its own page whatever the server sends (DNS rebinding).
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

_DEFAULT_PORTS = (None, 80, 443)


class Hosts:
    """The names that are served. More can be added later: that of a share link is known after the start."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Serves this name, also; an address such as https://name/ counts as its name."""
        host = (_parts(name) or (None, None))[0]
        if host:
            self._names.add(host)

    def serves(self, host: str) -> bool:
        """Whether requests to this host, as in a Host header, are answered."""
        name, _ = _parts(host) or ("", None)
        return name in self._names or name == "localhost" or _is_number(name)

    def is_own(self, origin: str, hosts: Iterable[str]) -> bool:
        """Whether a page from this origin is ours, for a request to these hosts (Host and X-Forwarded-Host).

        It is if it has the name and the port of one of them. Behind a proxy that passes on neither, it is if its name was given
        to the server and its port is the web's own.
        """
        page = _parts(origin) if origin.startswith(("http://", "https://")) else None
        if page is None:
            return False
        is_given = page[0] in self._names and page[1] in _DEFAULT_PORTS
        return is_given or any(_is_same(page, _parts(host)) for host in hosts)


def _is_same(page: tuple[str, int | None], host: tuple[str, int | None] | None) -> bool:
    if host is None or page[0] != host[0]:
        return False
    return page[1] == host[1] or (page[1] in _DEFAULT_PORTS and host[1] in _DEFAULT_PORTS)


def _parts(address: str) -> tuple[str, int | None] | None:
    """The name in small letters and the port of a host or an address; None if it cannot be read."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return ((parts.hostname or "").rstrip("."), parts.port) if parts.hostname and "@" not in parts.netloc else None
    except ValueError:
        return None


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
