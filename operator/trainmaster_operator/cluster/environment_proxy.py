"""The proxy on the way to the API server, as HTTPS_PROXY and NO_PROXY in the environment say.

A kubeconfig that names a proxy itself decides before them (kubernetes_credentials.py).
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def environment_proxy(host: str) -> str | None:
    """Return the proxy that the environment names for this URL, or None. NO_PROXY may contain address ranges, as in
    Go: the service range is often given in this way, and urllib ignores ranges."""
    parts = urlsplit(host)
    name = parts.hostname
    if not name or proxy_bypass(name) or _in_ranges(name, getproxies().get("no", "")):
        return None
    return getproxies().get(parts.scheme)


def _in_ranges(name: str, ranges: str) -> bool:
    try:
        address = ip_address(name)
    except ValueError:
        return False
    for text in ranges.split(","):
        try:
            if "/" in text and address in ip_network(text.strip(), strict=False):
                return True
        except ValueError:
            continue  # The entry is no range.
    return False
