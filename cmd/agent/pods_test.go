// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// podRoutes is a network whose routes lead to a pod by one of two devices, or by none.
func podRoutes(device string) string {
	routes := ""
	if device != "" {
		routes = fmt.Sprintf("routes: [{destination: 10.0.1.1/32, device: %s}]", device)
	}
	return `
devices: [{index: 2, name: vetha, type: veth, mac: "02:00:00:00:00:02"}, {index: 3, name: vethb, type: veth, mac: "02:00:00:00:00:03"}]
` + routes
}

func newPodCluster(t *testing.T) *cluster {
	c := newCluster(t, []string{"--node-name=node-1", "--retry-min=2ms", "--retry-max=20ms"})
	c.setNetwork(podRoutes(""))
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply(lateNode("node-1", 1, "egress: a")))
	require.NoError(t, c.api.Apply([]byte(`
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c}]}
status: {phase: Running, podIP: 10.0.1.1, podIPs: [{ip: 10.0.1.1}]}
`)))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.settle(t.Context()))
	return c
}

// podDevice is the device that the kernel has of the pod, 0 if it has none.
func (c *cluster) podDevice() (ifIndex uint32) {
	c.memory.Read(func(r bpf.Reader) {
		v, _ := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods",
			bpf.PodKey{Addr: bpf.AddressFrom(netip.MustParseAddr("10.0.1.1"))})
		ifIndex = v.IfIndex
	})
	return ifIndex
}

// The kernel has no device of a pod before the programs run there: see deviceWritten,
// which looks at each write.
func TestPodWaitsForItsPrograms(t *testing.T) {
	c := newPodCluster(t)
	for range 5 {
		c.setNetwork(podRoutes("vetha"))
		require.NoError(t, c.settle(t.Context()))
		require.EqualValues(t, 2, c.podDevice())
		require.Equal(t, 2, c.attachedAt(2))

		c.setNetwork(podRoutes("vethb"))
		require.NoError(t, c.settle(t.Context()))
		require.EqualValues(t, 3, c.podDevice())
		require.Equal(t, 2, c.attachedAt(2), "as long as there is the device")
		require.Equal(t, 2, c.attachedAt(3))

		// So fast that the programs may be on their way out.
		c.setNetwork(podRoutes("vetha"))
		c.setNetwork(podRoutes(""))
		c.setNetwork(podRoutes("vethb"))
		c.setNetwork(podRoutes("vetha"))
		require.NoError(t, c.settle(t.Context()))
	}
}

// The programs stay for as long as the device does, whatever becomes of the pod's object: its
// containers may run on.
func TestProgramsOutliveThePod(t *testing.T) {
	c := newPodCluster(t)
	c.setNetwork(podRoutes("vetha"))
	require.NoError(t, c.settle(t.Context()))
	require.NoError(t, c.api.Delete([]byte(`
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
`)))
	require.NoError(t, c.quiet(t.Context()))
	require.EqualValues(t, 2, c.podDevice())
	require.Equal(t, 2, c.attachedAt(2))

	c.setNetwork(`devices: [{index: 3, name: vethb, type: veth, mac: "02:00:00:00:00:03"}]`)
	require.NoError(t, c.settle(t.Context()))
	require.Zero(t, c.podDevice())
	require.Zero(t, c.attachedAt(2))
}
