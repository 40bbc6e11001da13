// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// Policies, labels and namespaces change many at a time, in ways that come to the same
// for some packets whichever of the changes an agent knows of, while derivations are
// late at random, as on a busy machine, and agents are killed and started anew. After
// every single write the verdicts on these packets are what they were.
func TestSteadyVerdicts(t *testing.T) {
	for seed := range randomSeeds(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := newSteady(t, seed)
			for range 6 {
				s.storm(40)
				s.kill()
			}
			require.NoError(t, s.agreesOnPolicies(t.Context()))
			s.requireSame()
		})
	}
}

// steady is a cluster of which some packets are watched.
type steady struct {
	*policyGenerator
	random *rand.Rand
}

func newSteady(t *testing.T, seed uint64) *steady {
	s := &steady{newPolicyCluster(t, policytest.NewGenerator(seed)), rand.New(rand.NewPCG(seed, 7))}
	s.apply(localNodeManifest)
	s.apply(podManifest("server", policytest.LocalNode, "10.0.0.1", "app: server"))
	s.apply(podManifest("other", "node-1", "10.0.1.2", "app: other"))
	for _, change := range s.changes() {
		s.apply(change())
	}
	s.begin()
	s.watch(steadyPackets())
	verdicts := map[string]int{}
	for _, probes := range s.policies.probes {
		for _, p := range probes {
			verdicts[p.verdicts[0]]++
		}
	}
	require.Equal(t, map[string]int{"allowed": 5, denied: 5}, verdicts)
	return s
}

// steadyPackets are packets of server, half of which are allowed.
func steadyPackets() (packets []policytest.Packet) {
	packet := func(peer string, direction bpf.Direction, port uint16) {
		packets = append(packets, policytest.Packet{
			Subject: netip.MustParseAddr("10.0.0.1"), Peer: netip.MustParseAddr(peer), Direction: direction, Protocol: 6, Port: port,
		})
	}
	for _, client := range []string{"10.0.0.9", "10.0.1.9"} {
		packet(client, bpf.DirectionIngress, 80)
		packet(client, bpf.DirectionIngress, 7) // denied
		packet(client, bpf.DirectionEgress, 443)
	}
	packet("10.0.1.2", bpf.DirectionIngress, 80) // denied
	packet("10.0.1.2", bpf.DirectionEgress, 443) // denied
	packet("198.51.100.10", bpf.DirectionEgress, 443)
	packet("198.51.100.200", bpf.DirectionEgress, 443) // denied
	return packets
}

// changes make one of the objects each, in a form that means the same for these packets.
func (s *steady) changes() []func() string {
	one := func(of ...string) string { return of[s.random.IntN(len(of))] }
	client := func(name, node, addr string) func() string {
		return func() string {
			return podManifest(name, node, addr, "app: client, color: "+one("red", "blue")+", version: "+one("one", "two", "three"))
		}
	}
	return []func() string{
		client("near", policytest.LocalNode, "10.0.0.9"), client("far", "node-1", "10.0.1.9"),
		func() string {
			return podManifest("decoy", policytest.LocalNode, "10.0.0.3", "app: decoy, color: "+one("red", "blue"))
		},
		func() string {
			return "{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {team: red, mood: " + one("calm", "cross") + "}}}"
		},
		func() string { return steadyPolicy("NetworkPolicy", "ingress", one(steadyIngress...)) },
		func() string { return steadyPolicy("CiliumNetworkPolicy", "egress", one(steadyEgress...)) },
		func() string { // which is about others only
			return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: decoys, namespace: ns}, spec: {podSelector: {matchLabels: {app: %s}}, ingress: [{from: [{podSelector: {matchLabels: {color: %s}}}]}]}}",
				one("decoy", "none"), one("red", "blue"))
		},
	}
}

func steadyPolicy(kind, direction, rules string) string {
	version, selector := "networking.k8s.io/v1", "podSelector"
	if kind == "CiliumNetworkPolicy" {
		version, selector = "cilium.io/v2", "endpointSelector"
	}
	return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %s, namespace: ns}, spec: {%s: {matchLabels: {app: server}}, %[3]s: [%[5]s]}}",
		version, kind, direction, selector, rules)
}

// steadyIngress and steadyEgress are forms of rules that allow the same to clients.
var (
	steadyIngress = []string{
		"{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}",
		"{from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [client, phantom]}]}}], ports: [{port: 80, endPort: 83}]}",
		"{from: [{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}, {from: [{podSelector: {matchLabels: {color: red}}}], ports: [{port: 81}]}",
		"{from: [{podSelector: {matchLabels: {color: red, app: client}}}], ports: [{port: 80}, {port: 70}]}, {from: [{podSelector: {matchLabels: {color: blue, app: client}}}], ports: [{port: 80, endPort: 90}]}, {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}",
		"{from: [{ipBlock: {cidr: 10.0.0.9/32}}, {ipBlock: {cidr: 10.0.1.8/30}}], ports: [{port: 80}]}",
	}
	steadyEgress = []string{
		"{toEndpoints: [{matchLabels: {app: client}}]}, {toCIDR: [198.51.100.0/25]}",
		"{toEndpoints: [{matchLabels: {app: client}}], toPorts: [{ports: [{port: '443'}]}]}, {toCIDRSet: [{cidr: 198.51.100.0/24, except: [198.51.100.128/25]}]}",
		"{toEndpoints: [{matchExpressions: [{key: app, operator: NotIn, values: [other, decoy]}]}]}, {toCIDR: [198.51.100.0/28, 198.51.100.64/26]}",
		"{toEndpoints: [{matchLabels: {app: client}}, {matchLabels: {color: red, app: decoy}}]}, {toCIDRSet: [{cidr: 198.51.0.0/16, except: [198.51.100.192/26, 198.51.100.16/28]}], toPorts: [{ports: [{port: '443'}]}]}",
	}
)

// storm makes changes at random moments.
func (s *steady) storm(changes int) {
	defer s.delay()()
	all := s.changes()
	for range changes {
		s.apply(all[s.random.IntN(len(all))]())
		time.Sleep(time.Duration(s.random.IntN(3000)) * time.Microsecond)
	}
}

// kill ends the agent at some write of changes that it is busy with, and starts
// another one, which may be killed too, while changes go on.
func (s *steady) kill() {
	for range 1 + s.random.IntN(2) {
		died := s.killAfter(s.random.IntN(30))
		s.storm(4)
		s.pause(died.Load)
		require.NoError(s.t, s.hive.Stop(s.log, s.t.Context()))
		s.memory.Inject(nil)
		s.construct()
		stop := s.delay()
		require.NoError(s.t, s.hive.Start(s.log, s.t.Context()))
		stop()
		s.storm(s.random.IntN(10))
	}
}

// delay holds derived tables back for moments, by their locks, until it is stopped.
func (s *steady) delay() (stop func()) {
	var names []string
	for _, rule := range s.work.All() {
		names = append(names, rule.Table())
	}
	db, end := s.oracle.DB, make(chan struct{})
	var held sync.WaitGroup
	for range 3 {
		random := rand.New(rand.NewPCG(s.random.Uint64(), 0))
		held.Go(func() {
			for {
				hold := db.WriteTxn(s.table(names[random.IntN(len(names))]))
				time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
				hold.Abort()
				select {
				case <-end:
					return
				case <-time.After(time.Duration(random.IntN(4000)) * time.Microsecond):
				}
			}
		})
	}
	return func() {
		close(end)
		held.Wait()
	}
}

// requireSame asserts that no verdict has ever changed.
func (s *steady) requireSame() {
	s.policies.mu.Lock()
	defer s.policies.mu.Unlock()
	for _, probes := range s.policies.probes {
		for _, p := range probes {
			require.Len(s.t, p.verdicts, 1, "%s: %s; by %s", p.packet, strings.Join(p.verdicts, " -> "), strings.Join(p.writes, "; "))
		}
	}
	require.Empty(s.t, s.policies.violations)
}
