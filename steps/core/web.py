"""What a server on this machine checks of a request besides its key: the name that it is called by, and who asks.

Against DNS rebinding: a foreign page whose name points at 127.0.0.1 still sends that name in `Host`. Against posts from
other sites: a browser sends the page's address in `Origin`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

# uvicorn's options for every server: a request's line and headers have 64 KiB together. Its other parser, httptools, has no
# limit: a caller without a key could send 64 MB of them.
LIMITED: dict[str, Any] = {"http": "h11", "h11_max_incomplete_event_size": 65_536}


def host_name(header: str) -> str:
    """The name in a Host header, without the port and the brackets of IPv6; empty where it is none."""
    parts = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?", header.strip())
    return (parts[1] or parts[2]).lower() if parts else ""


def is_address(name: str) -> bool:
    """Whether this is an IP address, which no DNS server can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_foreign(origins: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether a page of another server asks. `origins` and `hosts`: the values of these headers."""
    return bool(origins) and (len(hosts) != 1 or any(each.partition("://")[2] != hosts[0] for each in origins))
