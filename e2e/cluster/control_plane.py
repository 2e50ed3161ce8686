"""etcd, the API server, the controller manager and the scheduler, on the host."""

from __future__ import annotations

import json
import resource
import signal
import socket

from e2e.cluster import certificates
from e2e.cluster.daemons import Daemon
from e2e.cluster.places import (
    API_PORT,
    AUDIT_LOG,
    BIN,
    DOMAIN,
    ETCD_PORT,
    HOST_IP,
    KUBECONFIG,
    PKI,
    SERVICE_RANGE,
    STATE,
)
from e2e.cluster.shell import run, say, until, works, write

ETCD = Daemon("etcd")
API_SERVER = Daemon("api-server")
CONTROLLER_MANAGER = Daemon("controller-manager")
SCHEDULER = Daemon("scheduler")
ALL = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)

# Without the components' own chatter the log tells what people, tests and the operator ask for.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "None",
            "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"],
        },
        {
            "level": "None",
            "users": [
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:kube-proxy",
            ],
        },
        {"level": "None", "nonResourceURLs": ["/livez*", "/readyz*", "/healthz*"]},
        {"level": "Metadata"},
    ],
}


def up() -> None:
    """Start what doesn't run, and wait until the API server answers."""
    certificates.prepare()
    allow_many_files()
    start_etcd()
    start_api_server()
    _start_controller_manager()
    _start_scheduler()


def down() -> None:
    for daemon in (SCHEDULER, CONTROLLER_MANAGER):
        daemon.stop()
    stop_api_server()
    ETCD.stop()


def kubectl(*words: str, stdin: str = "", check: bool = True) -> str:
    return run(BIN / "kubectl", "--kubeconfig", KUBECONFIG, *words, stdin=stdin, check=check)


def ready() -> bool:
    return works(BIN / "kubectl", "--kubeconfig", KUBECONFIG, "--request-timeout=2s", "get", "--raw", "/readyz")


def start_etcd() -> None:
    if not ETCD.pid:
        for port in (ETCD_PORT, ETCD_PORT + 1):
            _require_free(port)
    clients, peers = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
    ETCD.start(
        [
            BIN / "etcd",
            f"--data-dir={STATE / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # nothing here outlives the machine
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        ]
    )


def start_api_server() -> None:
    if not API_SERVER.pid:
        _require_free(API_PORT)
    policy = write(STATE / "audit-policy.json", json.dumps(AUDIT_POLICY, indent=1))
    API_SERVER.start(
        [
            BIN / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
            f"--secure-port={API_PORT}",
            f"--advertise-address={HOST_IP}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            f"--tls-cert-file={PKI / 'api-server.crt'}",
            f"--tls-private-key-file={PKI / 'api-server.key'}",
            f"--client-ca-file={PKI / 'ca.crt'}",
            f"--kubelet-certificate-authority={PKI / 'ca.crt'}",
            f"--kubelet-client-certificate={PKI / 'api-server-to-kubelets.crt'}",
            f"--kubelet-client-key={PKI / 'api-server-to-kubelets.key'}",
            f"--requestheader-client-ca-file={PKI / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={PKI / 'front-proxy.crt'}",
            f"--proxy-client-key-file={PKI / 'front-proxy.key'}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-signing-key-file={PKI / 'service-accounts.key'}",
            f"--service-account-key-file={PKI / 'service-accounts.pub'}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={AUDIT_LOG}",
            "--audit-log-maxsize=2048",
            "--profiling=false",
        ]
    )
    until(lambda: not API_SERVER.pid or ready(), 90, f"the API server isn't ready (see {API_SERVER.log})")
    API_SERVER.require()
    say("API server ready")


def stop_api_server() -> None:
    """At once: asked politely, it waits for its watchers, who don't leave."""
    API_SERVER.stop(signal.SIGKILL)


def _start_controller_manager() -> None:
    conf = STATE / "conf" / "controller-manager.conf"
    CONTROLLER_MANAGER.start(
        [
            BIN / "kube-controller-manager",
            f"--kubeconfig={conf}",
            f"--root-ca-file={PKI / 'ca.crt'}",
            f"--cluster-signing-cert-file={PKI / 'ca.crt'}",
            f"--cluster-signing-key-file={PKI / 'ca.key'}",
            f"--service-account-private-key-file={PKI / 'service-accounts.key'}",
            "--use-service-account-credentials=true",
            f"--flex-volume-plugin-dir={STATE / 'volume-plugins'}",  # made in any case: not in /usr
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=10s",  # 50 s by default: a test of a lost node would mostly wait
        ]
    )


def _start_scheduler() -> None:
    SCHEDULER.start(
        [
            BIN / "kube-scheduler",
            f"--kubeconfig={STATE / 'conf' / 'scheduler.conf'}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ]
    )


def allow_many_files() -> None:
    """Children inherit it: a node's daemons hold thousands of descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _require_free(port: int) -> None:
    """A process that was just killed may hold its port for another moment."""
    until(lambda: _is_free(port), 5, f"port {port} is taken by another program, still")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
