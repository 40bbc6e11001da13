// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
)

func (n *network) losses() (losses int) {
	for h := range n.health.All(n.db.ReadTxn()) {
		losses += h.Losses
	}
	return losses
}

// note has the programs note packets of a node.
func (n *network) note(node string, change func(*bpf.PathValue)) {
	key, value := bpf.NodeKey{Addr: bpf.AddressFrom(addrOf(node))}, bpf.PathValue{}
	require.NoError(n, n.noted.Lookup(key, &value))
	change(&value)
	require.NoError(n, n.noted.Put(key, value))
}

// TestSlowNetwork: where answers take longer than the interval, a dead gateway is lost all the
// same, and living ones are not probed more for that.
func TestSlowNetwork(t *testing.T) {
	n := newNetwork(t, "a", "b", "w")
	n.delay = 90 * time.Millisecond
	n.run(time.Minute)
	before := n.sent[addrOf("b")]
	n.run(10 * time.Second)
	require.LessOrEqual(t, n.sent[addrOf("b")]-before, 3)
	n.cut[addrOf("a")] = true
	n.run(6 * time.Second)
	require.Equal(t, []tables.PathState{lost, healthy, healthy}, n.states())
}

// TestSomeLoss: a network that loses 2% of all packets loses no gateway.
func TestSomeLoss(t *testing.T) {
	for seed := range 10 {
		n := newNetwork(t, "a", "b", "w", "x")
		n.random = rand.New(rand.NewPCG(uint64(seed), 7))
		n.run(time.Second)
		if seed%2 == 0 {
			n.flows[addrOf("a")] = true
		}
		n.loss = 0.02
		n.run(10 * time.Minute)
		require.Zero(t, n.losses(), seed)
	}
}

// TestFlappingUplink: an uplink that comes and goes fast loses no gateway.
func TestFlappingUplink(t *testing.T) {
	for _, mean := range []int{50, 100, 200, 400, 1000} {
		for seed := range 5 {
			n := newNetwork(t, "a", "b", "w", "x")
			n.random = rand.New(rand.NewPCG(uint64(seed), 9))
			n.run(time.Second + time.Duration(seed)*25*time.Millisecond)
			n.flows[addrOf("a")] = true
			for end := n.now + time.Minute; n.now < end; {
				n.down = !n.down
				n.run(time.Duration(1+n.random.IntN(2*mean)) * time.Millisecond)
			}
			require.Zero(t, n.losses(), "up and down for %d ms", mean)
		}
	}
}

// TestNothingIsSent: that packets come from a node does not show that others should have answered,
// if nothing that this node sends gets through.
func TestNothingIsSent(t *testing.T) {
	n := newNetwork(t, "a", "b", "w")
	n.run(time.Second)
	n.flows[addrOf("a")] = true
	n.run(time.Second)
	n.down = true
	for range 80 {
		n.note("b", func(v *bpf.PathValue) { v.Seen = n.now })
		n.run(1)
	}
	require.Zero(t, n.losses(), n.states())
}

// TestFormerVersionIsNoWitness: packets of a node that answers no probes do not show it either.
func TestFormerVersionIsNoWitness(t *testing.T) {
	total := 0
	for seed := range 20 {
		n := newNetwork(t, "a", "w")
		n.random = rand.New(rand.NewPCG(uint64(seed), 3))
		n.prober.open = func(frames.Overlay) (transport, error) { return deaf{n, addrOf("w")}, nil }
		n.run(time.Second)
		n.flows[addrOf("a")], n.flows[addrOf("w")] = true, true
		n.run(2 * time.Second)
		require.Equal(t, []tables.PathState{healthy, unprobed}, n.states())
		for range 20 {
			n.down = true
			n.run(time.Duration(n.random.IntN(600)) * time.Millisecond)
			n.down = false
			n.run(time.Duration(n.random.IntN(600)) * time.Millisecond)
		}
		total += n.row("a").Losses
	}
	require.Zero(t, total)
}

// TestOneWayFlow: a flow that gets nothing back, as syslog by UDP, has few probes.
func TestOneWayFlow(t *testing.T) {
	n := newNetwork(t, "a", "b", "w")
	n.run(time.Second)
	before := n.sent[addrOf("a")]
	for range 400 {
		n.note("a", func(v *bpf.PathValue) { v.Sent = n.now })
		n.run(1)
	}
	require.LessOrEqual(t, n.sent[addrOf("a")]-before, 10*4, "in ten seconds")
}

// TestOverlayIsMadeAnew: what is known of paths outlives a moment without an overlay device.
func TestOverlayIsMadeAnew(t *testing.T) {
	n := newNetwork(t, "a", "b", "w")
	n.run(time.Second)
	n.cut[addrOf("a")] = true
	n.run(6 * time.Second)
	require.Equal(t, lost, n.row("a").State)
	n.settings.Put(&tables.DatapathConfig{Underlay: addrOf("!")})
	n.now += n.prober.settings.tick()
	require.ErrorIs(t, n.prober.tick(n.now, time.Now()), errNotProbed)
	n.settings.Put(&tables.DatapathConfig{Underlay: addrOf("!"), OverlayIfIndex: 8})
	n.run(time.Second)
	require.Equal(t, []tables.PathState{lost, healthy, healthy}, n.states())
}

// TestWitnessBecomesGateway: what is known of a witness holds for the gateway that it becomes.
func TestWitnessBecomesGateway(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.targets.Put(&tables.ProbeTarget{Node: "w", Addr: addrOf("w"), Witness: true})
	n.run(time.Second)
	n.cut[addrOf("w")] = true
	n.run(6 * time.Second)
	require.Equal(t, lost, n.row("w").State)
	n.targets.Put(&tables.ProbeTarget{Node: "w", Addr: addrOf("w")})
	n.run(25 * time.Millisecond)
	require.True(t, n.row("w").Lost(), n.row("w").State)
}

// TestInitializedByAnswers: the table is initialized when all have answered, without waiting
// longer.
func TestInitializedByAnswers(t *testing.T) {
	n := newNetwork(t, "a", "b", "w")
	begin, at := n.now, time.Duration(0)
	n.prober.initialized = func(statedb.WriteTxn) { at = n.now }
	n.run(time.Second)
	require.LessOrEqual(t, at-begin, 2*n.prober.settings.tick())
}

// TestLargeCluster: the more nodes there are, the less often each of them probes a gateway that has
// flows. One that dies is lost as soon as in a small cluster.
func TestLargeCluster(t *testing.T) {
	for nodes, every := range map[int]time.Duration{
		3: time.Second, 1_000: time.Second, 3_000: 3 * time.Second, 9_000: 5 * time.Second,
	} {
		n := newNetwork(t, "a", "b", "w")
		for i := range nodes {
			n.nodes.Put(&tables.Node{Name: fmt.Sprint("node-", i)})
		}
		n.run(time.Second)
		n.flows[addrOf("a")] = true
		n.run(10 * time.Second)
		before := n.sent[addrOf("a")]
		n.run(time.Minute)
		require.InDelta(t, time.Minute/every, n.sent[addrOf("a")]-before, 1, "%d nodes", nodes)
		n.cut[addrOf("a")] = true
		died := n.now
		for n.row("a").State == healthy {
			n.run(1)
		}
		require.LessOrEqual(t, n.now-died, 4*75*time.Millisecond, "%d nodes", nodes)
	}
}
