// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
)

// TestLostSoon: a gateway that has flows, or that this node votes for, is lost within 250 ms of its
// death by default, and not before three probes had an interval each, the last a third of it.
func TestLostSoon(t *testing.T) {
	for phase := range 20 {
		n := newNetwork(t, "a", "b", "w")
		voted := phase%2 == 0
		n.targets.Put(&tables.ProbeTarget{Node: "a", Addr: addrOf("a"), Voted: voted})
		n.run(time.Second)
		require.Equal(t, []tables.PathState{healthy, healthy, healthy}, n.states())
		if !voted {
			n.flows[addrOf("a")] = true
		}
		n.run(time.Second + time.Duration(phase)*n.prober.settings.tick())
		n.cut[addrOf("a")] = true
		died := n.now
		for n.row("a").State == healthy {
			n.run(1)
		}
		require.Equal(t, []tables.PathState{lost, healthy, healthy}, n.states())
		const interval = 75 * time.Millisecond
		require.LessOrEqual(t, n.now-died, 3*interval+interval/3, "%d", phase)
		require.GreaterOrEqual(t, n.now-died, 2*interval+interval/3)
	}
}

// TestOwnNetworkDown: when no node answers, none is lost, however long it takes and in whatever
// order they fall silent and come back.
func TestOwnNetworkDown(t *testing.T) {
	for seed := range 50 {
		n := newNetwork(t, "a", "b", "c", "w")
		n.random = rand.New(rand.NewPCG(uint64(seed), 1))
		if seed%2 == 0 {
			n.run(time.Second)
			n.flows[addrOf("a")] = true
		}
		n.run(time.Second + time.Duration(n.random.IntN(1000))*time.Millisecond)
		n.down = true
		n.run(time.Duration(50+n.random.IntN(3000)) * time.Millisecond)
		n.down = false
		n.run(time.Second)
		require.Equal(t, []tables.PathState{healthy, healthy, healthy, healthy}, n.states(), seed)
		for h := range n.health.All(n.db.ReadTxn()) {
			require.Zero(t, h.Losses, "%s: %v", h.Node, h.History)
		}
	}
}

// TestDeadBeforeNetwork: a gateway that is gone when the network comes back is lost then.
func TestDeadBeforeNetwork(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.run(time.Second)
	n.down = true
	n.run(7 * time.Second)
	require.Equal(t, []tables.PathState{unreachable, unreachable}, n.states())
	n.cut[addrOf("a")], n.down = true, false
	n.run(time.Second)
	require.Equal(t, []tables.PathState{lost, healthy}, n.states())
}

// TestFlapping: a gateway that was lost has to answer for longer each time.
func TestFlapping(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.run(time.Second)
	var waits []time.Duration
	for range 9 {
		n.cut[addrOf("a")] = true
		n.run(6 * time.Second)
		require.Equal(t, lost, n.row("a").State)
		n.cut[addrOf("a")] = false
		n.run(1100 * time.Millisecond)
		require.Equal(t, recovering, n.row("a").State)
		begin := n.now
		for n.row("a").State == recovering {
			n.run(100 * time.Millisecond)
		}
		waits = append(waits, (n.now - begin).Round(time.Second))
	}
	require.Equal(t, healthy, n.row("a").State)
	for i := 1; i < len(waits); i++ {
		require.GreaterOrEqual(t, waits[i], waits[i-1])
	}
	require.InDelta(t, time.Minute, waits[8], float64(2*time.Second))
	require.Len(t, n.row("a").History, tables.MaxPathHistory)
	n.run(forgiveAfter + time.Second)
	require.Zero(t, n.row("a").Losses)
}

// TestAnswersStop: packets of flows do not replace answers for long: they could be repeated.
func TestAnswersStop(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.run(time.Second)
	n.flows[addrOf("a")] = true
	n.run(20 * time.Second)
	sent := n.sent[addrOf("a")]
	require.Equal(t, healthy, n.row("a").State)
	n.run(10 * time.Second)
	require.LessOrEqual(t, n.sent[addrOf("a")]-sent, 11, "one each second, as there are packets")
	n.loss = 1
	clear(n.arrives)
	n.run(2 * time.Second)
	require.Equal(t, healthy, n.row("a").State)
	n.loss = 0
	n.run(time.Second)
	require.Equal(t, healthy, n.row("a").State)

	// Only probes of a are not answered now.
	n.prober.open = func(frames.Overlay) (transport, error) { return deaf{n, addrOf("a")}, nil }
	n.prober.closeTransport()
	n.run(5 * time.Second)
	require.Equal(t, lost, n.row("a").State)
}

// TestNoncesOfTheFuture: an agent whose clock is behind that of the former one, or to which a host
// sends answers of then, has the programs take the answers to its own probes.
func TestNoncesOfTheFuture(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.run(time.Second)
	n.prober.nonce += 1e18
	n.run(10 * time.Second)
	nonce := n.prober.nonce
	n.restart()
	n.run(10 * time.Second)
	require.Greater(t, n.prober.nonce, nonce)
	key, value := bpf.NodeKey{Addr: bpf.AddressFrom(addrOf("a"))}, bpf.PathValue{}
	require.NoError(t, n.noted.Lookup(key, &value))
	value.Nonces[value.Answers%bpf.PathNonces] = nonce + 1e18
	value.Answers++
	require.NoError(t, n.noted.Put(key, value))
	n.run(10 * time.Second)
	require.Greater(t, n.prober.nonce, nonce+1e18)
	require.Equal(t, []tables.PathState{healthy, healthy}, n.states())
	require.Zero(t, n.row("a").Losses)
}

// deaf loses the probes of a node.
type deaf struct {
	*network
	node netip.Addr
}

func (d deaf) Send(frame []byte, to netip.Addr) error {
	if to == d.node {
		return nil
	}
	return d.network.Send(frame, to)
}

// TestBusyAgent: an agent that does not run for a while loses no gateway by that, whether answers
// came meanwhile or the machine was too busy for them.
func TestBusyAgent(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.run(time.Second)
	for i := range 200 {
		n.run(time.Duration(n.random.IntN(300)) * time.Millisecond)
		pause := time.Duration(n.random.IntN(2000)) * time.Millisecond
		n.now += pause
		if i%2 == 0 { // what came in the meantime is dropped
			clear(n.arrives)
		}
		n.deliver()
		require.NoError(t, n.prober.tick(n.now, time.Unix(0, int64(n.now))))
	}
	for h := range n.health.All(n.db.ReadTxn()) {
		require.Zero(t, h.Losses, h.Node)
	}
}

// TestLongTrip: a network in which answers take longer than the interval loses no gateway.
func TestLongTrip(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.delay = 120 * time.Millisecond
	n.run(time.Minute)
	require.Equal(t, []tables.PathState{healthy, healthy}, n.states())
	require.Zero(t, n.row("a").Losses+n.row("b").Losses)
}

// TestRestart: a new agent knows from the kernel who has answered, so it notices a dead gateway;
// one that has never answered may run a version that does not, and is not lost.
func TestRestart(t *testing.T) {
	n := newNetwork(t, "a", "b", "w")
	n.cut[addrOf("b")] = true
	n.run(10 * time.Second)
	require.Equal(t, []tables.PathState{healthy, unprobed, healthy}, n.states())
	n.run(time.Minute)
	require.LessOrEqual(t, n.sent[addrOf("a")], 20, "what has never answered is no reason for doubt")

	for _, node := range []string{"a", "w"} {
		value := bpf.PathValue{Answered: n.now}
		require.NoError(t, n.noted.Put(bpf.NodeKey{Addr: bpf.AddressFrom(addrOf(node))}, value))
	}
	n.cut[addrOf("a")] = true
	n.restart()
	initialized := false
	n.prober.initialized = func(statedb.WriteTxn) {
		require.Equal(t, lost, n.row("a").State)
		initialized = true
	}
	n.run(time.Second)
	require.True(t, initialized)
	require.Equal(t, []tables.PathState{lost, unprobed, healthy}, n.states())
}

// TestTargetsAndKeys: paths follow the targets, and there are none without a key.
func TestTargetsAndKeys(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.run(time.Second)
	n.targets.Remove(&tables.ProbeTarget{Node: "a"})
	n.targets.Put(&tables.ProbeTarget{Node: "c", Addr: addrOf("c"), Witness: true})
	n.run(time.Second)
	require.Equal(t, []tables.PathState{healthy, healthy}, n.states())
	require.True(t, n.row("c").Witness)
	count := 0
	var key bpf.NodeKey
	var value bpf.PathValue
	for entries := n.noted.Iterate(); entries.Next(&key, &value); {
		count++
		require.NotEqual(t, bpf.AddressFrom(addrOf("a")), key.Addr)
	}
	require.Equal(t, 2, count)

	n.keys.Put(&tables.OverlayKeys{})
	n.now += n.prober.settings.tick()
	require.ErrorIs(t, n.prober.tick(n.now, time.Now()), errNotProbed)
	require.Empty(t, n.states())
}

func TestConfig(t *testing.T) {
	require.NoError(t, DefaultConfig.validate())
	require.NoError(t, Config{GatewayProbeFailures: 1}.validate())
	for flag, config := range map[string]Config{
		"gateway-probe-interval": {GatewayProbeInterval: time.Millisecond, GatewayProbeFailures: 3},
		"gateway-probe-failures": {GatewayProbeInterval: time.Second},
	} {
		require.ErrorContains(t, config.validate(), fmt.Sprintf("flag --%s", flag))
	}
}
