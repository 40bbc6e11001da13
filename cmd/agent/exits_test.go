// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables"
)

const (
	exitDevices = `
devices: [{index: 2, name: eth0, mac: "02:00:00:00:00:02"}, {index: 3, name: eth1, mac: "02:00:00:00:00:03"}]
routes: [{destination: 0.0.0.0/0, gateway: 192.168.0.254, device: eth0}]
`
	exitOnEth0 = exitDevices + "addresses: [{addr: 192.168.0.1, device: eth0}, {addr: 192.0.2.9, device: eth0, order: 1}]"
	exitOnEth1 = exitDevices + "addresses: [{addr: 192.168.0.1, device: eth0}, {addr: 192.0.2.9, device: eth1}]"
	exitGone   = exitDevices + "addresses: [{addr: 192.168.0.1, device: eth0}]"
)

// newGateway is a cluster whose node is the gateway of a policy with an egress
// IP, 192.0.2.9, that the node does not have yet.
func newGateway(t *testing.T) *cluster {
	c := newCluster(t, []string{"--node-name=node-1", "--retry-min=2ms", "--retry-max=20ms"})
	c.setNetwork(exitGone)
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply(lateNode("node-1", 1, "egress: a")))
	require.NoError(t, c.api.Apply([]byte(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: p}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [203.0.113.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: a}}, egressIP: 192.0.2.9}
`)))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.settle(t.Context()))
	return c
}

func (c *cluster) setNetwork(yaml string) {
	c.t.Helper()
	state, err := netlink.ParseState([]byte(yaml))
	require.NoError(c.t, err)
	c.netlink.Set(state)
}

// exitDevice is the device by which the kernel lets traffic leave with the
// egress IP, 0 if it lets none.
func (c *cluster) exitDevice() (ifIndex uint32) {
	c.memory.Read(func(r bpf.Reader) {
		v, _ := bpf.Get[bpf.ExitKey, bpf.ExitValue](r, "sluice_exits", bpf.ExitKey{Addr: bpf.AddressFrom(netip.MustParseAddr("192.0.2.9"))})
		ifIndex = v.IfIndex
	})
	return ifIndex
}

// attachedAt counts the programs at a device but the one that takes replies to all egress addresses.
func (c *cluster) attachedAt(ifIndex int) (n int) {
	for row := range c.attachments.List(c.oracle.DB.ReadTxn(), tables.AttachmentsByDevice(ifIndex)) {
		if row.Program != bpf.ProgramFromNetdev {
			n++
		}
	}
	return n
}

// Traffic does not leave with an egress address before the programs run at its
// device that know the replies: see deviceWritten, which looks at each write.
func TestExitWaitsForItsPrograms(t *testing.T) {
	c := newGateway(t)
	for range 5 {
		c.setNetwork(exitOnEth1)
		require.NoError(t, c.settle(t.Context()))
		require.EqualValues(t, 3, c.exitDevice())
		require.Zero(t, c.attachedAt(2))

		c.setNetwork(exitOnEth0)
		require.NoError(t, c.settle(t.Context()))
		require.EqualValues(t, 2, c.exitDevice())
		require.Zero(t, c.attachedAt(3))

		// So fast that the programs may be on their way out.
		c.setNetwork(exitGone)
		c.setNetwork(exitOnEth0)
		c.setNetwork(exitOnEth1)
		c.setNetwork(exitOnEth0)
		require.NoError(t, c.settle(t.Context()))
	}
}

// The programs at a device stay for as long as the kernel lets traffic leave by it.
func TestProgramsOutliveTheExit(t *testing.T) {
	c := newGateway(t)
	c.setNetwork(exitOnEth1)
	require.NoError(t, c.settle(t.Context()))

	c.memory.Inject(func(name string, op bpf.Op) error {
		if name == "sluice_exits" && op == bpf.OpDelete {
			return errors.New("injected")
		}
		return nil
	})
	c.setNetwork(exitGone)
	require.Eventually(t, func() bool {
		_, _, found := c.desire.Exits.Get(c.oracle.DB.ReadTxn(), tables.EgressExitByAddr(netip.MustParseAddr("192.0.2.9")))
		return !found
	}, settleTimeout, time.Millisecond)
	time.Sleep(late)
	require.EqualValues(t, 3, c.exitDevice())
	require.Equal(t, 1, c.attachedAt(3))

	c.memory.Inject(nil)
	require.Eventually(t, func() bool { return c.exitDevice() == 0 && c.attachedAt(3) == 0 }, settleTimeout, time.Millisecond)
	require.NoError(t, c.settle(t.Context()))
}
