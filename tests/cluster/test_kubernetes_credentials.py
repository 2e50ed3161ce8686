"""Where the adapter gets its credentials, and what it does when they change or can't be had."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
from pathlib import Path
from types import SimpleNamespace

import certifi
import pytest
import yaml
from kubernetes.aio.config import incluster_config

from tests.cluster.fake_api import as_json, fake_api
from trainmaster_operator.cluster import kubernetes_credentials
from trainmaster_operator.cluster.environment_proxy import environment_proxy
from trainmaster_operator.cluster.kubernetes import KubernetesCluster
from trainmaster_operator.cluster.kubernetes_credentials import NoCluster, load
from trainmaster_operator.cluster.port import POD, Unavailable

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*PROXIES, *(proxy.upper() for proxy in PROXIES), "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def pod_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As if this process ran in a pod: the file of its token."""
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certifi.where())
    return token


def pass_minutes(monkeypatch: pytest.MonkeyPatch, minutes: int) -> None:
    """For the official client, which asks datetime for the time."""

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Later:
            return cls.fromtimestamp(super().now().timestamp() + 60 * minutes)

    fake = SimpleNamespace(datetime=Later, timedelta=datetime.timedelta)
    monkeypatch.setattr(incluster_config, "datetime", fake)


def kubeconfig(path: Path, user: object, server: str = "https://10.0.0.1:6443", **cluster: str) -> str:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server, **cluster}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return str(path)


def test_in_a_pod_a_rotated_token_is_used_and_an_unreadable_one_is_unavailable(
    pod_token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inside() -> None:
        configuration = await load()
        assert configuration.host == "https://10.0.0.1:443"
        assert configuration.ssl_ca_cert == certifi.where()

        async def answer(request: object) -> object:
            return as_json({"metadata": {}})

        async with fake_api(answer, configuration) as api:  # type: ignore[arg-type]
            await api.cluster.get(POD, "s", "a")
            pod_token.write_text("second")
            pass_minutes(monkeypatch, 2)
            await api.cluster.get(POD, "s", "a")
            assert [s.headers["Authorization"] for s in api.seen] == ["bearer first", "bearer second"]
            pod_token.unlink()
            pass_minutes(monkeypatch, 10)
            with pytest.raises(Unavailable, match="token"):
                await api.cluster.get(POD, "s", "a")
            with pytest.raises(Unavailable, match="token"):
                await anext(api.cluster.watch(POD, "1"))
            pod_token.write_text("third")
            await api.cluster.get(POD, "s", "a")
            assert api.seen[-1].headers["Authorization"] == "bearer third"

    asyncio.run(inside())


def test_a_token_of_a_kubeconfig_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_credentials, "REFRESH_S", 0.0)
    token = tmp_path / "token"
    token.write_text("first")
    file = kubeconfig(tmp_path / "config", {"tokenFile": str(token)}, server="http://placeholder")

    async def inside() -> None:
        async def answer(request: object) -> object:
            return as_json({"metadata": {}})

        configuration = await load(file)
        async with fake_api(answer, configuration) as api:  # type: ignore[arg-type]
            await api.cluster.get(POD, "s", "a")
            token.write_text("second")
            await api.cluster.get(POD, "s", "a")
            assert [s.headers["Authorization"] for s in api.seen] == ["Bearer first", "Bearer second"]

    asyncio.run(inside())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'The SSO session has expired.' >&2; echo 'Log in again.' >&2; exit 255",
            "process returned 255: The SSO session has expired. Log in again.",
        ),
        ("exit 3", "process returned 3"),
        ("echo nothing", "failed to decode process output: "),
    ],
)
def test_a_plugin_for_credentials_that_fails_is_told_in_one_sentence(
    tmp_path: Path, script: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    file = kubeconfig(tmp_path / "config", {"exec": plugin})
    with pytest.raises(NoCluster) as caught:
        asyncio.run(load(file))
    assert str(caught.value).startswith(f"{file}: the command that gives its credentials failed: {words}")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_plugin_for_credentials_gives_the_token(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "of a plugin"}})
    file = kubeconfig(tmp_path / "config", {"exec": {"apiVersion": version, "command": "echo", "args": [answer]}})
    assert asyncio.run(load(file)).api_key == {"BearerToken": "Bearer of a plugin"}


def test_a_plugin_for_credentials_that_is_not_there_is_named(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}
    with pytest.raises(NoCluster, match="no-such-plugin"):
        asyncio.run(load(kubeconfig(tmp_path / "config", {"exec": plugin})))


def test_without_a_pod_the_environment_s_kubeconfig_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", {"token": "t"}, server="http://one:1"))
    assert asyncio.run(load()).host == "http://one:1"
    other = kubeconfig(tmp_path / "other", {"token": "t"}, server="http://two:2")
    assert asyncio.run(load(other)).host == "http://two:2"


def test_a_context_is_chosen_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config"
    text = yaml.safe_load(Path(kubeconfig(file, {"token": "t"}, server="http://one:1")).read_text())
    text["contexts"].append({"name": "other", "context": {"cluster": "l", "user": "u"}})
    text["clusters"].append({"name": "l", "cluster": {"server": "http://two:2"}})
    file.write_text(yaml.safe_dump(text))
    assert asyncio.run(load(str(file))).host == "http://one:1"
    assert asyncio.run(load(str(file), "other")).host == "http://two:2"
    with pytest.raises(NoCluster, match="missing"):
        asyncio.run(load(str(file), "missing"))


def test_in_a_pod_a_kubeconfig_counts_only_when_it_is_named(pod_token: Path, tmp_path: Path) -> None:
    assert asyncio.run(load()).host == "https://10.0.0.1:443"
    assert asyncio.run(load(kubeconfig(tmp_path / "config", {}, server="http://one:1"))).host == "http://one:1"


@pytest.mark.parametrize(
    "text", ["", "[]", "text", "{", "a: b", "current-context: c", "current-context: c\ncontexts: 1\nclusters: []"]
)
def test_a_broken_kubeconfig_is_told_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(NoCluster, match=str(path)):
        asyncio.run(load(str(path)))


def test_no_kubeconfig_at_all_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match=r"\.kube/config"):
        asyncio.run(load())
    with pytest.raises(NoCluster, match="nowhere"):
        asyncio.run(load(str(tmp_path / "nowhere")))


def test_certificates_that_cannot_be_loaded_are_told_in_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "ca.crt"
    broken.write_text("not a certificate")
    file = kubeconfig(tmp_path / "config", {"token": "t"}, **{"certificate-authority": str(broken)})
    with pytest.raises(NoCluster, match="certificates"):
        asyncio.run(KubernetesCluster.connect(file))
    with pytest.raises(ssl.SSLError):
        ssl.create_default_context(cafile=str(broken))


@pytest.mark.parametrize(
    ("host", "no_proxy", "proxy"),
    [
        ("https://example.com", "", "http://proxy:3128"),
        ("http://example.com", "", None),
        ("https://example.com", "example.com", None),
        ("https://10.96.0.1:443", "10.96.0.0/12", None),
        ("https://10.96.0.1:443", "localhost,10.0.0.0/30, 10.96.0.0/12,.svc", None),
        ("https://10.96.0.1:443", "10.0.0.0/16,nonsense/9", "http://proxy:3128"),
        ("https://[fd00::1]:443", "fd00::/8", None),
    ],
)
def test_the_environment_s_proxy(monkeypatch: pytest.MonkeyPatch, host: str, no_proxy: str, proxy: str | None) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert environment_proxy(host) == proxy
