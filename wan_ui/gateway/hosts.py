"""The host names that the server answers to, and the pages that may send requests to the server.

IP addresses and `localhost` are always served. A machine behind a router or in a cloud does not know its public IP address, and
no other site can redirect an IP address to this server. All other names must be configured. Otherwise the owner of any domain
could point the domain at this server. A page of this domain could then read the server's responses (DNS rebinding).
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

_DEFAULT_PORTS = (None, 80, 443)


class Hosts:
    """The host names that the server answers to. `add` exists because the name of a share link is known only after the start."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name. From a URL such as https://name/ only the name is used."""
        host = (_split_address(name) or (None, None))[0]
        if host:
            self._names.add(host)

    def serves(self, host: str) -> bool:
        """Return whether the server answers requests with `host` in the Host header."""
        name, _ = _split_address(host) or ("", None)
        if name in self._names or name == "localhost":
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def is_own(self, origin: str, hosts: Iterable[str]) -> bool:
        """Return whether a page from `origin` belongs to the studio. `hosts` are the request's Host and X-Forwarded-Host.

        The page belongs to the studio if the name and port of `origin` equal the name and port of any of `hosts`. A proxy may
        forward neither header. Therefore a configured name with port 80 or 443 also belongs to the studio.
        """
        page = _split_address(origin) if origin.startswith(("http://", "https://")) else None
        if page is None:
            return False
        name, has_default_port = page[0], page[1] in _DEFAULT_PORTS
        if name in self._names and has_default_port:
            return True
        addresses = filter(None, map(_split_address, hosts))
        return any(
            address == page or (address[0] == name and has_default_port and address[1] in _DEFAULT_PORTS) for address in addresses
        )


def _split_address(address: str) -> tuple[str, int | None] | None:
    """Return the lower-case name and the port of a host or URL. Return None if the text cannot be parsed."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return ((parts.hostname or "").rstrip("."), parts.port) if parts.hostname and "@" not in parts.netloc else None
    except ValueError:
        return None
