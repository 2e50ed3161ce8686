"""The address of the API server and the credentials for it: from the pod in which this process runs, or from a
kubeconfig."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes.aio import client, config
from kubernetes.aio.config import ConfigException, incluster_config, kube_config
from yaml import YAMLError

from trainmaster_operator.cluster.environment_proxy import environment_proxy

# Seconds for which the credentials of a kubeconfig are used before they are read again; the client does the same for
# those of a pod.
REFRESH_S = 60.0

# Characters of what a plugin for credentials says that are shown.
MOST_CHARACTERS = 600


class NoCluster(Exception):
    """No cluster is configured, or the configuration is wrong. The message is a sentence for a person."""


async def load(kubeconfig: str | None = None, context: str | None = None) -> client.Configuration:
    """Return the configuration. Without `kubeconfig`: that of the pod in which this process runs, or else the
    default kubeconfig. `context`: a context of the kubeconfig, by default the current one. Raise NoCluster."""
    configuration = client.Configuration()
    if kubeconfig is None and in_a_pod():
        try:
            config.load_incluster_config(client_configuration=configuration)  # The client reads a rotated token again.
        except (ConfigException, OSError) as error:
            raise NoCluster(f"the service account of this pod: {error}") from error
    else:
        file = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        try:
            with _failures_of_plugins() as failures:
                loader = await config.load_kube_config(
                    file, context=context, client_configuration=configuration, persist_config=False
                )
        # For a file of another shape the loader raises any of these.
        except (ConfigException, OSError, YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise NoCluster(f"{file}: not a usable kubeconfig: {error}") from error
        if failures:
            raise NoCluster(f"{file}: the command that gives its credentials failed: {'; '.join(failures)}")
        configuration.refresh_api_key_hook = _refreshing(loader)
    configuration.proxy = configuration.proxy or environment_proxy(configuration.host)
    return configuration


def in_a_pod() -> bool:
    """Return whether this process runs in a pod with a service account."""
    return bool(os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME)) and os.path.exists(
        incluster_config.SERVICE_TOKEN_FILENAME
    )


@contextmanager
def _failures_of_plugins() -> Iterator[list[str]]:
    """Collect what the client logs in this context. If a plugin for credentials fails, it logs that in its own words
    and continues without credentials, so that the API server's refusal would be all that a user could understand."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(_plain(record.getMessage()))

    logger = logging.getLogger(kube_config.__name__)
    handler, propagate = Collector(logging.ERROR), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _plain(message: str) -> str:
    """Return a message of the client about a plugin in one line, with the plugin's own output as text."""
    what, quoted, output = message.removeprefix("exec: ").partition(". b")
    if quoted:
        try:
            output = ast.literal_eval(f"b{output}").decode(errors="replace")
        except (SyntaxError, ValueError):
            output = output.strip("'\"")
        what = f"{what}: {output}"
    return " ".join(what.split())[:MOST_CHARACTERS]


def _refreshing(loader: Any) -> Callable[[client.Configuration], Awaitable[None]]:
    """Return a hook that reads the credentials again, because tokens of a kubeconfig may come from a file or a
    plugin and expire after minutes."""
    due = asyncio.get_running_loop().time() + REFRESH_S

    async def refresh(configuration: client.Configuration) -> None:
        nonlocal due
        now = asyncio.get_running_loop().time()
        if now >= due:
            due = now + REFRESH_S  # The time is set first: while a plugin runs, other calls use the present token.
            await loader.load_and_set(configuration)

    return refresh
