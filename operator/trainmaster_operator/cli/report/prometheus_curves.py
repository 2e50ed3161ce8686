"""Curves of a job on a cluster, from a Prometheus that scrapes the operator."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.cli.report.metrics_file import Points, thinned

SAMPLES = 1000  # Maximum number of samples of a query; Prometheus refuses more than 11,000.
SHORTEST_STEP_S = 15.0  # The interval in seconds at which the chart has metrics scraped.
ANSWERS_WITHIN_S = 20.0


class NoMetrics(Exception):
    """Prometheus does not answer the query. The text says why."""


@dataclass(frozen=True)
class Curves:
    """The curves of a job. `loss`: over steps. `throughput`: over seconds since the first sample."""

    loss: Points
    throughput: Points


def read(url: str, namespace: str, job: str, start: float, end: float) -> Curves:
    """Return the curves for the time from start to end, in seconds since 1970. Raise NoMetrics."""
    step_s = max(SHORTEST_STEP_S, (end - start) / SAMPLES)

    def series(name: str) -> dict[float, float]:
        labels = f'namespace="{namespace}",job="{job}"'
        # Of two operators one leads; for a moment after a change, both may have been scraped.
        query = f"max(trainmaster_job_{name}{{{labels}}})"
        return _range(url, query, start, end, step_s)

    steps, losses, rates = (series(name) for name in ("step", "loss", "tokens_per_second"))
    began = min(rates, default=0.0)
    return Curves(
        loss=thinned((steps[at], loss) for at, loss in sorted(losses.items()) if at in steps),
        throughput=thinned((at - began, value) for at, value in sorted(rates.items())),
    )


def _range(url: str, query: str, start: float, end: float, step_s: float) -> dict[float, float]:
    values = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(values)}"
    try:
        with urllib.request.urlopen(address, timeout=ANSWERS_WITHIN_S) as answer:
            found: Any = json.load(answer)
        result = found["data"]["result"]
        samples = result[0]["values"] if result else []
        return {float(at): float(value) for at, value in samples if math.isfinite(float(value))}
    except (OSError, ValueError, http.client.HTTPException, urllib.error.URLError) as error:
        raise NoMetrics(f"{url} does not answer as a Prometheus does: {error}") from None
    except (KeyError, TypeError, IndexError) as error:
        raise NoMetrics(f"{url} did not return samples ({type(error).__name__})") from None
