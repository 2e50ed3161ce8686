"""What a node's containerd, kubelet, kube-proxy and CNI plugins are told."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.places import CGROUP, DNS_IP, DOMAIN, PKI, POD_RANGE, STATE, node_folder, pod_range
from e2e.cluster.shell import write

# A folder of the node -> where its daemons expect it; each node sees its own there.
MOUNTS = {
    "containerd": "/var/lib/containerd",
    "kubelet": "/var/lib/kubelet",
    "cni": "/var/lib/cni",
    "pod-logs": "/var/log/pods",
    "container-logs": "/var/log/containers",
}
SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "localhost/pause:e2e"

# Raising a process's priority with the out-of-memory killer takes a capability that a virtual machine's root may
# lack, hence `restrict_oom_score_adj` here and `oomScoreAdj` below.
_CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""


def write_containerd(path: Path, root: str, state: str, socket: str, cni: Path, opt: Path) -> Path:
    return write(path, _CONTAINERD.format(root=root, state=state, socket=socket, cni=cni, opt=opt, pause=PAUSE_IMAGE))


def write_all(number: int) -> None:
    folder = node_folder(number)
    etc = folder / "etc"
    for name in MOUNTS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    cni, opt = etc / "cni", folder / "opt"
    write_containerd(etc / "containerd.toml", MOUNTS["containerd"], "/run/containerd", SOCKET, cni, opt)
    write(etc / "resolv.conf", "")
    write(cni / "10-bridge.conflist", json.dumps(_cni(number), indent=1))
    write(etc / "kubelet.json", json.dumps(_kubelet(number), indent=1))
    write(etc / "proxy.json", json.dumps(_proxy(number), indent=1))


def _cni(number: int) -> dict[str, object]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": pod_range(number)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "e2e", "plugins": [bridge, ports]}


def _kubelet(number: int) -> dict[str, object]:
    folder = node_folder(number)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / f"node{number}.crt"),
        "tlsPrivateKeyFile": str(PKI / f"node{number}.key"),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}/node{number}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": DOMAIN,
        "clusterDNS": [DNS_IP],
        "resolvConf": str(folder / "etc" / "resolv.conf"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "serializeImagePulls": False,
        # The machine's disk is no concern of this cluster, and an image that was collected could not be pulled again.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 4,
        "shutdownGracePeriod": "0s",
    }


def _proxy(number: int) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(STATE / "conf" / "proxy.conf")},
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,  # what comes from elsewhere, the host, is masqueraded: answers take the way back
        "hostnameOverride": f"node{number}",
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "metricsBindAddress": "127.0.0.1:10249",
    }
