"""The report of a job on a cluster: what it reads beside the status, and what it says of what it can't read."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.cli.conftest import WriteJob
from tests.cli.on_cluster import SPACE, Cluster, lead, put
from tests.cli.runs import status
from tests.cli.test_operator_presence import micro
from trainmaster_operator.cli.main import main
from trainmaster_operator.cluster.port import EVENT, Forbidden

SERIES = {
    "step": [[100.0, "1"], [115.0, "2"], [130.0, "3"]],
    "loss": [[100.0, "4.5"], [115.0, "NaN"], [130.0, "3.25"]],
    "tokens_per_second": [[100.0, "1000"], [130.0, "2000"]],
}


class Prometheus(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"][0]
        Prometheus.asked.append(query)
        name = query.removeprefix("max(trainmaster_job_").partition("{")[0]
        body = json.dumps({"data": {"result": [{"values": SERIES[name]}]}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Prometheus) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def page_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", "tiny", *arguments]) == 0
    return Path(capsys.readouterr().out.strip()).read_text()


def happened(cluster: Cluster, job: Any, name: str, at: str, message: str, count: int = 1) -> None:
    cluster.store.create(
        EVENT,
        {
            "apiVersion": "v1",
            "kind": EVENT,
            "metadata": {"name": name, "namespace": SPACE},
            "involvedObject": {"kind": job["kind"], "name": "tiny", "namespace": SPACE, "uid": job["metadata"]["uid"]},
            "type": "Warning",
            "reason": "Recovering",
            "message": message,
            "lastTimestamp": at,
            "count": count,
        },
    )


def test_the_events_of_the_job_stand_on_the_page_in_their_order(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = put(cluster.store, write_job(), now=status(step=60))
    happened(cluster, job, "b", "2026-11-26T04:00:00Z", "the second <one>", count=7)
    happened(cluster, job, "a", "2026-11-26T03:00:00Z", "the first one")
    page = page_of(capsys)
    assert "2026-11-26 03:00:00" in page
    assert page.index("the first one") < page.index("the second &lt;one&gt;")
    assert '<td class="number">7</td>' in page


def test_what_could_not_be_read_is_said(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(step=60))

    async def refuse(namespace: str, uid: str) -> Any:
        raise Forbidden("events is forbidden: User ann cannot list")

    cluster.events_about = refuse  # type: ignore[method-assign]
    page = page_of(capsys, "--prometheus", "http://127.0.0.1:9")
    assert "The events of the job could not be read: events is forbidden: User ann cannot list." in page
    assert "The metrics of the job could not be read: http://127.0.0.1:9 does not answer as a Prometheus does" in page
    assert "What this page does not know" in page


def test_the_curves_come_from_prometheus_where_it_is_named(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str], prometheus: str
) -> None:
    put(cluster.store, write_job(), now=status(step=60))
    assert "<h2>Loss</h2>" not in page_of(capsys)
    page = page_of(capsys, "--prometheus", prometheus)
    assert "<h2>Loss</h2>" in page
    assert "<h2>Throughput (tokens/s)</h2>" in page
    assert "No loss was recorded" not in page
    assert f'max(trainmaster_job_loss{{namespace="{SPACE}",job="tiny"}})' in Prometheus.asked


def test_the_page_says_that_no_operator_is_there(
    cluster: Cluster, write_job: WriteJob, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster.store, write_job(), now=status(step=60))
    lead(cluster.store, micro(time.time() - 7200))
    assert "No operator has led for 2h" in page_of(capsys)
