// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// zeroPods is how many pods come in a batch, unless the environment says another number.
const zeroPods = 12

// zero is a cluster to which pods come that send, and are sent to, from their first
// instant on. Of three kinds:
//
//	closed	a network policy isolates them: they neither send nor receive
//	gated	an egress policy gives them an address: the world hears them from no other
//	open	no policy chooses them: all hear them in the end, and they hear all
//
// The node on which they are reaches all of them, always.
type zero struct {
	*traffic
	node   *Node
	batch  int
	others []netip.Addr // peers of the pods

	world, near, far, node1, node2 *talker
	asks                           *talker // of the pods' node
	gateway                        *Node
}

type zeroPod struct {
	*Pod
	kind   string
	talker *talker
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

func newZero(t *testing.T, options Options) *zero {
	t.Helper()
	options.Nodes = 2
	options.NoCapture = true
	z := &zero{traffic: newTraffic(t, options)}
	z.node, z.gateway = z.Nodes[0], z.Nodes[1]
	require.NoError(t, z.ApplyYAML(zeroPolicies))
	peers, err := z.AddPods(
		PodSpec{Node: z.Nodes[0], Name: "near", Labels: map[string]string{"app": "open"}},
		PodSpec{Node: z.Nodes[1], Name: "far", Labels: map[string]string{"app": "open"}},
	)
	require.NoError(t, err)
	z.policy(
		egress{name: "bank4", app: "gated", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: z.gateway.Name, ip: z.gateway.EgressIPv4}}},
		egress{name: "bank6", app: "gated", to: []netip.Prefix{coveredIPv6}, exits: []exit{{node: z.gateway.Name, ip: z.gateway.EgressIPv6}}},
	)
	z.inForce([]string{"bank4", "bank6"})
	for k, n := range map[**talker]*Namespace{
		&z.world: z.World.Namespace, &z.near: peers[0].Namespace, &z.far: peers[1].Namespace,
		&z.node1: z.Nodes[0].Namespace, &z.node2: z.Nodes[1].Namespace,
	} {
		*k, err = startTalker(n, "peer", talkPort)
		require.NoError(t, err)
		t.Cleanup((*k).close)
	}
	z.asks, err = startTalker(z.node.Namespace, zeroQuestion, askPort)
	require.NoError(t, err)
	t.Cleanup(z.asks.close)
	z.others = []netip.Addr{
		ServerIPv4, ServerIPv6, peers[0].IPv4, peers[0].IPv6, peers[1].IPv4, peers[1].IPv6,
		z.Nodes[0].IPv4, z.Nodes[0].IPv6, z.Nodes[1].IPv4, z.Nodes[1].IPv6,
	}
	return z
}

// specs are those of the pods of the next batch. They have the addresses of the last one
// if these are to be used again.
func (z *zero) specs(addrs []netip.Addr) (specs []PodSpec) {
	z.t.Helper()
	n := zeroPods
	if text := os.Getenv("SLUICE_LAB_ZERO_PODS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(z.t, err)
	}
	z.batch++
	for i := range n {
		kind := []string{"closed", "gated", "open"}[(i+z.batch)%3] // of another kind than the last one there
		spec := PodSpec{Node: z.node, Name: fmt.Sprintf("%s-%d-%d", kind, z.batch, i), Labels: map[string]string{"app": kind}}
		if addrs != nil {
			spec.IPv4, spec.IPv6 = addrs[2*i], addrs[2*i+1]
		}
		specs = append(specs, spec)
	}
	return specs
}

// next are the addresses that the pods of the next batch get.
func (z *zero) next(n int) (addrs []netip.Addr) {
	v4, v6 := podNetworks(z.node.number)
	for i := range n {
		addrs = append(addrs, hostOf(v4, podHosts+z.node.pods+i), hostOf(v6, podHosts+z.node.pods+i))
	}
	return addrs
}

// begin has peers and nodes talk to addresses, and pods appear there that talk.
func (z *zero) begin(addrs []netip.Addr, fresh bool) []*zeroPod {
	z.t.Helper()
	if fresh {
		for _, k := range []*talker{z.near, z.far, z.node2, z.asks} {
			k.say(addrs...)
		}
	}
	pods, err := z.connectTalking(z.specs(addrs))
	require.NoError(z.t, err)
	return pods
}

// known tells the agents of pods.
func (z *zero) known(pods []*zeroPod) {
	z.t.Helper()
	objects := make([]Object, len(pods))
	for i, p := range pods {
		objects[i] = p.Object()
	}
	require.NoError(z.t, z.Apply(objects...))
}

// heardByAll waits until all that may pass has passed: where it does not, programs hold
// more than they must, or the talkers do not talk.
func (z *zero) heardByAll(pods []*zeroPod) {
	z.t.Helper()
	both := func(p *zeroPod, what string, heard map[netip.Addr]int) error {
		if v4, v6 := families(heard); !v4 || !v6 {
			return fmt.Errorf("%s: %s: %v", p.Name, what, heard)
		}
		return nil
	}
	z.eventually("all is heard that may be", func() error {
		for _, p := range pods {
			if err := both(p, "the node's questions", p.talker.sources(zeroQuestion)); err != nil {
				return err
			}
			if err := both(p, "answers to the node", z.asks.sources(zeroAnswer+p.talker.word)); err != nil {
				return err
			}
			hearers := map[string]*talker{"the world": z.world, "near": z.near, "far": z.far, "its node": z.node1, "the other node": z.node2}
			if p.kind == "closed" {
				hearers = nil
			} else if v4, v6 := families(p.talker.sources("peer")); !v4 || !v6 {
				return fmt.Errorf("%s has heard %v", p.Name, p.talker.sources("peer"))
			}
			for name, k := range hearers {
				if err := both(p, name, k.sources(p.talker.word)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// judge asserts that nothing was heard that must not be.
func (z *zero) judge(pods []*zeroPod) {
	z.t.Helper()
	for _, p := range pods {
		switch p.kind {
		case "closed":
			require.Empty(z.t, p.talker.sources("peer"), "%s has heard peers", p.Name)
			for name, k := range map[string]*talker{"the world": z.world, "near": z.near, "far": z.far, "its node": z.node1, "the other node": z.node2} {
				require.Empty(z.t, k.sources(p.talker.word), "%s has heard %s", name, p.Name)
			}
		case "gated":
			for from := range z.world.sources(p.talker.word) {
				require.Contains(z.t, []netip.Addr{z.gateway.EgressIPv4, z.gateway.EgressIPv6}, from, "the world has heard %s", p.Name)
			}
		}
	}
}

// nobodyKnows asserts that pods of which no agent has heard are held, but for their node.
func (z *zero) nobodyKnows(pods []*zeroPod) {
	z.t.Helper()
	for _, p := range pods {
		require.Empty(z.t, p.talker.sources("peer"), "%s has heard peers", p.Name)
		for name, k := range map[string]*talker{"the world": z.world, "near": z.near, "far": z.far, "its node": z.node1, "the other node": z.node2} {
			require.Empty(z.t, k.sources(p.talker.word), "%s has heard %s", name, p.Name)
		}
	}
	z.eventually("the node reaches its pods", func() error {
		for _, p := range pods {
			if v4, v6 := families(z.asks.sources(zeroAnswer + p.talker.word)); !v4 || !v6 {
				return fmt.Errorf("%s has not answered", p.Name)
			}
		}
		return nil
	})
}

func (z *zero) end(pods []*zeroPod) {
	z.t.Helper()
	for _, p := range pods {
		p.talker.close()
		require.NoError(z.t, z.RemovePod(p.Pod))
	}
}

// No packet of a pod, and none to it, passes unjudged or with another source than it is to
// have: not before the agent knows of the pod, nor while no agent runs, nor while one
// starts.
func TestZeroPackets(t *testing.T) {
	for _, bridge := range []bool{false, true} {
		t.Run(map[bool]string{false: "routed", true: "bridge"}[bridge], func(t *testing.T) {
			z := newZero(t, Options{BridgeCNI: bridge})
			size := len(z.specs(nil))

			// The agent runs, and hears of pods when they talk already.
			addrs := z.next(size)
			for round := range 3 {
				pods := z.begin(addrs, round == 0)
				time.Sleep(200 * time.Millisecond)
				z.known(pods)
				z.heardByAll(pods)
				z.judge(pods)
				z.end(pods) // the next round uses the addresses again
				z.eventually("the pods are gone", func() error { return z.gone(addrs) })
			}

			// It does not run.
			z.node.Agent.Kill()
			down := z.begin(z.next(size), true)
			z.known(down)
			z.nobodyKnows(down)
			z.judge(down)

			// It starts.
			require.NoError(t, z.node.Agent.Start())
			starting := z.begin(z.next(size), true)
			z.known(starting)
			require.NoError(t, z.node.Agent.AwaitReady(z.ctx))
			for _, pods := range [][]*zeroPod{down, starting} {
				z.heardByAll(pods)
				z.judge(pods)
				z.end(pods)
			}
		})
	}
}

// gone says which pods the kernel still has.
func (z *zero) gone(addrs []netip.Addr) error {
	return AwaitRows(z.ctx, z.node.Agent, "map-pods", func(rows []MapRow) error {
		for _, r := range rows {
			for _, a := range addrs {
				if fmt.Sprint(r.Key["Addr"]) == a.String() {
					return fmt.Errorf("the kernel has %s", a)
				}
			}
		}
		return nil
	})
}
