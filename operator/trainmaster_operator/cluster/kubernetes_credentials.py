"""Where the API server is and who we are: from the pod that we run in, or from a kubeconfig."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import client, config
from kubernetes.aio.config import ConfigException, incluster_config
from yaml import YAMLError

REFRESH_S = 60.0  # how long the credentials of a kubeconfig are believed to be fresh; those of a pod, likewise


class NoCluster(Exception):
    """No way to a cluster is configured, or it is configured wrongly: a sentence for a person."""


async def load(kubeconfig: str | None = None, context: str | None = None) -> client.Configuration:
    """Without `kubeconfig`: those of the pod that this process runs in, or else the default kubeconfig. `context`: of
    the kubeconfig, by default its current one. Raises NoCluster."""
    configuration = client.Configuration()
    if kubeconfig is None and in_a_pod():
        try:
            config.load_incluster_config(client_configuration=configuration)  # it reads a rotated token again
        except (ConfigException, OSError) as error:
            raise NoCluster(f"the service account of this pod: {error}") from error
    else:
        file = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        try:
            loader = await config.load_kube_config(
                file, context=context, client_configuration=configuration, persist_config=False
            )
        # The loader meets files of another shape with whatever exception comes first.
        except (ConfigException, OSError, YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise NoCluster(f"{file}: not a usable kubeconfig: {error}") from error
        configuration.refresh_api_key_hook = _refreshing(loader)
    configuration.proxy = configuration.proxy or environment_proxy(configuration.host)
    return configuration


def in_a_pod() -> bool:
    return bool(os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME)) and os.path.exists(
        incluster_config.SERVICE_TOKEN_FILENAME
    )


def environment_proxy(host: str) -> str | None:
    """The proxy that the environment names for this URL. NO_PROXY may hold ranges of addresses, as Go's does: the
    service range is commonly given so, and urllib alone would miss it."""
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
            continue  # not a range
    return False


def _refreshing(loader: Any) -> Callable[[client.Configuration], Awaitable[None]]:
    """Tokens of a kubeconfig may come from a file or a plugin, and end after minutes."""
    due = asyncio.get_running_loop().time() + REFRESH_S

    async def refresh(configuration: client.Configuration) -> None:
        nonlocal due
        now = asyncio.get_running_loop().time()
        if now >= due:
            due = now + REFRESH_S  # first: while a plugin runs, other calls go on with the token at hand
            await loader.load_and_set(configuration)

    return refresh
