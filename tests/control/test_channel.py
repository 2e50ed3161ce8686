"""Agents and replicas over real TLS: who is let in, who is sent on, and what outlives what."""

import asyncio
import base64
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.control.world import NAMESPACE, Agent, Api, identity, replica
from trainmaster.agent.shell.control_client import Refused, Unreachable
from trainmaster_operator.cluster.port import POD, SECRET
from trainmaster_operator.control import certificates
from trainmaster_operator.runtime import tls_secret_or_folder as authorities


class Scene:
    """A leader, a job of two pods, and an agent in its first."""

    def __init__(self, api, leader, job, pods, folder):
        self.api, self.leader, self.job, self.pods, self.folder = api, leader, job, pods, folder
        self.made = []
        self.agent = self.make_agent("good", identity(job, pods[0]))

    def make_agent(self, token, me, leader=None):
        leader = leader or self.leader
        agent = Agent(self.folder / str(len(self.made)), leader.url, leader.authority.bundle(), token, me)
        self.made.append(agent)
        return agent


@asynccontextmanager
async def scene(folder, **options):
    api = Api()
    job = api.add_job()
    pods = [api.add_pod(job, slot) for slot in (0, 1)]
    api.issue(pods[0], "good")
    api.issue(pods[1], "other pod's")
    async with replica(api, **options) as leader:
        made = Scene(api, leader, job, pods, folder)
        try:
            yield made
        finally:
            for agent in made.made:
                agent.close()


async def refusal(call):
    with pytest.raises(Refused) as caught:
        await call
    return caught.value


def test_a_token_is_reviewed_once_and_then_a_session_does(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            for _ in range(5):
                assert (await s.agent.report()).tag == "1"
            assert s.api.reviews == 1
            assert s.agent.access.session

    asyncio.run(main())


def test_wrong_expired_and_foreign_tokens_get_a_refusal_and_nothing_else(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            other = s.api.add_job("other")
            foreign = s.api.add_pod(other, 0)
            s.api.issue(foreign, "other job's")
            mine = identity(s.job, s.pods[0])
            gone = replace(mine, job="no-such-job", job_uid="no-such-uid")
            stale = replace(mine, incarnation=-1)
            said = set()
            for claimed in (mine, gone, stale):
                for token in ("wrong", "expired"):
                    refused = await refusal(s.make_agent(token, claimed).report())
                    assert refused.status == 401
                    said.add(str(refused))
                for token in ("other pod's", "other job's"):
                    assert (await refusal(s.make_agent(token, claimed).report())).status == 403
            assert len(said) == 1  # whatever is claimed
            assert s.leader.operator.fleet.view(("space", "job"))["slots"] == []

    asyncio.run(main())


def test_a_token_that_is_bound_to_no_pod_of_a_job_is_refused(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            unbound = s.api.add_pod(s.job, 7)
            s.api.tokens["of an account"] = replace(s.api.tokens["good"], pod="", pod_uid="")
            lone = s.api.store.create(
                POD,
                {
                    "apiVersion": "v1",
                    "kind": POD,
                    "metadata": {"name": "lone", "namespace": "space"},
                    "spec": unbound["spec"],
                },
            )
            s.api.issue(lone, "of a lone pod")
            assert (await refusal(s.make_agent("of an account", s.agent.me).report())).status == 401
            assert (await refusal(s.make_agent("of a lone pod", s.agent.me).report())).status == 403

    asyncio.run(main())


def test_a_replaced_pod_loses_its_session_and_is_told_that_it_is_stale(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            await s.agent.report()
            s.api.replace_pod(s.job, 0, 1)
            while s.leader.operator.fleet._jobs["space", "job"].incarnations[0] != 1:
                await asyncio.sleep(0.001)
            assert (await refusal(s.agent.report())).status == 410

    asyncio.run(main())


def test_a_deleted_pod_that_has_no_successor_yet_is_refused(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            await s.agent.report()
            s.api.store.delete(POD, "space", s.pods[0]["metadata"]["name"], grace_s=0)
            while len(s.leader.operator.pods) > 1:
                await asyncio.sleep(0.001)
            assert (await refusal(s.agent.report())).status == 401
            assert not s.agent.access.session

    asyncio.run(main())


def test_a_session_of_another_key_or_time_is_replaced_by_showing_the_token_again(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            for session in ("x.y", "", "é.ü", s.agent.access.session + "x"):
                s.agent.access.session = session
                await s.agent.report()
                assert s.agent.access.session != session

    asyncio.run(main())


def test_a_rotated_token_is_read_again(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            await s.agent.report()
            del s.api.tokens["good"]
            s.api.issue(s.pods[0], "rotated")
            s.agent.token_file.write_text("rotated\n")
            s.agent.access.session = "lost"
            await s.agent.report()

    asyncio.run(main())


def test_while_the_api_server_is_away_tokens_wait_and_sessions_work(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            await s.agent.report()
            s.api.away = True
            await s.agent.report()
            assert (await refusal(s.make_agent("good", s.agent.me).report())).status == 503
            s.api.away = False
            await s.make_agent("good", s.agent.me).report()

    asyncio.run(main())


def test_a_standby_sends_agents_to_the_leader_and_a_new_leader_knows_their_sessions(tmp_path):
    async def main():
        async with scene(tmp_path) as s, replica(s.api, epoch=2, leads=False) as standby:
            agent = s.make_agent("good", s.agent.me, standby)
            assert (await refusal(agent.report())).status == 503  # it doesn't know who leads
            standby.leader = s.leader.address
            assert (await agent.report()).epoch == 1
            assert agent.access.address == ("127.0.0.1", s.leader.port)
            # The leader goes: its address answers no more, and the service leads to the other.
            await s.leader.server.stop()
            await standby.lead()
            assert (await agent.report()).epoch == 2
            assert agent.access.address == ("localhost", standby.port)
            assert s.api.reviews == 1

    asyncio.run(main())


def test_a_leader_whose_certificate_is_for_another_name_is_not_followed(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            stranger = Agent(
                tmp_path / "x", f"https://127.0.0.1:{s.leader.port}", s.agent.ca_file.read_text(), "good", s.agent.me
            )
            with pytest.raises(Unreachable, match="IP address mismatch"):
                await stranger.report()
            assert s.api.reviews == 0

    asyncio.run(main())


def put_secret(api, **files):
    known = api.store.find(SECRET, NAMESPACE, authorities.NAME)
    names = {name: name.replace("__", "-").replace("_", ".") for name in files}
    data = {names[name]: base64.b64encode(value).decode() for name, value in files.items()}
    api.store.update(SECRET, {**known, "data": {"session.key": known["data"]["session.key"], **data}})


def test_an_agent_stays_connected_while_the_authority_is_replaced_and_trusts_the_next(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            agent, authority, now = s.agent, s.leader.authority, time.time()
            await agent.report()
            streams, old = agent.connection._streams, authority._secrets.authority
            new = certificates.new_authority(now)

            put_secret(
                s.api, ca_crt=old.certificate, ca_key=old.key, next__ca_crt=new.certificate, next__ca_key=new.key
            )
            await authority.refresh()
            assert authority.bundle().encode() == old.certificate + new.certificate
            both = s.make_agent("good", agent.me)

            until = str(int(now + certificates.SERVER_S)).encode()
            put_secret(
                s.api, ca_crt=new.certificate, ca_key=new.key, previous__ca_crt=old.certificate, previous__until=until
            )
            await authority.refresh()
            assert authority.bundle().encode() == new.certificate + old.certificate
            unaware = s.make_agent("good", agent.me)
            unaware.ca_file.write_bytes(old.certificate)
            await unaware.report()  # the server's certificate is of the old authority as long as it lasts
            unaware.close()

            put_secret(s.api, ca_crt=new.certificate, ca_key=new.key)
            await authority.refresh()
            await agent.report()
            assert agent.connection._streams is streams  # it has noticed nothing of all this
            await both.report()
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await unaware.report()
            unaware.ca_file.write_text(authority.bundle())
            await unaware.report()

    asyncio.run(main())


def test_an_agent_without_certificates_yet_trusts_nobody(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            bundle = s.agent.ca_file.read_text()
            s.agent.ca_file.write_text("")
            with pytest.raises(Unreachable, match="empty"):
                await s.agent.report()
            s.agent.ca_file.unlink()
            with pytest.raises(Unreachable, match="FileNotFoundError"):
                await s.agent.report()
            s.agent.ca_file.write_text(bundle)
            await s.agent.report()

    asyncio.run(main())


def test_a_secret_that_was_deleted_is_made_anew_and_agents_come_back_with_their_tokens(tmp_path):
    async def main():
        async with scene(tmp_path) as s:
            await s.agent.report()
            s.api.store.delete(SECRET, NAMESPACE, authorities.NAME)
            await s.leader.authority.refresh()
            await s.agent.report()
            assert s.api.reviews == 2
            s.agent.close()
            s.agent.ca_file.write_text(s.leader.authority.bundle())
            await s.agent.report()

    asyncio.run(main())
