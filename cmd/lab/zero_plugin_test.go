// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
)

// cniPlugin is the plugin, and calls it on a node as a container runtime does.
type cniPlugin struct{ binary string }

// buildPlugin builds the plugin, which is another program than the lab.
func buildPlugin(t testing.TB) *cniPlugin {
	p := &cniPlugin{filepath.Join(t.TempDir(), "sluice-cni")}
	out, err := exec.Command("go", "build", "-o", p.binary, "../sluice-cni").CombinedOutput()
	require.NoError(t, err, string(out))
	return p
}

// runDir is where the plugin tells the agent of a node of interfaces.
func (p *cniPlugin) runDir(n *Node) string { return filepath.Join(n.Agent.dir, "cni") }

// follow has the agents follow the plugin, and install it in a directory of the test.
func (p *cniPlugin) follow(c *Cluster) {
	for _, n := range c.Nodes {
		n.Agent.Flags = append(n.Agent.Flags, "--cni-plugin", "--cni-run-dir="+p.runDir(n),
			"--cni-conf-dir="+filepath.Join(n.Agent.dir, "net.d"),
			"--cni-bin-dir="+filepath.Join(n.Agent.dir, "bin"))
	}
}

// call runs a command of the plugin for the interface of a pod.
func (p *cniPlugin) call(command string, pod *Pod, timeout string) error {
	n := pod.Node
	sandbox := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pod.FD())
	ip := func(addr string) map[string]any { return map[string]any{"address": addr, "interface": 0} }
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "pods", "type": "sluice-cni", "timeout": timeout,
		"socket": n.Agent.Socket(), "runDir": p.runDir(n), "bpffs": n.Agent.mounts.path,
		"prevResult": map[string]any{
			"cniVersion": "1.1.0",
			"interfaces": []any{map[string]any{"name": PodDevice, "sandbox": sandbox}},
			"ips":        []any{ip(host(pod.IPv4).String()), ip(host(pod.IPv6).String())},
		},
	})
	if err != nil {
		return err
	}
	cmd := exec.Command(p.binary)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &out, &out
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + pod.Spec.Name, "CNI_NETNS=" + sandbox,
		"CNI_IFNAME=" + PodDevice, "CNI_PATH=/",
		"CNI_ARGS=K8S_POD_NAMESPACE=" + pod.Spec.Namespace + ";K8S_POD_NAME=" + pod.Spec.Name,
	}
	err = onThread(func() error {
		if err := netns.Set(n.ns); err != nil {
			return err
		}
		if err := n.Agent.mounts.enter(); err != nil {
			return err
		}
		return cmd.Run()
	})
	if err != nil {
		return fmt.Errorf("%s of %s: %w: %s", command, pod.Name, err, out.String())
	}
	return nil
}
