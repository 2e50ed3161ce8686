"""Authorities, certificates and the Secret that replicas agree on."""

import asyncio
import base64
import contextlib
import ssl
import time

import pytest

from trainmaster_operator.cluster.port import SECRET, Conflict, Unavailable
from trainmaster_operator.control import certificates
from trainmaster_operator.control.certificates import DAY_S, Pair, Secrets, advance, issue, new_authority
from trainmaster_operator.control.ssl_context import ServerTls
from trainmaster_operator.local.api_server.memory_cluster import MemoryCluster
from trainmaster_operator.runtime.tls_secret_or_folder import NAME, Authority
from trainmaster_operator.runtime.virtual_clock import VirtualClock

NOW = 1_800_000_000.0


def handshake(server: ssl.SSLContext, bundle: bytes, name: str) -> bytes:
    """What a client that trusts `bundle` gets shown under `name`; in memory."""
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=name), server.wrap_bio(to_server, to_client, True)]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    shown = ends[0].getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def serving(pair: Pair) -> ssl.SSLContext:
    tls = ServerTls()
    tls.renew(pair.certificate, pair.key)
    return tls.context


def test_clients_accept_what_an_authority_has_issued_for_the_name_they_ask_for():
    authority = new_authority(time.time())
    context = serving(issue(authority, ["operator.space.svc", "::1"], time.time()))
    assert handshake(context, authority.certificate, "operator.space.svc")
    assert handshake(context, authority.certificate, "::1")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(context, authority.certificate, "operator.other.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        handshake(context, new_authority(time.time()).certificate, "operator.space.svc")


def test_a_server_cannot_sign_for_others():
    authority = new_authority(time.time())
    server = issue(authority, ["operator"], time.time())
    forged = issue(server, ["operator"], time.time())
    chained = Pair(forged.certificate + server.certificate, forged.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving(chained), authority.certificate, "operator")


def test_a_renewed_certificate_is_shown_by_the_same_context_and_a_broken_one_is_not():
    authority = new_authority(time.time())
    first, second = (issue(authority, ["operator"], time.time()) for _ in range(2))
    tls = ServerTls()
    tls.renew(first.certificate, first.key)
    assert handshake(tls.context, authority.certificate, "operator") == first.certificate
    tls.renew(second.certificate, second.key)
    assert handshake(tls.context, authority.certificate, "operator") == second.certificate
    for certificate, key in ((first.certificate, second.key), (b"", b""), (b"nonsense", b"nonsense")):
        with pytest.raises(ssl.SSLError):
            tls.renew(certificate, key)
    assert handshake(tls.context, authority.certificate, "operator") == second.certificate


def test_versions_of_tls_before_1_2_are_not_spoken():
    assert ServerTls().context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_certificate_does_not_outlive_its_authority():
    authority = new_authority(NOW)
    late = NOW + certificates.AUTHORITY_S - DAY_S
    assert certificates.valid_until(issue(authority, ["x"], late).certificate) == NOW + certificates.AUTHORITY_S


def test_an_authority_is_replaced_with_overlap():
    known = advance(Secrets(b"k" * 32), NOW)
    first = announced = known.authority.certificate
    last_used = {}
    for day in range(1200):
        now = NOW + day * DAY_S
        known = advance(known, now)
        assert known.authority.certificate in announced  # a day before it signs, everybody knows it
        last_used[known.authority.certificate] = now
        alive = [c for c, used in last_used.items() if now <= used + certificates.SERVER_S]
        assert all(certificate in known.bundle for certificate in alive)
        announced = known.bundle
        assert announced.count(b"BEGIN") <= 2
    assert len(last_used) == 2
    assert first not in known.bundle
    assert known.session_key == b"k" * 32


def test_an_operator_that_was_away_for_years_starts_with_a_new_authority():
    known = advance(Secrets(b"k" * 32), NOW)
    later = advance(known, NOW + 10 * certificates.AUTHORITY_S)
    assert later.authority != known.authority
    assert later.bundle == later.authority.certificate


def test_advancing_twice_at_once_changes_nothing_more():
    known = advance(Secrets(b"k" * 32), NOW)
    for day in range(0, 800, 7):
        known = advance(known, NOW + day * DAY_S)
        assert advance(known, NOW + day * DAY_S) == known


class Racing(MemoryCluster):
    """Both replicas read before either writes."""

    async def create(self, kind, obj):
        await asyncio.sleep(0)
        return await super().create(kind, obj)

    async def update(self, kind, obj):
        await asyncio.sleep(0)
        return await super().update(kind, obj)


def authorities(cluster, clock, count=2, folder=None):
    return [Authority(cluster, clock, "space", ["operator"], folder) for _ in range(count)]


def test_two_replicas_that_start_or_renew_together_agree():
    async def main():
        clock, cluster = VirtualClock(NOW), Racing()
        one, other = authorities(cluster, clock)
        for day in (0, 650, 651, 652, 690):
            clock.elapsed = day * DAY_S
            await asyncio.gather(one.refresh(), other.refresh())
            await asyncio.gather(one.refresh(), other.refresh())
            assert one.bundle() == other.bundle()
            assert one.session_key() == other.session_key()
        clock.elapsed += 2000 * DAY_S
        await asyncio.gather(one.refresh(), other.refresh())
        assert one.bundle() == other.bundle()
        assert one.bundle().count("BEGIN") == 1

    asyncio.run(main())


def test_a_replica_that_comes_later_finds_what_the_first_has_made():
    async def main():
        clock, cluster = VirtualClock(NOW), MemoryCluster()
        (first,) = authorities(cluster, clock, 1)
        await first.refresh()
        clock.elapsed = 5 * DAY_S
        (later,) = authorities(cluster, clock, 1)
        assert await later.refresh() > 0
        assert (later.bundle(), later.session_key()) == (first.bundle(), first.session_key())
        assert set(cluster.store.get(SECRET, "space", NAME)["data"]) == {"ca.crt", "ca.key", "session.key"}

    asyncio.run(main())


def test_a_servers_certificate_is_renewed_before_it_expires():
    async def main():
        clock, cluster = VirtualClock(time.time()), MemoryCluster()
        (authority,) = authorities(cluster, clock, 1)
        await authority.refresh()
        bundle = authority.bundle().encode()
        first = handshake(authority.tls, bundle, "operator")
        clock.elapsed = certificates.SERVER_S - certificates.RENEW_S - DAY_S
        await authority.refresh()
        assert handshake(authority.tls, bundle, "operator") == first
        clock.elapsed += DAY_S + 1
        await authority.refresh()
        assert authority._served.certificate != first
        assert certificates.is_from(authority._served.certificate, bundle)

    asyncio.run(main())


NONSENSE = base64.b64encode(b"nonsense").decode()


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        ({"ca.key": ""}, ["session.key"]),
        ({"ca.crt": NONSENSE}, ["session.key"]),
        ({"ca.key": base64.b64encode(new_authority(NOW).key).decode()}, ["session.key"]),
        ({"session.key": NONSENSE}, ["ca.crt", "ca.key"]),
        ({"previous-ca.crt": NONSENSE, "previous-until": NONSENSE}, ["ca.crt", "ca.key", "session.key"]),
    ],
)
def test_a_secret_that_was_damaged_is_mended_and_what_is_good_is_kept(damage, kept):
    async def main():
        clock, cluster = VirtualClock(NOW), MemoryCluster()
        (first,) = authorities(cluster, clock, 1)
        await first.refresh()
        before = cluster.store.get(SECRET, "space", NAME)
        cluster.store.update(SECRET, {**before, "data": {**before["data"], **damage, "theirs": "eA=="}})
        one, other = authorities(cluster, clock)
        await asyncio.gather(one.refresh(), other.refresh())
        assert one.bundle() == other.bundle()
        ssl.create_default_context(cadata=one.bundle())
        after = cluster.store.get(SECRET, "space", NAME)["data"]
        assert after["theirs"] == "eA=="
        assert all(after[key] == before["data"][key] for key in kept)

    asyncio.run(main())


def test_while_the_secret_cannot_be_read_the_last_one_serves():
    async def main():
        class Flaky(MemoryCluster):
            away = True

            async def get(self, kind, namespace, name):
                if self.away:
                    raise Unavailable("away")
                return await super().get(kind, namespace, name)

        cluster = Flaky()
        (authority,) = authorities(cluster, VirtualClock(NOW), 1)
        with pytest.raises(Unavailable):
            await authority.refresh()
        cluster.away = False
        await authority.refresh()
        bundle = authority.bundle()
        cluster.away = True
        assert await authority.refresh() > 0
        assert authority.bundle() == bundle

    asyncio.run(main())


def test_who_comes_second_again_and_again_gets_there_at_last():
    async def main():
        class Contended(MemoryCluster):
            conflicts = 3

            async def update(self, kind, obj):
                if self.conflicts:
                    self.conflicts -= 1
                    raise Conflict("somebody else was first")
                return await super().update(kind, obj)

        cluster = Contended()
        cluster.store.create(
            SECRET, {"apiVersion": "v1", "kind": SECRET, "metadata": {"namespace": "space", "name": NAME}}
        )
        (authority,) = authorities(cluster, VirtualClock(NOW), 1)
        await authority.refresh()
        assert authority.bundle()

    asyncio.run(main())


def write(folder, authority, pair):
    for name, content in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (folder / name).write_bytes(content)


def test_certificates_of_a_folder_are_followed(tmp_path):
    async def main():
        cluster = MemoryCluster()
        (authority,) = authorities(cluster, VirtualClock(NOW), 1, tmp_path)
        with pytest.raises(FileNotFoundError):
            await authority.refresh()
        theirs = new_authority(time.time())
        first, second = (issue(theirs, ["operator"], time.time()) for _ in range(2))
        write(tmp_path, theirs, first)
        await authority.refresh()
        assert authority.bundle().encode() == theirs.certificate
        assert set(cluster.store.get(SECRET, "space", NAME)["data"]) == {"session.key"}
        (tmp_path / "tls.crt").write_bytes(second.certificate)  # read in mid-change
        assert await authority.refresh() > 0
        assert handshake(authority.tls, theirs.certificate, "operator") == first.certificate
        write(tmp_path, theirs, second)
        await authority.refresh()
        assert handshake(authority.tls, theirs.certificate, "operator") == second.certificate
        others = new_authority(time.time())
        write(tmp_path, others, issue(others, ["operator"], time.time()))
        await authority.refresh()
        assert authority.bundle().encode() == others.certificate + theirs.certificate

    asyncio.run(main())
