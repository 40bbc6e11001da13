// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/netlink"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// After any sequence of events the maps make of packets what the policies ask
// for, and rulesets and classes are no finer than the policies. Event by event, a verdict
// changes once at most.
func TestRandomPolicyEvents(t *testing.T) {
	for seed := range randomSeeds(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newPolicyGenerator(t, seed)
			for i := range 60 {
				change := g.change()
				require.NoError(t, g.settlePolicies(t.Context()), "event %d: %s", i, change)
			}
		})
	}
}

// The same with writes that fail, with agents that are killed at any write, after
// which the next one goes on, and with changes that no agent sees happen.
func TestRandomPolicyEventsAndFaults(t *testing.T) {
	for seed := range randomSeeds(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newPolicyGenerator(t, 1000+seed)
			for i := range 40 {
				change, fault := g.faultyChange(t.Context())
				require.NoError(t, g.settlePolicies(t.Context()), "event %d, %s: %s", i, fault, change)
			}
		})
	}
}

// Many events at once, with faults. When these stop, all is right again with no new
// event, and meanwhile every packet has a verdict.
func TestRandomPolicyStorms(t *testing.T) {
	for seed := range randomSeeds(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newPolicyGenerator(t, 4000+seed)
			for i := range 8 {
				var storm []string
				for range 1 + g.IntN(6) {
					if g.IntN(2) == 0 {
						storm = append(storm, g.change().String())
						continue
					}
					change, fault := g.faultyChange(t.Context())
					storm = append(storm, fault, change.String())
				}
				require.NoError(t, g.agreesOnPolicies(t.Context()), "storm %d: %s", i, storm)
				require.NoError(t, g.policies.withoutVerdicts(), "storm %d: %s", i, storm)
				g.look()
			}
		})
	}
}

// While the map of verdicts has no room for more, a packet meets the verdict of
// before a change or that of after it, or is denied; when there is room, that of
// after it, with no new event.
func TestPolicyMapFull(t *testing.T) {
	for seed := range randomSeeds(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newPolicyGenerator(t, 5000+seed)
			g.policies.failClosed = true
			for i := range 15 {
				entries := g.desire.Entries.NumObjects(g.base.DB.ReadTxn())
				g.memory.Resize("sluice_policy", uint32(max(1, entries+g.IntN(4))))
				change := g.change()
				g.pause(func() bool { return false })
				g.memory.Resize("sluice_policy", 1<<16)
				require.NoError(t, g.settlePolicies(t.Context()), "event %d: %s", i, change)
			}
		})
	}
}

// policyGenerator makes random changes in a small cluster, and looks at what the
// maps make of packets meanwhile.
type policyGenerator struct {
	*cluster
	*policytest.Generator
	policies *policyChecker
}

// newPolicyGenerator begins with an agent at rest in a world that is full already.
func newPolicyGenerator(t *testing.T, seed uint64) *policyGenerator {
	random := policytest.NewGenerator(seed)
	g := newPolicyCluster(t, random, policyFlags(random)...)
	g.apply(random.World(14, 8)...)
	g.begin()
	g.look()
	return g
}

// newPolicyCluster has no objects, and an agent that has not begun.
func newPolicyCluster(t *testing.T, random *policytest.Generator, flags ...string) *policyGenerator {
	g := &policyGenerator{Generator: random}
	g.cluster = newCluster(t, append([]string{"--node-name=" + policytest.LocalNode, "--retry-min=2ms", "--retry-max=20ms"}, flags...))
	g.policies = newPolicyChecker(g.memory, g.policyOptions().HostAllowed)
	network, err := netlink.ParseState([]byte(policyNetwork))
	require.NoError(t, err)
	g.netlink.Set(network)
	return g
}

func (g *policyGenerator) apply(manifests ...string) {
	for _, manifest := range manifests {
		require.NoError(g.t, g.api.Apply([]byte(manifest)))
	}
}

// begin starts the agent, and returns when it is at rest.
func (g *policyGenerator) begin() {
	require.NoError(g.t, g.api.Sync())
	require.NoError(g.t, g.hive.Start(g.log, g.t.Context()))
	require.NoError(g.t, g.agreesOnPolicies(g.t.Context()), "the beginning, with %s", g.args)
}

// watch has packets looked at from now on.
func (g *policyGenerator) watch(packets []policytest.Packet) {
	g.memory.Read(func(r bpf.Reader) { g.policies.watch(packets, g.world(g.base.DB.ReadTxn()), r) })
}

// ingressOf are packets of some peers to a pod.
func ingressOf(subject string, peers ...string) (packets []policytest.Packet) {
	for _, peer := range peers {
		packets = append(packets, policytest.Packet{
			Subject: netip.MustParseAddr(subject), Peer: netip.MustParseAddr(peer), Direction: bpf.DirectionIngress, Protocol: 6, Port: 80,
		})
	}
	return packets
}

// localNodeManifest is the node of the agent.
const localNodeManifest = "{apiVersion: v1, kind: Node, metadata: {name: " + policytest.LocalNode + "}, spec: {podCIDRs: [10.0.0.0/24]}, status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}"

const policyNetwork = `
devices: [{index: 2, name: eth0, mac: "02:00:00:00:00:02"}]
addresses: [{addr: 192.168.0.1, device: eth0}, {addr: "fd01::1", device: eth0}]
`

// policyFlags makes up flags that verdicts depend on.
func policyFlags(g *policytest.Generator) (flags []string) {
	switch g.IntN(8) {
	case 0:
		flags = append(flags, "--enforcement=always")
	case 1:
		flags = append(flags, "--policy-cidr-match=pods,nodes")
	case 2:
		flags = append(flags, "--policy-cidr-match=nodes")
	case 3:
		if g.IntN(4) == 0 {
			flags = append(flags, "--enforcement=never")
		}
	}
	if g.IntN(2) == 0 {
		flags = append(flags, "--allow-localhost=policy")
	}
	if g.IntN(2) == 0 {
		flags = append(flags, "--cluster-cidrs=172.20.0.0/16")
	}
	return flags
}

// watchedPackets is how many packets are looked at after each write.
const watchedPackets = 300

// look has other packets looked at from now on. Some are about addresses that
// are to come.
func (g *policyGenerator) look() {
	w := g.world(g.base.DB.ReadTxn())
	packets := w.Packets(rand.New(rand.NewPCG(g.Uint64(), 0)), watchedPackets)
	g.memory.Read(func(r bpf.Reader) { g.policies.watch(packets, w, r) })
}

// change makes something happen, and says what.
func (g *policyGenerator) change() policytest.Change {
	change := g.Change()
	do := g.api.Apply
	if change.Delete {
		do = g.api.Delete
	}
	if err := do([]byte(change.Manifest)); err != nil && !strings.Contains(err.Error(), "not found") {
		g.t.Errorf("%s: %v", change, err)
	}
	return change
}

func (g *policyGenerator) faults(percent int) {
	random := rand.New(rand.NewPCG(g.Uint64(), 0))
	g.memory.Inject(func(string, bpf.Op) error {
		if random.IntN(100) < percent {
			return errFault
		}
		return nil
	})
}

// faultyChange is a change beside which something goes wrong, or nothing does.
func (g *policyGenerator) faultyChange(ctx context.Context) (change policytest.Change, fault string) {
	switch g.IntN(4) {
	case 0:
		g.faults(20)
		change = g.change()
		g.pause(func() bool { return false })
		g.memory.Inject(nil)
		return change, "failing writes"
	case 1:
		writes := g.IntN(20)
		died := g.killAfter(writes)
		change = g.change()
		g.pause(died.Load)
		g.restart(ctx, func() {})
		return change, fmt.Sprintf("killed after %d writes", writes)
	case 2:
		g.restart(ctx, func() { change = g.change() })
		return change, "unseen"
	}
	return g.change(), "no fault"
}

// killAfter has the kernel take some more writes and then none, and tells when it
// refused the first.
func (g *policyGenerator) killAfter(writes int) *atomic.Bool {
	died := &atomic.Bool{}
	g.memory.Inject(func(string, bpf.Op) error {
		if writes--; writes < 0 {
			died.Store(true)
			return errFault
		}
		return nil
	})
	return died
}

// pause lets the agent do something, for as long as it is of interest.
func (g *policyGenerator) pause(enough func() bool) {
	for i := 0; i < 50 && !enough(); i++ {
		time.Sleep(settledPause)
	}
}

// restart ends the agent, and begins with another one on the maps as they are,
// which no longer fail.
func (g *policyGenerator) restart(ctx context.Context, meanwhile func()) {
	require.NoError(g.t, g.hive.Stop(g.log, ctx))
	g.memory.Inject(nil)
	meanwhile()
	g.construct()
	require.NoError(g.t, g.hive.Start(g.log, ctx))
}

// settlePolicies waits until nothing changes any more, and checks what came of it.
func (g *policyGenerator) settlePolicies(ctx context.Context) error {
	err := g.agreesOnPolicies(ctx)
	w := g.world(g.base.DB.ReadTxn())
	err = errors.Join(err, g.policies.rest(w))
	if g.IntN(4) == 0 {
		g.look()
	}
	return err
}
