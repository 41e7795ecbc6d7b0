"""Which network addresses a tool may connect to: public ones, and those that the user allows. No I/O.

The check stands where a socket is made for an address, after the name was resolved: between check and connection there
is no second look-up that could give another address, and every redirect makes a new connection.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import Any

from closeout.errors import UsageError

__all__ = ["AddressGuard", "is_public"]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# RFC 4291 and the IANA registry: all unicast addresses of the public internet. Outside of it lie forms that carry an
# IPv4 address (::a.b.c.d, ::ffff:0:a.b.c.d, 64:ff9b:1::) and site-local ones, which older Pythons take for global.
_UNICAST = ipaddress.ip_network("2000::/3")
_AZURE_HOST = ipaddress.ip_address("168.63.129.16")  # looks public; answers each virtual machine with its settings


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, looking through the ways to write IPv4 in IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is None and found not in _UNICAST:
            return False
        found = inner or found
    return found.is_global and not found.is_multicast and found != _AZURE_HOST


class AddressGuard:
    """Makes sockets for allowed addresses only; `refused` lists the others that were asked for."""

    def __init__(self, allow_private: bool | str | Iterable[str] = False) -> None:
        """`allow_private`: True for any address, or networks such as "10.0.0.0/8"."""
        self._any = allow_private is True
        networks = [allow_private] if isinstance(allow_private, str) else allow_private
        try:
            self._networks = [] if isinstance(networks, bool) else [ipaddress.ip_network(text) for text in networks]
        except ValueError as error:
            raise UsageError(f"allow_private: {error}. Write networks such as '10.0.0.0/8' or '127.0.0.1'.") from None

    def allows(self, address: str) -> bool:
        if self._any or is_public(address):
            return True
        bare = ipaddress.ip_address(address.partition("%")[0])
        return any(bare in network for network in self._networks if network.version == bare.version)

    def socket_factory(self, refused: list[str]) -> Callable[[Any], socket.socket]:
        """For aiohttp's connector: a socket for each address it is about to connect to, or `OSError`."""

        def make(info: tuple[Any, ...]) -> socket.socket:
            family, kind, protocol, _, target = info
            if not self.allows(str(target[0])):
                refused.append(str(target[0]))
                raise PermissionError(f"{target[0]} is no public address")
            return socket.socket(family=family, type=kind, proto=protocol)

        return make
