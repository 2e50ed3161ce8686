#!/usr/bin/env python3
"""`demo` in the trainer's image: `trainmaster demo`, with its metrics on port 9090 of the container.

The run's own port speaks to its agents, so it stays on loopback; only GET /metrics is passed on.
"""

import http.client
import http.server
import subprocess
import sys
import threading

PORT = 9090
INNER_PORT = 18443
TIMEOUT_S = 5.0


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        inner = http.client.HTTPConnection("127.0.0.1", self.server.inner_port, timeout=TIMEOUT_S)  # type: ignore[attr-defined]
        try:
            inner.request("GET", "/metrics")
            answer = inner.getresponse()
            status, kind, body = answer.status, answer.getheader("Content-Type", "text/plain"), answer.read()
        except OSError:
            self.send_error(503, "the run has not begun yet, or has ended")
            return
        finally:
            inner.close()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """The demo's own lines are what a person reads."""


def serve(host: str, port: int, inner_port: int) -> http.server.ThreadingHTTPServer:
    """Pass GET /metrics on to `inner_port` of loopback, in threads of their own."""
    server = http.server.ThreadingHTTPServer((host, port), Metrics)
    server.inner_port = inner_port  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(words: list[str]) -> int:
    serve("", PORT, INNER_PORT)
    command = ["trainmaster", "demo", "--port", str(INNER_PORT), "--out", "/runs/demo", *words]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
