"""Metrics on a real cluster: who may read them, over which certificate, and that they tell of jobs what is so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from e2e.installation import NAMESPACE
from e2e.kube import SHARING
from e2e.processor_time import Limit
from e2e.world import PLAIN, World

READER = "trainmaster-metrics-reader"
FETCH = """
import http.client, json, socket, ssl, sys
token, host, name = sys.argv[1:]

class Connection(http.client.HTTPSConnection):
    def connect(self):
        http.client.HTTPConnection.connect(self)  # to one replica's address; each has the certificate of `name`
        self.sock = ssl.create_default_context(cafile="/ca/ca.crt").wrap_socket(self.sock, server_hostname=name)

def fetched(address):
    connection = Connection(address, 8444, timeout=20)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()

found = socket.getaddrinfo(host, 8444, type=socket.SOCK_STREAM)
print(json.dumps([fetched(address) for address in sorted({item[4][0] for item in found})]))
"""


class Scraper:
    """A pod in the operator's namespace that trusts what the operator publishes, and fetches with any token."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, f"scraper-{world.namespace}"

    def __enter__(self) -> Scraper:
        kube = self.world.kube
        bundle = {"name": "trainmaster-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        container = {
            "name": "main",
            "image": PLAIN,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "600"],
            "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        }
        kube.create(
            {
                "kind": "Pod",
                "metadata": {"name": self.name, "namespace": NAMESPACE},
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "ca", "configMap": bundle}],
                    "terminationGracePeriodSeconds": 0,
                },
            }
        )
        try:
            kube.wait("Pod", self.name, NAMESPACE, _runs, "the scraper runs", 60)
        except AssertionError:
            self.__exit__()  # nobody else would: it lies in the operator's namespace
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.world.kube.delete("Pod", self.name, NAMESPACE, grace_s=0)

    def pages(self, token: str = "") -> list[tuple[int, str]]:
        """What each replica answers. The Service has an address for each of them, and whoever asks for one by name gets
        the same one each time: that which is nearest to its own (RFC 6724)."""
        command = ["exec", "-n", NAMESPACE, self.name, "--", "python3", "-c", FETCH]
        hosts = (f"{service}.{NAMESPACE}.svc" for service in ("trainmaster-operator-metrics", "trainmaster-operator"))
        return [(status, text) for status, text in json.loads(self.world.kube.kubectl(*command, token, *hosts))]

    def get(self, token: str = "") -> tuple[int, str]:
        """What the replicas answer, all with the same status; the text of one of them."""
        pages = self.pages(token)
        (status,) = {status for status, _ in pages}
        return status, pages[0][1]

    def leader_tells(self, token: str, words: str, absent: str = "", limit_s: float = 60.0) -> str:
        """The text of the replica that leads, once it has `words` and not those of `absent`."""
        limit = Limit(limit_s * SHARING)
        ours, told = f'namespace="{self.world.namespace}"', "no replica said that it leads"
        while limit.left_s() > 0:
            for status, text in self.pages(token):
                assert status == 200
                if "trainmaster_leader 1.0" in text:
                    if words in text and not (absent and absent in text):
                        return text
                    told = "\n".join(line for line in text.splitlines() if ours in line)
            time.sleep(0.5)
        without = f" without {absent}" if absent else ""
        raise AssertionError(f"the leader does not tell {words}{without}, but of this namespace: {told}")


def _runs(pod: dict[str, object] | None) -> bool:
    status = (pod or {}).get("status")
    return isinstance(status, dict) and status.get("phase") == "Running"


@pytest.fixture
def account(world: World) -> Callable[[str, bool], str]:
    """Makes a ServiceAccount, lets it read metrics or not, and returns a token of it."""

    def make(name: str, may_read: bool) -> str:
        kube, space = world.kube, world.namespace
        kube.kubectl("create", "serviceaccount", name, "-n", space)
        if may_read:
            binding = f"{name}-{space}"
            kube.kubectl(
                *("create", "clusterrolebinding", binding),
                *(f"--clusterrole={READER}", f"--serviceaccount={space}:{name}"),
            )
        return kube.kubectl("create", "token", name, "-n", space).strip()

    return make


def test_metrics_are_for_those_who_may_read_them(world: World, account: Callable[[str, bool], str]) -> None:
    allowed, other = account("prometheus", True), account("somebody", False)
    try:
        with Scraper(world) as scraper:
            status, text = scraper.get()
            assert (status, "a bearer token is missing" in text) == (401, True)
            status, text = scraper.get("invented")
            assert (status, "does not recognise this token" in text) == (401, True)
            status, text = scraper.get(other)
            assert (status, f"{world.namespace}:somebody may not get /metrics" in text) == (403, True)
            assert scraper.get(allowed)[0] == 200
    finally:
        world.kube.kubectl("delete", "clusterrolebinding", f"prometheus-{world.namespace}", "--ignore-not-found")


def test_metrics_tell_of_a_job_from_its_beginning_to_its_end(world: World, account: Callable[[str, bool], str]) -> None:
    token = account("prometheus", True)
    job = f'namespace="{world.namespace}",job="job"'
    try:
        with Scraper(world) as scraper:
            never = world.script(
                ["true"],
                name="never",
                image="docker.io/library/there-is-none:e2e",
                container={"imagePullPolicy": "Never"},
            )
            world.kube.apply(never)
            waits = f'trainmaster_job_pending_seconds{{namespace="{world.namespace}",job="never",reason="ImageError"}}'
            scraper.leader_tells(token, waits)
            world.submit(world.training(steps=200))
            world.wait_step(30)
            text = scraper.leader_tells(token, f'trainmaster_job_phase{{{job},phase="Running"}} 1')
            assert f'trainmaster_job_failures_total{{{job},cause="Crash"}} 0' in text
            for name in ("cpu_seconds_total", "network_receive_bytes_total", "network_transmit_bytes_total"):
                assert value(text, f"trainmaster_job_{name}{{{job}}}") > 0
            world.succeeded()
            text = scraper.leader_tells(token, f'trainmaster_job_phase{{{job},phase="Succeeded"}} 1')
            assert f"trainmaster_job_step{{{job}}}" not in text
            world.delete("job")
            world.delete("never")
            scraper.leader_tells(token, "trainmaster_jobs", absent=f'namespace="{world.namespace}"')
    finally:
        world.kube.kubectl("delete", "clusterrolebinding", f"prometheus-{world.namespace}", "--ignore-not-found")


def value(text: str, series: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(line.rsplit(" ", 1)[1])
