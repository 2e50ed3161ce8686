"""A cluster as tests see it: objects as plain dicts, and waiting by watches, never by sleeping."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import client, config

from e2e.processor_time import Limit

Object = dict[str, Any]
LONGEST_S = 240.0  # of any wait that a test doesn't limit itself
# Tests that run at once share the machine's cores, and each waits longer: the limits are for a test that is alone.
SHARING = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

PATHS = {
    "DistributedTrainingJob": ("apis/trainmaster.dev/v1alpha1", "distributedtrainingjobs"),
    "Pod": ("api/v1", "pods"),
    "Service": ("api/v1", "services"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "Event": ("api/v1", "events"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "PersistentVolume": ("api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "ControllerRevision": ("apis/apps/v1", "controllerrevisions"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "ValidatingWebhookConfiguration": ("apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
}
CLUSTERED = {"Namespace", "Node", "PersistentVolume", "CustomResourceDefinition", "ValidatingWebhookConfiguration"}
JOB = "DistributedTrainingJob"
MERGE = "application/merge-patch+json"


class Refused(Exception):
    """The API server said no: its code and its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Kube:
    """One cluster by a kubeconfig."""

    def __init__(self, kubeconfig: Path, kubectl: Path) -> None:
        self.kubeconfig, self._kubectl = kubeconfig, kubectl
        loaded = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=loaded)
        api = client.ApiClient(loaded)
        self._host = loaded.host
        self._pool: urllib3.PoolManager = api.rest_client.pool_manager
        self._loaded = loaded

    # -- one object

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        return self._call("GET", self._path(kind, namespace, name))

    def find(self, kind: str, name: str, namespace: str = "") -> Object | None:
        try:
            return self.get(kind, name, namespace)
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def create(self, obj: Object) -> Object:
        return self._call("POST", self._path(obj["kind"], obj["metadata"].get("namespace", "")), obj)

    def patch(self, kind: str, name: str, namespace: str, patch: Object) -> Object:
        return self._call("PATCH", self._path(kind, namespace, name), patch, content_type=MERGE)

    def patch_status(self, kind: str, name: str, namespace: str, patch: Object) -> Object:
        return self._call("PATCH", f"{self._path(kind, namespace, name)}/status", patch, content_type=MERGE)

    def delete(self, kind: str, name: str, namespace: str = "", grace_s: int | None = None) -> None:
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        self._call("DELETE", self._path(kind, namespace, name), options)

    def evict(self, pod: str, namespace: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        self._call("POST", f"{self._path('Pod', namespace, pod)}/eviction", body)

    def scale(self, deployment: str, namespace: str, replicas: int) -> None:
        self.patch("Deployment", deployment, namespace, {"spec": {"replicas": replicas}})

    def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        found: list[Object] = self._call("GET", self._path(kind, namespace), query={"labelSelector": labels})["items"]
        return found

    # -- waiting

    def wait(
        self,
        kind: str,
        name: str,
        namespace: str,
        until: Callable[[Object | None], Any],
        what: str,
        limit_s: float = LONGEST_S,
    ) -> Any:
        """What `until` returns once it is true of the object (None: there is none). Fails the test after the limit.

        `limit_s`: for a test that has the machine alone.
        """
        return self._wait(kind, f"metadata.name={name}", namespace, until, f"{name}: {what}", limit_s)

    def wait_event(self, reason: str, about: str, namespace: str, limit_s: float = 30.0) -> Object:
        """An Event with this reason about an object. The operator writes it shortly after the status it belongs to."""
        field = f"involvedObject.name={about},reason={reason}"
        found: Object = self._wait("Event", field, namespace, lambda event: event, f"{reason} of {about}", limit_s)
        return found

    def _wait(
        self, kind: str, field: str, namespace: str, until: Callable[[Object | None], Any], what: str, limit_s: float
    ) -> Any:
        limit_s *= SHARING
        limit = Limit(limit_s)
        last: Object | None = None
        trouble: list[str] = []
        for last in self._states(kind, namespace, field, limit, trouble):
            result = until(last)
            if result:
                return result
        told = "\n".join([f"meanwhile {limit.meanwhile().describe()}", *trouble, self.describe(namespace, last)])
        raise AssertionError(f"{kind} {namespace}/{what}: not within {limit_s:g} s\n{told}")

    def _states(
        self, kind: str, namespace: str, field: str, limit: Limit, trouble: list[str]
    ) -> Iterator[Object | None]:
        """Each state of one object, the present one first. Lists again when a watch breaks. `trouble` gets what the API
        server has refused since it last gave a list."""
        path = self._path(kind, namespace)
        while limit.left_s() > 0:
            try:
                listing = self._call("GET", path, query={"fieldSelector": field})
                trouble.clear()
                yield next(iter(listing["items"]), None)
                version = listing["metadata"]["resourceVersion"]
                for event in self._watch(path, field, version, limit):
                    if event["type"] == "ERROR":
                        break
                    yield None if event["type"] == "DELETED" else event["object"]
            except (urllib3.exceptions.HTTPError, Refused) as error:
                trouble[:] = [f"the last answer of the API server: {error}"]
                time.sleep(0.2)  # the API server is away: there is no event to wait for

    def _watch(self, path: str, field: str, version: str, limit: Limit) -> Iterator[Object]:
        left = max(1, int(limit.left_s()))
        query = {"fieldSelector": field, "watch": "1", "resourceVersion": version, "timeoutSeconds": str(left)}
        url = f"{self._host}/{path}?{urlencode(query)}"
        reply = self._pool.request("GET", url, headers=self._headers(), preload_content=False, timeout=left + 5)
        try:
            if reply.status >= 300:
                raise Refused(reply.status, reply.data.decode(errors="replace"))
            rest = b""
            for chunk in reply.stream(amt=None, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        finally:
            reply.close()

    # -- by the command line

    def command(self, *arguments: str) -> tuple[str, ...]:
        """Return the words that run kubectl for this cluster."""
        return (str(self._kubectl), f"--kubeconfig={self.kubeconfig}", *arguments)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def logs(self, pod: str, namespace: str, *arguments: str) -> str:
        return self.kubectl("logs", "-n", namespace, pod, *arguments, check=False)

    def describe(self, namespace: str, obj: Object | None) -> str:
        """What a person would look at when a wait failed: also that the API server doesn't answer."""
        try:
            return self._described(namespace, obj)
        except (urllib3.exceptions.HTTPError, Refused) as error:
            return f"the API server doesn't answer: {error}"

    def _described(self, namespace: str, obj: Object | None) -> str:
        parts = []
        if obj is not None:
            parts.append(yaml.safe_dump({"status": obj.get("status")}, sort_keys=False))
        if namespace:
            parts.append(self.kubectl("get", "pods,dtj", "-n", namespace, "-o", "wide", check=False))
            for event in self.list("Event", namespace)[-25:]:
                involved = event["involvedObject"]
                parts.append(f"{involved['kind']}/{involved.get('name')}: {event['reason']}: {event['message']}"[:300])
            for pod in self.list("Pod", namespace)[:4]:
                name = pod["metadata"]["name"]
                parts.append(f"--- log of {name}\n{self.logs(name, namespace, '--tail=15')}")
        return "\n".join(parts)

    # -- inside

    def _headers(self) -> dict[str, str]:
        """Each request asks for the token: one of a managed cluster expires within a run."""
        token = self._loaded.get_api_key_with_prefix("BearerToken", "authorization")
        return {"Accept": "application/json", **({"Authorization": token} if token else {})}

    def _path(self, kind: str, namespace: str, name: str = "") -> str:
        group, plural = PATHS[kind]
        middle = "" if kind in CLUSTERED or not namespace else f"namespaces/{namespace}/"
        return f"{group}/{middle}{plural}" + (f"/{name}" if name else "")

    def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        url = f"{self._host}/{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {**self._headers(), "Content-Type": content_type}
        reply = self._pool.request(
            method, url, body=None if body is None else json.dumps(body), headers=headers, timeout=30.0, retries=2
        )
        try:
            value: Object = json.loads(reply.data)
        except ValueError:
            value = {"message": reply.data.decode(errors="replace")}
        if reply.status >= 300:
            raise Refused(reply.status, str(value.get("message", "")))
        return value
