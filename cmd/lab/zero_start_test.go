// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
)

const (
	// zeroStartPods is how many pods start with the CNI plugin, and how many without, half
	// of them routed and half at a bridge.
	zeroStartPods = "SLUICE_ZERO_START_PODS"
	zeroDefault   = 72

	zeroBatch   = 60 // pods at the same time, at most
	zeroTimeout = 4 * time.Hour
)

// zero is a cluster on whose first node pods start, in batches that use the same
// addresses. They send, and others send to them, from their first instant on. A pod is of
// one of four kinds:
//
//	closed	a network policy isolates it: it neither sends nor receives
//	gated	egress policies give it addresses: by IPv4 of the other node, by IPv6 of its own
//	swapped	the same, by IPv4 of its own node, by IPv6 of the other
//	open	no policy selects it
//
// The node always reaches all of them.
type zero struct {
	*traffic
	plugin *cniPlugin // nil without
	node   *Node      // of the pods
	far    *Node      // the other one

	peers    []zeroPeer
	others   []netip.Addr // of peers, to which pods send
	speakers []netip.Addr // of the peers that send to pods
	asks     *talker      // of the pods' node
	pause    time.Duration
	addrs    []netip.Addr // of the pods of a batch, IPv4 and IPv6 in turn

	batches              int
	adds, firsts, laters times // of ADDs and connections while the agent is up
	resent               int   // of those, first connections with a second SYN
	zeroCount                  // of pods that have ended
}

type zeroPeer struct {
	*Namespace
	*talker
	name string
}

// zeroPhase is what becomes of the agent while a batch starts.
type zeroPhase string

const (
	agentUp       zeroPhase = "agent up"
	agentDown     zeroPhase = "agent down"
	agentStarting zeroPhase = "agent starting"
	nodeBooting   zeroPhase = "node booting"
)

// No packet of a new pod, and none to it, passes that policies forbid, or with another
// source than they give, whatever becomes of the agent. With the CNI plugin and an agent
// the first connection of a pod needs no second SYN.
func TestZeroStart(t *testing.T) {
	t.Parallel()
	pods := zeroDefault
	if text := os.Getenv(zeroStartPods); text != "" {
		var err error
		pods, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for _, plugin := range []bool{true, false} {
		name := map[bool]string{true: "plugin", false: "no plugin"}[plugin]
		var routed, bridged zeroCount
		t.Run(name, func(t *testing.T) {
			t.Run("routed", func(t *testing.T) {
				t.Parallel()
				testZeroStart(t, plugin, Options{}, pods/2, &routed)
			})
			t.Run("bridge", func(t *testing.T) {
				t.Parallel()
				testZeroStart(t, plugin, Options{BridgeCNI: true}, pods-pods/2, &bridged)
			})
		})
		routed.add(bridged)
		t.Logf("%s: %s", name, routed)
	}
}

func testZeroStart(t *testing.T, plugin bool, options Options, pods int, total *zeroCount) {
	phases := []zeroPhase{agentUp, agentDown, agentStarting}
	if plugin {
		phases = append(phases, nodeBooting) // without, a taint keeps pods from the node
	}
	batches := max(len(phases), (pods+zeroBatch-1)/zeroBatch)
	z := newZero(t, plugin, options, (pods+batches-1)/batches)
	defer func() {
		for _, peer := range z.peers {
			z.addTalker(peer.talker)
		}
		z.addTalker(z.asks)
		*total = z.zeroCount
		t.Log(total)
		t.Logf("agent up: first connection: %s; later connection: %s; ADD: %s; "+
			"%d of %d SYNs sent again", z.firsts, z.laters, z.adds, z.resent, len(z.firsts))
	}()
	began := time.Now()
	for z.batches < batches {
		phase := phases[z.batches%len(phases)]
		z.batch(phase)
		require.False(t, t.Failed())
		t.Logf("%s: batch %d of %d, %d pods after %s, forbidden: %d, wrong source: %d",
			phase, z.batches, batches, z.started, time.Since(began).Round(time.Second),
			z.forbidden, z.wrongSource)
	}
}

const zeroPolicies = `
apiVersion: v1
kind: Namespace
metadata: {name: default}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: default}
spec: {podSelector: {matchLabels: {app: closed}}, policyTypes: [Ingress, Egress]}
`

func newZero(t *testing.T, plugin bool, options Options, size int) *zero {
	t.Helper()
	options.Nodes, options.NoCapture, options.NoAgents = 2, true, true
	z := &zero{
		traffic: newTraffic(t, options),
		pause:   time.Duration(size) * time.Millisecond, // a rate that two cores carry
	}
	ctx, cancel := context.WithTimeout(context.Background(), zeroTimeout)
	t.Cleanup(cancel)
	z.ctx = ctx
	z.node, z.far = z.Nodes[0], z.Nodes[1]
	if plugin {
		z.plugin = buildPlugin(t)
		z.plugin.follow(z.Cluster)
	}
	require.NoError(t, z.StartAgents())
	require.NoError(t, z.ApplyYAML(zeroPolicies))
	var names []string
	for _, p := range []struct {
		app   string
		exit4 *Node
		exit6 *Node
	}{{"gated", z.far, z.node}, {"swapped", z.node, z.far}} {
		names = append(names, p.app+"4", p.app+"6")
		z.policy(
			egress{
				name: p.app + "4", app: p.app, to: []netip.Prefix{coveredIPv4},
				exits: []exit{{node: p.exit4.Name, ip: p.exit4.EgressIPv4}},
			},
			egress{
				name: p.app + "6", app: p.app, to: []netip.Prefix{coveredIPv6},
				exits: []exit{{node: p.exit6.Name, ip: p.exit6.EgressIPv6}},
			},
		)
	}
	near, far := z.pod(z.node, "near", "open"), z.pod(z.far, "far", "open")
	z.inForce(names)

	v4, v6 := podNetworks(z.node.number)
	for i := range size {
		number := podHosts + z.node.pods + i
		z.addrs = append(z.addrs, hostOf(v4, number), hostOf(v6, number))
	}
	z.addPeer("the world", z.World.Namespace, false, ServerIPv4, ServerIPv6)
	z.addPeer("its node", z.node.Namespace, false, z.node.IPv4, z.node.IPv6)
	z.addPeer("the other node", z.far.Namespace, true, z.far.IPv4, z.far.IPv6)
	z.addPeer("near", near.Namespace, true, near.IPv4, near.IPv6)
	z.addPeer("far", far.Namespace, true, far.IPv4, far.IPv6)
	z.asks = z.talk(z.node.Namespace, zeroQuestion, askPort)
	z.asks.say(z.addrs...)
	return z
}

// addPeer adds a peer, which sends to all addresses of pods if it speaks.
func (z *zero) addPeer(name string, n *Namespace, speaks bool, addrs ...netip.Addr) {
	z.t.Helper()
	k := z.talk(n, zeroPeerWord, talkPort)
	z.peers = append(z.peers, zeroPeer{n, k, name})
	z.others = append(z.others, addrs...)
	if speaks {
		z.speakers = append(z.speakers, addrs...)
		k.say(z.addrs...)
	}
}

// talk starts a talker that ends with the test.
func (z *zero) talk(n *Namespace, word string, port int) *talker {
	z.t.Helper()
	k, err := startTalker(n, word, port, z.pause)
	require.NoError(z.t, err)
	z.t.Cleanup(k.close)
	return k
}

// batch has pods start in a phase, judges what was heard, and ends them.
func (z *zero) batch(phase zeroPhase) {
	z.t.Helper()
	specs := z.specs()
	if phase != agentUp {
		z.interrupt(phase)
	}
	z.pendingPods(specs, phase)
	overflows := z.overflows()
	pods := z.start(specs, phase)
	if phase == agentDown || phase == agentUp && z.plugin == nil {
		time.Sleep(200 * time.Millisecond) // for which no agent knows the pods
		z.assertHeld(pods)
	}
	z.runPods(pods)
	if phase == agentDown {
		require.NoError(z.t, z.node.Agent.Start())
	}
	z.awaitAllowed(pods)
	z.checkConnections(pods, phase, overflows)
	z.end(pods)
	z.judge(pods)
}

// interrupt kills the agent, and starts it again as a phase has it.
func (z *zero) interrupt(phase zeroPhase) {
	z.t.Helper()
	agent := z.node.Agent
	agent.Kill()
	if phase == nodeBooting { // nothing is pinned, and /run is empty
		_, err := bpf.CleanupLinks(agent.BPFFS())
		require.NoError(z.t, err)
		_, err = bpf.Cleanup(agent.BPFFS())
		require.NoError(z.t, err)
		require.NoError(z.t, os.RemoveAll(z.plugin.runDir(z.node)))
		z.assertNoStart()
	}
	if phase != agentDown {
		require.NoError(z.t, agent.Start())
	}
}

// assertNoStart asserts that no pod starts on a node that booted, without an agent.
func (z *zero) assertNoStart() {
	z.t.Helper()
	pods, err := z.ConnectPods(PodSpec{Node: z.node, Name: "early"})
	require.NoError(z.t, err)
	require.ErrorContains(z.t, z.plugin.call("ADD", pods[0], "300ms"), "cannot start yet")
	require.NoError(z.t, z.RemovePod(pods[0]))
}

// gone returns an error while the kernel has addresses of the pods.
func (z *zero) gone() error {
	rows, err := Rows[MapRow](z.ctx, z.node.Agent, "map-pods")
	for _, r := range rows {
		if a := addrOf(fmt.Sprint(r.Key["Addr"])); slices.Contains(z.addrs, a) {
			return fmt.Errorf("the kernel has %s", a)
		}
	}
	if z.plugin == nil {
		err = errors.Join(err, z.forgotten())
	}
	return err
}

// forgotten returns an error while there are flows of the pods' talkers. Without the
// plugin, which removes them, those of the next pods would go on by them, as they have the
// same ports: docs/datapath.md.
func (z *zero) forgotten() (err error) {
	now, err := ctmap.Now()
	if err != nil {
		return err
	}
	all, err := ctmap.OpenAll(bpf.MapsDir(z.node.Agent.BPFFS()))
	for _, m := range all {
		err = errors.Join(err, m.Each(func(t ctmap.Tuple, e ctmap.Entry) bool {
			pod := t.Source.Addr()
			if t.Flags&ctmap.In != 0 {
				pod = t.Destination.Addr()
			}
			live := t.Protocol == unix.IPPROTO_UDP && e.Lifetime > now
			if live && slices.Contains(z.addrs, pod) {
				err = fmt.Errorf("there is a flow of %s: %v: %v", pod, t, e)
			}
			return err == nil
		}), m.Close())
	}
	return err
}
