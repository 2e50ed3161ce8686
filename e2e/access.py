"""Reaches the cluster under test: its API, the programs that talk to it, and the chart that one run of tests has."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import yaml
from kubernetes import config

from e2e.cluster import places
from e2e.installation import Installation
from e2e.kube import Kube
from e2e.machine import Site, site

INSTALLED = "E2E_INSTALLED"
"""Set in the environment of tests that find the chart installed: several processes of one run share it."""


class AccessError(Exception):
    """Why the tests can't run, as one sentence for a person."""


def chosen() -> Site:
    """Return the cluster that E2E_CLUSTER names: `own` (the default), `kind` or `current`."""
    name = os.environ.get("E2E_CLUSTER") or "own"
    try:
        return site(name)
    except KeyError:
        raise AccessError(f"E2E_CLUSTER is {name}: it must be own, kind or current") from None


def connect(cluster: Site) -> Kube:
    """Return the cluster's API. Raises AccessError if there is no cluster, no usable kubeconfig or no kubectl."""
    if not cluster.kubeconfig.exists():
        raise AccessError(f"no cluster: {cluster.kubeconfig} is missing (`make cluster` starts one)")
    try:
        return Kube(cluster.kubeconfig, _program("kubectl"))
    except (config.ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise AccessError(f"{cluster.kubeconfig} is no kubeconfig that can be used: {error}") from None


@contextmanager
def installation(kube: Kube) -> Iterator[Installation]:
    """Give the installed chart. The first process of a run installs it, and uninstalls it at the end.

    Raises AccessError if another run has the cluster, since two would take the chart from each other, or if the chart
    can't be installed: then what there is of it is uninstalled.
    """
    chart = Installation(kube, _program("helm"))
    if os.environ.get(INSTALLED):
        yield chart
        return
    with _lock_file(kube.kubeconfig) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AccessError(f"another run of these tests has the cluster of {kube.kubeconfig}") from None
        try:
            chart.install()
        except AssertionError as error:
            with suppress(AssertionError):
                chart.uninstall()
            raise AccessError(f"the chart can't be installed: {error}") from None
        try:
            yield chart
        finally:
            chart.uninstall()


def _lock_file(kubeconfig: Path) -> TextIO:
    """Open a file that all runs on this cluster share: beside its kubeconfig, since the cluster may be anybody's."""
    path = kubeconfig.with_name(f".{kubeconfig.name}.e2e")
    try:
        return path.open("w")
    except OSError as error:
        words = f"copy {kubeconfig} to a folder of your own, and set KUBECONFIG to it"
        raise AccessError(f"no lock can be taken at {path} ({error.strerror}): {words}") from None


def _program(name: str) -> Path:
    """Return the one that was built here, else the machine's."""
    built, found = places.BIN / name, shutil.which(name)
    if built.exists():
        return built
    if found is None:
        raise AccessError(f"{name} isn't on the PATH")
    return Path(found)
