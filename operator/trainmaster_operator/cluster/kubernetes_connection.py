"""HTTP to one API server through the official client, which provides credentials, TLS and token refresh.

Only the raw path of that client is used: bodies are plain dicts, not models, and nothing validates or copies them.
Every call has a time limit and is reported to `ApiCalls`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client import rest
from kubernetes.aio.config import ConfigException
from yarl import URL

from trainmaster_operator.cluster.kubernetes_errors import SHOWN_BYTES, refusal, unanswered
from trainmaster_operator.cluster.port import Unavailable

CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 30.0
CONNECTIONS = 64  # Each watch holds one; calls beyond this number wait.
IDLE_CONNECTION_S = 75.0  # Shorter than the API server's 90 s, so that no call uses a connection that is being closed.
USER_AGENT = "trainmaster-operator"

NETWORK_ERRORS = (aiohttp.ClientError, OSError)  # A time-out is an OSError.

ApiCalls = Callable[[str, str, float, int], None]
"""Called after each call with its verb, kind, seconds and HTTP code; code 0 means that no answer was read. For a
watch, the seconds until it is open. It must be cheap and must not raise."""


class Request(NamedTuple):
    """A request to the API server."""

    verb: str  # The verb of the port, for ApiCalls.
    kind: str
    method: str
    path: str  # Quoted.
    query: Mapping[str, str | list[str]] | None = None
    body: Any = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Connection:
    """A connection pool to one API server. Use it in the event loop in which it was created, and close it. Sockets
    are kept and reused."""

    def __init__(
        self, configuration: client.Configuration, calls: ApiCalls | None = None, connections: int = CONNECTIONS
    ) -> None:
        """Raise OSError if certificates cannot be loaded."""
        self.calls = calls
        self.host: str = configuration.host
        configuration.connection_pool_maxsize = connections
        # trust_env would look for a netrc and a proxy in its own threads, twice for each request, and a netrc entry in
        # addition to a token is an error.
        configuration.client_session_kwargs = {"trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
        self._api = client.ApiClient(configuration)
        self._api.rest_client = _Rest(configuration)
        self._timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)

    async def close(self) -> None:
        await self._api.close()

    async def call(self, request: Request) -> Any:
        """Return the decoded answer. Raise the error that a refusal means, or Unavailable if there is no answer."""
        began = _now()
        code = 0
        try:
            response = await self._open(request, self._timeout)
            body = await response.read()
            code = response.status
        except NETWORK_ERRORS as error:
            raise unanswered(request, error) from error
        finally:
            self._record_call(request, began, code)
        if not 200 <= code < 300:
            raise refusal(str(request), code, body, response.headers.get("Retry-After"))
        try:
            return json.loads(body)
        except ValueError as error:
            raise Unavailable(f"{request}: not an answer of an API server: {body[:SHOWN_BYTES]!r}") from error

    @asynccontextmanager
    async def stream(self, request: Request, total_s: float, silence_s: float) -> AsyncIterator[aiohttp.StreamReader]:
        """Yield the body as a stream. Reading raises NETWORK_ERRORS: TimeoutError after `silence_s` without a byte,
        or after `total_s` in all. Raise as `call` does."""
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        began = _now()
        code = 0
        response: aiohttp.ClientResponse | None = None
        try:
            try:
                response = await self._open(request, timeout)
                body = b"" if response.status == 200 else await response.read()
                code = response.status
            except NETWORK_ERRORS as error:
                raise unanswered(request, error) from error
            finally:
                self._record_call(request, began, code)
            if code != 200:
                raise refusal(str(request), code, body, response.headers.get("Retry-After"))
            yield response.content
        finally:
            if response is not None:
                response.close()

    @asynccontextmanager
    async def websocket(self, request: Request, protocol: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Yield a connection in one of the API server's sub-protocols. Raise as `call` does."""
        headers = await self._authorized(request, {"User-Agent": USER_AGENT})
        rest_client = self._api.rest_client
        if rest_client.pool_manager is None:
            rest_client.pool_manager = rest_client._create_pool_manager()
        query = f"?{urlencode(request.query or {}, doseq=True)}"
        # A URL with http(s) works too: aiohttp upgrades it.
        url = URL(f"{self.host}{request.path}{query}", encoded=True)
        try:
            async with rest_client.pool_manager.ws_connect(
                url, protocols=(protocol,), headers=headers, timeout=aiohttp.ClientWSTimeout(ws_close=CONNECT_TIMEOUT_S)
            ) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(str(request), error.status, error.message.encode()) from error
        except NETWORK_ERRORS as error:
            raise unanswered(request, error) from error

    async def _open(self, request: Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {
            "Accept": "application/json",
            # Compressing large lists costs both sides more than sending them uncompressed.
            "Accept-Encoding": "identity",
            "Content-Type": request.content_type,
            "User-Agent": USER_AGENT,
        }
        headers = await self._authorized(request, headers)
        query = f"?{urlencode(request.query)}" if request.query else ""
        answer = await self._api.call_api(
            request.method,
            URL(f"{self.host}{request.path}{query}", encoded=True),
            headers,
            request.body,
            _request_timeout=timeout,
        )
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _authorized(self, request: Request, headers: dict[str, str]) -> dict[str, str]:
        try:
            await self._api.update_params_for_auth(
                headers, [], ("BearerToken",), request.path, request.method, request.body
            )
        except ConfigException as error:  # The same as for a token that cannot be read at the moment.
            raise OSError(f"credentials: {error}") from error
        return headers

    def _record_call(self, request: Request, began: float, code: int) -> None:
        """Pass a call's verb, kind, seconds and status code to `calls`, if there is any."""
        if self.calls:
            self.calls(request.verb, request.kind, _now() - began, code)


class _Rest(rest.RESTClientObject):  # type: ignore[misc]
    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, keepalive_timeout=IDLE_CONNECTION_S)


def _now() -> float:
    return asyncio.get_running_loop().time()
