// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
	"github.com/sluice-net/sluice/tables"
)

const announcePolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: prod}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
`

// cniAgents starts agents of two nodes with the CNI plugin, and returns them with the
// directory in which it tells the first of pods.
func cniAgents(t *testing.T, c *cluster.Cluster) (first, second *agent, runDir string) {
	agents := map[string]*agent{}
	for _, node := range []string{localNode, "node-2"} {
		dir := t.TempDir()
		run := filepath.Join(dir, "run")
		require.NoError(t, os.Mkdir(run, 0o700))
		if node == localNode {
			runDir = run
		}
		a := newAgent(t, c, "--bpf=memory", "--node-name="+node, "--cni-plugin", "--cni-run-dir="+run,
			"--object-status=false",
			"--cni-conf-dir="+filepath.Join(dir, "conf"), "--cni-bin-dir="+filepath.Join(dir, "bin"))
		a.start()
		agents[node] = a
	}
	for _, a := range agents {
		a.awaitReady()
	}
	return agents[localNode], agents["node-2"], runDir
}

// attach has the CNI plugin tell of the interface of a pod.
func attach(t *testing.T, runDir, name string, addrs ...string) {
	pod := map[string]any{
		"container": name, "ifName": "eth0", "namespace": "prod", "pod": name, "device": "veth" + name, "ifIndex": 4711,
		"mac": "02:00:00:00:00:07", "addrs": addrs, "created": "2026-01-02T00:00:01Z",
	}
	data, err := json.Marshal(pod)
	require.NoError(t, err)
	temporary := filepath.Join(runDir, ".new")
	require.NoError(t, os.WriteFile(temporary, data, 0o600))
	require.NoError(t, os.Rename(temporary, filepath.Join(runDir, name+"-eth0.json")))
}

// awaitAddrs waits until an agent knows a pod by some addresses.
func awaitAddrs(a *agent, name string, want ...string) {
	a.t.Helper()
	a.eventually(fmt.Sprintf("pod %s has %v", name, want), func() error {
		var dump map[string][]tables.Endpoint
		if status := a.decode("/statedb/dump/endpoints", &dump); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		for _, e := range dump["endpoints"] {
			if e.Name.Name == name && fmt.Sprint(e.Addrs) == fmt.Sprint(want) {
				return nil
			}
		}
		return fmt.Errorf("there are %+v", dump)
	})
}

// TestAnnounce: an agent knows the address of another node's new pod, of which the
// status says nothing, as the CNI plugin has told the agent there.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.CreateNamespace("prod", nil)
	for _, node := range []string{localNode, "node-2"} {
		c.CreateNode(cluster.Node{Name: node})
	}
	c.Apply(announcePolicy)
	c.CreatePod(cluster.Pod{Namespace: "prod", Name: "web", Labels: map[string]string{"app": "web"},
		Node: localNode})
	first, second, runDir := cniAgents(t, c)
	slices := c.Client().DiscoveryV1().EndpointSlices(cluster.Namespace)
	// podsOf returns what a slice says of pods: it may also have addresses of the node.
	podsOf := func(family string) (pods []discoveryv1.Endpoint, s *discoveryv1.EndpointSlice) {
		s, err := slices.Get(t.Context(), "sluice-node-1-"+family, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		require.NoError(t, err)
		for _, e := range s.Endpoints {
			if e.TargetRef.Kind == "Pod" {
				pods = append(pods, e)
			}
		}
		return pods, s
	}
	before, _ := podsOf("ipv4")
	require.Empty(t, before, "no pod is announced before")

	attach(t, runDir, "web", "10.1.0.7", "fd00:1::7")
	awaitAddrs(first, "web", "10.1.0.7", "fd00:1::7")
	awaitAddrs(second, "web", "10.1.0.7", "fd00:1::7")

	node, err := c.Client().CoreV1().Nodes().Get(t.Context(), localNode, metav1.GetOptions{})
	require.NoError(t, err)
	for family, addr := range map[string]string{"ipv4": "10.1.0.7", "ipv6": "fd00:1::7"} {
		pods, s := podsOf(family)
		require.Len(t, pods, 1)
		require.Equal(t, []string{addr}, pods[0].Addresses)
		require.Equal(t, node.UID, s.OwnerReferences[0].UID)
		for _, proxy := range []string{"!service.kubernetes.io/headless",
			"!service.kubernetes.io/service-proxy-name", discoveryv1.LabelServiceName} {
			left, err := slices.List(t.Context(), metav1.ListOptions{LabelSelector: proxy})
			require.NoError(t, err)
			require.Empty(t, left.Items, "seen with %s", proxy)
		}
	}

	// The next one is in the same slice, and so is what takes its place.
	c.CreatePod(cluster.Pod{Namespace: "prod", Name: "next", Labels: map[string]string{"app": "web"},
		Node: localNode})
	attach(t, runDir, "next", "10.1.0.8")
	awaitAddrs(second, "next", "10.1.0.8")
	attach(t, runDir, "next", "10.1.0.9")
	awaitAddrs(second, "next", "10.1.0.9")
	awaitAddrs(second, "web", "10.1.0.7", "fd00:1::7")
	require.NoError(t, os.Remove(filepath.Join(runDir, "next-eth0.json")))
	awaitAddrs(second, "next")

	// A sandbox that is made anew: the status has the former address.
	c.CreatePod(cluster.Pod{Namespace: "prod", Name: "anew", Labels: map[string]string{"app": "web"},
		Node: localNode, IPs: []netip.Addr{netip.MustParseAddr("10.1.0.20")}})
	awaitAddrs(second, "anew", "10.1.0.20")
	attach(t, runDir, "anew", "10.1.0.21")
	awaitAddrs(second, "anew", "10.1.0.21")

	// An agent that starts knows what others announce, and an API server that was away.
	second.kill()
	second.start()
	second.awaitReady()
	awaitAddrs(second, "web", "10.1.0.7", "fd00:1::7")
	c.KillAPIServer()
	attach(t, runDir, "next", "10.1.0.10")
	c.StartAPIServer()
	awaitAddrs(second, "next", "10.1.0.10")

	// What an agent has said that is dead does not count against a later status.
	first.kill()
	awaitAddrs(second, "anew", "10.1.0.21")
	_, err = c.Client().CoreV1().Pods("prod").Patch(t.Context(), "anew", types.MergePatchType,
		[]byte(`{"status": {"podIP": "10.1.0.22", "podIPs": [{"ip": "10.1.0.22"}]}}`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	awaitAddrs(second, "anew", "10.1.0.22")
}
