"""The keys and certificates of the control channel on a cluster: a Secret that all replicas share, or the files of
cert-manager.

The replicas agree through the API server alone: only one of them can create the Secret, and a replica that changes it
second gets a conflict and reads it again.
"""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainmaster_operator.cluster.port import (
    CONFIG_MAP,
    KINDS,
    SECRET,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    NotFound,
    Object,
)
from trainmaster_operator.control import certificates
from trainmaster_operator.control.certificates import Pair, Secrets
from trainmaster_operator.control.session_tokens import KEY_BYTES
from trainmaster_operator.control.ssl_context import ServerTls
from trainmaster_operator.manifests.ca_config_map import build_ca_bundle
from trainmaster_operator.runtime.clock import Clock

log = logging.getLogger(__name__)

NAME = "trainmaster-control"
LOOK_S = 300.0  # Seconds between two reads of the Secret, because another replica may have renewed something.
LOOK_FOLDER_S = 30.0
RETRY_S = 10.0
_NONE = Pair(b"", b"")


class Authority:
    """Call `refresh` first, and again after the time that it returns. `hosts`: the names under which agents reach
    this operator. `folder`: contains tls.crt, tls.key and ca.crt, which other software renews; the Secret then holds
    only the session key."""

    def __init__(
        self, cluster: Cluster, clock: Clock, namespace: str, hosts: Sequence[str], folder: Path | None = None
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._namespace = namespace
        self._hosts = hosts
        self._folder = folder
        self._tls = ServerTls()
        self._secrets: Secrets | None = None
        self._served: Pair | None = None
        self._published: tuple[str, float] | None = None  # The bundle, and when it was published (monotonic).
        self._folder_bundles: list[bytes] = []  # The newest first, and the one that it replaced.

    @property
    def tls(self) -> ssl.SSLContext:
        """The TLS context for servers. It is renewed in place."""
        return self._tls.context

    def session_key(self) -> bytes:
        """Return the key that signs sessions; all replicas have the same."""
        assert self._secrets is not None, "refresh() comes first"
        return self._secrets.session_key

    def bundle(self) -> str:
        """Return the certificates that agents must trust, as PEM."""
        assert self._secrets is not None, "refresh() comes first"
        return (b"".join(self._folder_bundles) if self._folder else self._secrets.bundle).decode()

    def expiries(self) -> dict[str, float]:
        """Return when the served certificate and the authority that the replicas share expire, in seconds since
        1970."""
        found = {"server": self._served} if self._served is not None else {}
        if self._secrets is not None and self._secrets.authority is not None and not self._folder:
            found["authority"] = self._secrets.authority
        return {name: certificates.valid_until(pair.certificate) for name, pair in found.items()}

    async def publish_bundle(self) -> None:
        """Write the certificates that scrapers must trust into a ConfigMap in the operator's own namespace. Nothing
        is written if that was done recently. A failure is logged, and the next call tries again."""
        bundle, now = self.bundle(), self._clock.monotonic()
        if self._published is not None and self._published[0] == bundle and now - self._published[1] < LOOK_S:
            return
        try:
            await self._cluster.apply(CONFIG_MAP, build_ca_bundle(self._namespace, bundle))
            self._published = (bundle, now)
        except ApiError as error:
            log.warning("the certificates that scrapers trust could not be published: %s", error)

    async def refresh(self) -> float:
        """Load, create and renew what is due. Return the seconds until the next call. A failure of the first call is
        raised; later ones are tried again, and what was loaded before still serves."""
        try:
            self._secrets = await self._agree()
            return self._renew_from_folder(self._folder) if self._folder else self._renew(self._secrets)
        except (ApiError, OSError, ValueError) as error:  # An SSLError is an OSError.
            if self._secrets is None or self._served is None:
                raise
            log.warning("the control channel's certificates could not be looked at: %s", error)
            return RETRY_S

    def _renew(self, shared: Secrets) -> float:
        now = self._clock.now()
        assert shared.authority is not None
        served = self._served
        if (
            served is None
            or now >= certificates.valid_until(served.certificate) - certificates.RENEW_S
            or not certificates.is_from(served.certificate, shared.bundle)
        ):
            served = certificates.issue(shared.authority, self._hosts, now)
            self._tls.renew(served.certificate, served.key)
            self._served = served
            log.info("the control channel has a new certificate for %s", ", ".join(self._hosts))
        return LOOK_S

    def _renew_from_folder(self, folder: Path) -> float:
        found = Pair((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes())
        bundle = (folder / "ca.crt").read_bytes()
        if found != self._served:
            self._tls.renew(found.certificate, found.key)
            self._served = found
            log.info("the control channel has the certificate from %s", folder)
        if bundle not in self._folder_bundles:
            self._folder_bundles = [bundle, *self._folder_bundles[:1]]
        return LOOK_FOLDER_S

    async def _agree(self) -> Secrets:
        """Return the secrets that all replicas have, after what is due now was renewed."""
        while True:
            now = self._clock.now()
            try:
                obj = await self._cluster.get(SECRET, self._namespace, NAME)
            except NotFound:
                try:
                    return await self._create(self._due(Secrets(), now))
                except AlreadyExists:
                    continue
            known = _read(obj)
            due = self._due(known, now)
            if due == known:
                return due
            data = {**(obj.get("data") or {}), **_data(due)}
            try:
                await self._cluster.update(
                    SECRET, {**obj, "data": {key: value for key, value in data.items() if value}}
                )
            except (Conflict, NotFound):
                continue
            log.info("the Secret %s/%s was renewed", self._namespace, NAME)
            return due

    def _due(self, known: Secrets, now: float) -> Secrets:
        if len(known.session_key) < KEY_BYTES:
            known = replace(known, session_key=certificates.new_session_key())
        return known if self._folder else certificates.advance(known, now)

    async def _create(self, made: Secrets) -> Secrets:
        secret = {
            "apiVersion": KINDS[SECRET].api_version,
            "kind": SECRET,
            "metadata": {"namespace": self._namespace, "name": NAME},
            "type": "Opaque",
            "data": {key: value for key, value in _data(made).items() if value},
        }
        await self._cluster.create(SECRET, secret)
        return made


def _data(shared: Secrets) -> dict[str, str]:
    """Return the secrets as the data of a Secret. An empty value means that the key is absent."""
    authority, successor = shared.authority or _NONE, shared.successor or _NONE
    plain = {
        "session.key": shared.session_key,
        "ca.crt": authority.certificate,
        "ca.key": authority.key,
        "next-ca.crt": successor.certificate,
        "next-ca.key": successor.key,
        "previous-ca.crt": shared.previous,
        "previous-until": str(int(shared.previous_until)).encode() if shared.previous else b"",
    }
    return {key: base64.b64encode(value).decode() for key, value in plain.items()}


def _read(obj: Object) -> Secrets:
    """Return the valid parts of a Secret. The rest is created again."""
    data = obj.get("data") or {}

    def value(key: str) -> bytes:
        return base64.b64decode(data.get(key) or "")

    def pair(name: str) -> Pair | None:
        found = Pair(value(f"{name}.crt"), value(f"{name}.key"))
        if certificates.is_pair(found):
            return found
        if found != _NONE:
            log.warning(
                "Secret %s/%s: %s.crt and %s.key are no pair of ours", obj["metadata"]["namespace"], NAME, name, name
            )
        return None

    previous, previous_until = value("previous-ca.crt"), value("previous-until")
    return Secrets(
        session_key=value("session.key"),
        authority=pair("ca"),
        successor=pair("next-ca"),
        previous=previous if certificates.is_certificate(previous) else b"",
        previous_until=float(previous_until) if previous_until.isdigit() else 0.0,
    )
