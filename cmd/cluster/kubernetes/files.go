// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
)

// Files of a node, below its etc/ on the disk.
const (
	containerdFile = "containerd.toml"
	kubeletFile    = "kubelet.yaml"
	proxyFile      = "kube-proxy.yaml"
	resolvFile     = "resolv.conf"
)

// cniPlugins are those of Debian's package that are used; they are linked to
// where CNI plugins usually are, so that others can be installed beside them.
var cniPlugins = []string{"bridge", "ptp", "host-local", "portmap", "loopback"}

const debianPlugins = "/usr/lib/cni"

// installFiles writes what the node has on its disk before its first boot.
func (n *Node) installFiles() error {
	upper := n.cluster.path(rootsDir, n.Name, "upper")
	for _, dir := range []string{
		n.diskPath("etc"), n.diskPath("var/lib"), n.diskPath("var/log"), n.diskPath("var/tmp"),
		n.cluster.path(rootsDir, n.Name, "work"),
		filepath.Join(upper, "etc/cni/net.d"), filepath.Join(upper, "opt/cni/bin"),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", n.diskPath("var/run")); err != nil {
		return err
	}
	for _, plugin := range cniPlugins {
		link := filepath.Join(upper, "opt/cni/bin", plugin)
		if err := os.Symlink(filepath.Join(debianPlugins, plugin), link); err != nil {
			return err
		}
	}
	for path, text := range map[string]string{
		filepath.Join(upper, "etc/cni/net.d/10-net.conflist"): n.cniConfig(),
		n.diskPath("etc", containerdFile):                     containerdConfig,
		n.diskPath("etc", kubeletFile):                        n.kubeletConfig(),
		n.diskPath("etc", proxyFile):                          n.proxyConfig(),
		n.diskPath("etc", resolvFile):                         "", // there is no DNS
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) cniConfig() string {
	main := `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`
	if n.cluster.options.CNI == PTP {
		main = `"type": "ptp"`
	}
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "net",
  "plugins": [
    {
      %s, "ipMasq": false, "mtu": %d,
      "ipam": {
        "type": "host-local", "dataDir": "/run/cni-ipam",
        "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, main, n.cluster.options.MTU, n.PodCIDR)
}

const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true # where CAP_SYS_RESOURCE is missing
  sandbox_image = "` + pauseImage + `"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

func (n *Node) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]s}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s/%[3]s
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
resolvConf: %[4]s
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: "1%%", imagefs.available: "1%%"}
registryPullQPS: 0
maxPods: 250
`, n.cluster.path(pkiDir, authority+".crt"), clusterCgroup, n.Name, n.diskPath("etc", resolvFile))
}

// proxyConfig leaves out the limits of conntrack, which are the machine's.
func (n *Node) proxyConfig() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, n.cluster.options.Proxy, n.Name, podsCIDR, n.cluster.kubeconfigPath(kubeProxy))
}
