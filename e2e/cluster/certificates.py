"""One authority for the cluster, a certificate for each component, and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from e2e.cluster.places import API_PORT, API_SERVICE_IP, DOMAIN, HOST_IP, KUBECONFIG, PKI, STATE, node_ip
from e2e.cluster.shell import run, write

_DAYS = "3650"
_API_NAMES = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]


def prepare() -> None:
    """Everything that the control plane needs; what is there already stays."""
    PKI.mkdir(parents=True, exist_ok=True)
    if not (PKI / "ca.crt").exists():
        _key("ca")
        usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
        subject = ("-key", PKI / "ca.key", "-days", _DAYS, "-subj", "/CN=trainmaster-e2e", "-addext", usage)
        run("openssl", "req", "-x509", "-new", *subject, "-out", PKI / "ca.crt")
    if not (PKI / "service-accounts.pub").exists():
        _key("service-accounts")
        run("openssl", "pkey", "-in", PKI / "service-accounts.key", "-pubout", "-out", PKI / "service-accounts.pub")
    names = [f"DNS:{name}" for name in (*_API_NAMES, f"kubernetes.default.svc.{DOMAIN}")]
    addresses = [f"IP:{address}" for address in ("127.0.0.1", HOST_IP, API_SERVICE_IP)]
    issue("api-server", "kube-apiserver", alternatives=[*names, *addresses])
    issue("api-server-to-kubelets", "kube-apiserver-kubelet-client", "system:masters")
    issue("front-proxy", "front-proxy-client")
    issue("admin", "admin", "system:masters")
    kubeconfig("admin", "127.0.0.1", KUBECONFIG)
    for component in ("controller-manager", "scheduler", "proxy"):
        issue(component, f"system:kube-{component}")
        kubeconfig(component, HOST_IP if component == "proxy" else "127.0.0.1")


def prepare_node(number: int) -> None:
    """A node's own: its kubelet's server certificate is also its identity."""
    name = f"node{number}"
    issue(name, f"system:node:{name}", "system:nodes", [f"DNS:{name}", f"IP:{node_ip(number)}"])
    kubeconfig(name, HOST_IP)


def issue(name: str, user: str, group: str = "", alternatives: list[str] | None = None) -> None:
    certificate = PKI / f"{name}.crt"
    if certificate.exists():
        return
    _key(name)
    lines = ["extendedKeyUsage=clientAuth,serverAuth", "keyUsage=critical,digitalSignature"]
    if alternatives:
        lines.append(f"subjectAltName={','.join(alternatives)}")
    extensions = write(PKI / f"{name}.ext", "\n".join(lines))
    subject = (f"/O={group}" if group else "") + f"/CN={user}"
    request = run("openssl", "req", "-new", "-key", PKI / f"{name}.key", "-subj", subject)
    signed = ("-CA", PKI / "ca.crt", "-CAkey", PKI / "ca.key", "-days", _DAYS, "-extfile", extensions)
    write(certificate, run("openssl", "x509", "-req", *signed, stdin=request))
    extensions.unlink()


def kubeconfig(name: str, host: str, path: Path | None = None) -> Path:
    """A kubeconfig with the certificates inside. It is JSON, which is YAML."""

    def inline(file: str) -> str:
        return base64.b64encode((PKI / file).read_bytes()).decode()

    user = {"client-certificate-data": inline(f"{name}.crt"), "client-key-data": inline(f"{name}.key")}
    cluster = {"server": f"https://{host}:{API_PORT}", "certificate-authority-data": inline("ca.crt")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
        "current-context": "e2e",
    }
    return write(path or STATE / "conf" / f"{name}.conf", json.dumps(content, indent=1), mode=0o600)


def _key(name: str) -> None:
    key = run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    write(PKI / f"{name}.key", key, mode=0o600)
