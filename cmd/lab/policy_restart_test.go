// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// steady is a cluster in which policies and labels change that do not concern what is
// watched, or do so in ways that come to the same. No packet that is allowed all the
// time may be lost, and none may pass that is forbidden all the time, of flows that
// live long and of new ones.
type steady struct {
	*policyTest
	position int    // of the drops
	before   uint64 // packets that policies had dropped
	lost     uint64 // packets that the machine had lost
	mayHold  bool   // pods may be held for a moment, as by agents of a former version
	// counters of packets of all nodes, also those that agents of another version have replaced
	counters map[ebpf.MapID]*ebpf.Map

	probes  *flowProbes
	streams []*Stream
	calls   *background
	churn   *background
}

// beginSteady builds the cluster. It is not to be beside other tests: it is the
// machine's limit that would be tested.
func beginSteady(t *testing.T, options Options) *steady {
	t.Helper()
	s := &steady{policyTest: newPolicyTest(t, options), counters: map[ebpf.MapID]*ebpf.Map{}}
	decoys := s.addPods(
		PodSpec{Node: s.Nodes[0], Namespace: "shop", Name: "decoy-1", Labels: map[string]string{"app": "decoy"}},
		PodSpec{Node: s.Nodes[1], Namespace: "shop", Name: "decoy-2", Labels: map[string]string{"app": "decoy"}},
	)
	s.apply(parsed(t, steadyPolicies+serverForms[0]+"---"+clientForms[0])...)
	s.inForce(nil)
	s.check(`
client near  tcp/80   allowed
client far   udp/80   allowed
client world udp/8000 allowed
other  near  udp/80   ingress
`)
	s.position, s.before, s.lost = s.policyTest.drops.position(), s.denied(), machineDrops(t)
	s.probes = s.startProbes(100,
		s.probe("client", "near", true), s.probe("client", "far", true), s.probe("client", "world", true),
		s.probe("other", "near", false), s.probe("other", "far", false), s.probe("stranger", "near", false),
		s.probe("client", "other", false), s.probe("client", notCoveredIPv4.String(), false),
	)
	s.streams = s.steadyStreams()
	s.calls = s.startCalls("client near tcp4/80", "client far tcp6/80")
	s.churn = s.startChurn(decoys)
	return s
}

func (s *steady) probe(from, to string, allowed bool) *flowProbe {
	s.t.Helper()
	src, dst := s.place(from), s.place(to)
	return &flowProbe{name: from + " to " + to, from: src.Namespace, src: src.ipv4, dst: dst.ipv4, allowed: allowed}
}

// denied is how many packets policies have dropped.
func (s *steady) denied() uint64 {
	s.t.Helper()
	return s.counted(bpf.ReasonPolicyDenied, bpf.ReasonPolicyRule)
}

// counted is how many packets had one of the reasons on all nodes.
func (s *steady) counted(reasons ...bpf.Reason) (total uint64) {
	s.t.Helper()
	s.keepCounters()
	for _, m := range s.counters {
		for _, reason := range reasons {
			packets, err := packetsIn(m, reason)
			require.NoError(s.t, err)
			total += packets
		}
	}
	return total
}

// keepCounters opens the counters that are pinned: an agent of a version with other reasons
// pins its own in their place.
func (s *steady) keepCounters() {
	s.t.Helper()
	for _, n := range s.Nodes {
		m, err := n.openCounters()
		require.NoError(s.t, err)
		info, err := m.Info()
		require.NoError(s.t, err)
		id, known := info.ID()
		require.True(s.t, known)
		if s.counters[id] != nil {
			m.Close()
			continue
		}
		s.counters[id] = m
		s.t.Cleanup(func() { m.Close() })
	}
}

// machine is how many packets may be missing.
func (s *steady) machine() uint64 {
	s.t.Helper()
	missing := machineDrops(s.t) - s.lost
	if s.mayHold {
		missing += s.held()
	}
	return missing
}

// held is how many packets were dropped that are of pods without an entry, or for them.
func (s *steady) held() uint64 {
	s.t.Helper()
	return s.counted(bpf.ReasonPodNotReady, bpf.ReasonNoRule)
}

// more waits until the streams have had further answers.
func (s *steady) more() {
	s.t.Helper()
	l := &load{tr: s.traffic, streams: s.streams}
	l.more(50)
}

// settle stops the changes and waits until the agents have taken in all of them.
func (s *steady) settle() (changes int) {
	s.t.Helper()
	changes = s.churn.end(s.t)
	require.NoError(s.t, s.AwaitAgents(s.ctx))
	for _, n := range s.Nodes {
		require.NoError(s.t, n.Agent.AwaitSettled(s.ctx))
	}
	s.more()
	return changes
}

// judge stops the traffic and asserts what has become of it.
func (s *steady) judge() {
	s.t.Helper()
	connections := s.calls.end(s.t)
	forbidden := s.probes.end(s.policyTest, s.machine)
	dropped := s.denied() - s.before
	s.t.Logf("%d connections, %d forbidden packets and %d drops, the machine lost %d", connections, forbidden, dropped, s.machine())
	for i, r := range stopAll(s.streams) {
		require.LessOrEqual(s.t, r.Lost(), s.machine(), "stream %d: %v, missing %v", i, r, r.Missing)
	}
	require.LessOrEqual(s.t, dropped, forbidden, "drops of what is allowed")
	require.LessOrEqual(s.t, forbidden-dropped, s.machine(), "what is forbidden is not dropped by a policy")
}

// moment logs when something is done, to be compared with when packets were lost.
func (s *steady) moment(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("%s %s", time.Now().Format("05.000"), fmt.Sprintf(format, args...))
}

// Policies and labels change while no agent runs.
func TestPolicyChurn(t *testing.T) {
	s := beginSteady(t, Options{})
	const changes = 200
	s.eventually("there are some changes", func() error {
		if n := s.churn.done(); n < changes {
			return fmt.Errorf("%d of %d", n, changes)
		}
		return nil
	})
	s.settle()
	for _, f := range s.probes.all {
		if f.allowed {
			require.Empty(t, texts(s.policyTest.drops.since(s.position, func(e dropEvent) bool {
				return e.Source.Addr == f.src && e.Destination.Addr == f.dst
			})), "drops of what is allowed all the time")
		}
	}
	s.judge()
}

// Agents are killed again and again meanwhile, also while they start.
func TestPolicyRestart(t *testing.T) {
	const rounds = 10
	s := beginSteady(t, Options{})
	s.policyTest.drops.close() // it would end with the agents
	random := rand.New(rand.NewPCG(5, 5))
	for round := range rounds {
		agents := []*Agent{s.Nodes[round%2].Agent}
		if round%5 == 4 {
			agents = append(agents, s.Nodes[1-round%2].Agent)
		}
		s.moment("round %d: kill %d", round, len(agents))
		for _, a := range agents {
			a.Kill()
		}
		s.more()
		s.moment("round %d: start", round)
		for _, a := range agents {
			require.NoError(t, a.Start())
		}
		if round%3 == 2 {
			ctx, cancel := context.WithTimeout(s.ctx, time.Duration(random.IntN(2000))*time.Millisecond)
			_ = agents[0].AwaitReady(ctx)
			cancel()
			s.moment("round %d: kill again", round)
			agents[0].Kill()
			require.NoError(t, agents[0].Start())
		}
		for _, a := range agents {
			require.NoError(t, a.AwaitReady(s.ctx))
		}
		s.moment("round %d: ready", round)
		s.more()
	}
	t.Logf("%d rounds, %d changes", rounds, s.settle())
	s.judge()

	// Without the policies the same passes.
	s.withdraw(parsed(t, steadyPolicies+serverForms[0]+"---"+clientForms[0]+"---"+decoyPolicy("", "")+"---"+versionPolicy(""))...)
	again := s.startProbes(100, s.probe("other", "near", true), s.probe("client", notCoveredIPv4.String(), true))
	for _, f := range again.all {
		s.eventually(f.name+" passes", func() error {
			if f.got() == 0 {
				return fmt.Errorf("%s", f)
			}
			return nil
		})
	}
	again.end(s.policyTest, s.machine)
}

// steadyPolicies stay as they are.
const steadyPolicies = closedAround + `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {matchExpressions: [{key: app, operator: In, values: [other, banned]}]}, policyTypes: [Ingress]}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: banned, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingressDeny: [{fromEndpoints: [{matchLabels: {app: banned}}]}]
---
`

// serverForms are forms of one policy that come to the same for what is watched.
var serverForms = []string{
	serverForm(`
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}, {port: 80, protocol: UDP}, {port: 9000, protocol: UDP}]`),
	serverForm(`
  - from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [client, phantom]}]}}]
    ports: [{port: 80, endPort: 83}, {port: 64, endPort: 95, protocol: UDP}, {port: 8999, endPort: 9001, protocol: UDP}]`),
	serverForm(`
  - from: [{namespaceSelector: {matchLabels: {team: red, mood: calm}}, podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}]
  - from: [{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: client}}}]
  - from: [{podSelector: {matchLabels: {color: red}}}]
    ports: [{port: 81}]`),
	serverForm(`
  - from: [{podSelector: {matchLabels: {app: client, color: red}}}]
    ports: [{port: 80}, {port: 80, protocol: UDP}, {port: 9000, protocol: UDP}, {port: 7000}]
  - from: [{podSelector: {matchLabels: {app: client, color: blue}}}]
    ports: [{port: 80, endPort: 90}, {port: 1, endPort: 9000, protocol: UDP}]
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}, {port: 80, protocol: UDP}, {port: 9000, protocol: UDP}]`),
	serverForm(`
  - from: [{ipBlock: {cidr: 10.1.0.10/32}}, {ipBlock: {cidr: "fd00:10:1::10/128"}}]
  - from: [{podSelector: {matchLabels: {app: decoy}}}]`),
}

// clientForms are such forms of another one.
var clientForms = []string{
	clientForm(`
  - toEndpoints: [{matchLabels: {app: server}}]
  - toCIDR: [198.51.100.0/25, "2001:db8:51::/96"]`),
	clientForm(`
  - toEndpoints: [{matchLabels: {app: server}}]
    toPorts: [{ports: [{port: "80"}, {port: "8999", endPort: 9001, protocol: UDP}]}]
  - toCIDRSet: [{cidr: 198.51.100.0/24, except: [198.51.100.128/25]}, {cidr: "2001:db8:51::/96"}]`),
	clientForm(`
  - toEndpoints: [{matchExpressions: [{key: app, operator: NotIn, values: [other, banned]}]}]
  - toCIDR: [198.51.100.0/28, 198.51.100.64/26, "2001:db8:51::/64"]`),
	clientForm(`
  - toEndpoints: [{matchLabels: {app: server, version: "1"}}, {matchLabels: {app: server, version: "2"}}, {matchLabels: {color: red}}]
    toPorts: [{ports: [{port: "80"}]}]
  - toEndpoints: [{matchLabels: {app: server}}]
    toPorts: [{ports: [{port: "9000", protocol: UDP}, {port: "80"}]}]
  - toCIDRSet: [{cidr: 198.51.0.0/16, except: [198.51.100.192/26, 198.51.100.16/28]}]
    toPorts: [{ports: [{port: "7936", endPort: 9215, protocol: UDP}, {port: "8000"}]}]`),
}

func clientForm(rules string) string {
	return `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: client, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:` + rules + "\n"
}

func serverForm(rules string) string {
	return `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:` + rules + "\n"
}

// steadyStreams are flows that live as long as the test.
func (p *policyTest) steadyStreams() (streams []*Stream) {
	p.t.Helper()
	const rate = 300
	client := p.names["client"]
	for _, name := range []string{"near", "far"} {
		for _, v6 := range []bool{false, true} {
			s, err := p.servers[name].startStream(client.Namespace, netip.AddrPortFrom(p.names[name].addr(v6), 80), rate)
			require.NoError(p.t, err)
			streams = append(streams, s)
		}
	}
	s, err := p.StartStream(client.Namespace, ServerIPv4, rate)
	require.NoError(p.t, err)
	return append(streams, s)
}
