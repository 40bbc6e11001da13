// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// Agents are killed again and again, while policies and labels change that do not
// concern what is watched, or do so in ways that come to the same. No packet that is
// allowed all the time is lost, and none passes that is forbidden all the time, of
// flows that live long and of new ones.
func TestPolicyRestart(t *testing.T) {
	// Not beside other tests: it is the machine's limit that would be tested.
	p := newPolicyTest(t, Options{})
	const rounds = 10
	pods := p.addPods(
		PodSpec{Node: p.Nodes[0], Namespace: "shop", Name: "decoy-1", Labels: map[string]string{"app": "decoy"}},
		PodSpec{Node: p.Nodes[1], Namespace: "shop", Name: "decoy-2", Labels: map[string]string{"app": "decoy"}},
	)
	p.drops.close() // it would end with the agents
	p.apply(parsed(t, steadyPolicies+serverForms[0]+"---"+clientForms[0])...)
	p.inForce(nil)
	ends := []string{"client near tcp/80", "client far tcp/80", "client near udp/80", "client far udp/80", "client world udp/8000"}
	for _, text := range ends { // neighbours are known then
		for _, c := range p.callsOf(text) {
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			require.NoError(t, c.try(ctx), "%s", c)
			cancel()
		}
	}

	denied := func() (total uint64) {
		for _, n := range p.Nodes {
			total += p.count(n, reasonPolicyDenied) + p.count(n, reasonPolicyRule)
		}
		return total
	}
	lost, before := machineDrops(t), denied()
	machine := func() uint64 { return machineDrops(t) - lost }
	probe := func(from, to string, dst netip.Addr, allowed bool) *flowProbe {
		src := p.names[from]
		return &flowProbe{name: from + " to " + to, from: src.Namespace, src: src.ipv4, dst: dst, allowed: allowed}
	}
	at := func(name string) netip.Addr { return p.names[name].ipv4 }
	probes := p.startProbes(100,
		probe("client", "near", at("near"), true), probe("client", "far", at("far"), true), probe("client", "world", ServerIPv4, true),
		probe("other", "near", at("near"), false), probe("other", "far", at("far"), false), probe("stranger", "near", at("near"), false),
		probe("client", "other", at("other"), false), probe("client", "the rest of the world", notCoveredIPv4, false),
	)
	streams := p.steadyStreams()
	calls := p.startCalls("client near tcp4/80", "client far tcp6/80")
	churn := p.startChurn(pods)

	random := rand.New(rand.NewPCG(5, 5))
	for round := range rounds {
		agents := []*Agent{p.Nodes[round%2].Agent}
		if round%5 == 4 {
			agents = append(agents, p.Nodes[1-round%2].Agent)
		}
		for _, a := range agents {
			a.Kill()
		}
		moreOf(p, streams, 50)
		for _, a := range agents {
			require.NoError(t, a.Start())
		}
		if round%3 == 2 { // again, at some moment of its start
			ctx, cancel := context.WithTimeout(p.ctx, time.Duration(random.IntN(2000))*time.Millisecond)
			_ = agents[0].AwaitReady(ctx)
			cancel()
			agents[0].Kill()
			require.NoError(t, agents[0].Start())
		}
		for _, a := range agents {
			require.NoError(t, a.AwaitReady(p.ctx))
		}
		moreOf(p, streams, 50)
	}
	changes := churn.end(t)
	require.NoError(t, p.AwaitAgents(p.ctx))
	for _, n := range p.Nodes {
		require.NoError(t, n.Agent.AwaitSettled(p.ctx))
	}
	moreOf(p, streams, 50)

	connections := calls.end(t)
	forbidden := probes.end(p, machine)
	for i, r := range stopAll(streams) {
		require.LessOrEqual(t, r.Lost(), machine(), "stream %d: %v, missing %v", i, r, r.Missing)
	}
	dropped := denied() - before
	t.Logf("%d kills, %d changes, %d connections, %d forbidden packets and %d drops, the machine lost %d",
		rounds, changes, connections, forbidden, dropped, machine())
	require.LessOrEqual(t, dropped, forbidden, "drops of what is allowed")
	require.LessOrEqual(t, forbidden-dropped, machine(), "what is forbidden is not dropped by a policy")

	// Without the policies the same comes.
	p.withdraw(parsed(t, steadyPolicies+serverForms[0]+"---"+clientForms[0]+"---"+decoyPolicy("", "")+"---"+versionPolicy(""))...)
	again := p.startProbes(100, probe("other", "near", at("near"), true), probe("client", "the rest of the world", notCoveredIPv4, true))
	for _, f := range again.all {
		p.eventually(f.name+" passes", func() error {
			if f.got() == 0 {
				return fmt.Errorf("%s", f)
			}
			return nil
		})
	}
	again.end(p, machine)
}

const (
	reasonPolicyDenied = bpf.Reason(35)
	reasonPolicyRule   = bpf.Reason(36)
)

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

// moreOf waits until each stream has had further answers.
func moreOf(p *policyTest, streams []*Stream, n uint64) {
	p.t.Helper()
	l := &load{tr: p.traffic, streams: streams}
	l.more(n)
}

// background is what goes on until it is ended, and how often it was done.
type background struct {
	stop chan struct{}
	done sync.WaitGroup

	mu    sync.Mutex // of what follows
	count int
	err   error
}

func startBackground(interval time.Duration, do ...func() error) *background {
	b := &background{stop: make(chan struct{})}
	for _, f := range do {
		b.done.Go(func() {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for {
				err := f()
				b.mu.Lock()
				b.count++
				b.err = err
				b.mu.Unlock()
				if err != nil {
					return
				}
				select {
				case <-b.stop:
					return
				case <-ticker.C:
				}
			}
		})
	}
	return b
}

func (b *background) end(t *testing.T) int {
	t.Helper()
	close(b.stop)
	b.done.Wait()
	require.NoError(t, b.err)
	return b.count
}

// startCalls connects again and again, which must always succeed.
func (p *policyTest) startCalls(lines ...string) *background {
	p.t.Helper()
	var do []func() error
	for _, text := range lines {
		c := p.callOf(text)
		do = append(do, func() error {
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			defer cancel()
			if err := c.try(ctx); err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			return nil
		})
	}
	return startBackground(20*time.Millisecond, do...)
}

// startChurn changes labels and policies.
func (p *policyTest) startChurn(decoys []*Pod) *background {
	random := rand.New(rand.NewPCG(8, 8))
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	find := func(name string) *Pod {
		for pod := range p.pods {
			if pod.Spec.Name == name {
				return pod
			}
		}
		return nil
	}
	relabel := func(pod *Pod, labels map[string]string) error {
		pod.Spec.Labels = labels
		return p.Apply(pod.Object())
	}
	client, near, other := find("client"), find("near"), find("other")
	changes := []func() error{
		func() error { return p.ApplyYAML(serverForms[random.IntN(len(serverForms))]) },
		func() error { return p.ApplyYAML(clientForms[random.IntN(len(clientForms))]) },
		func() error { return p.ApplyYAML(shopNamespace(pick("calm", "busy"))) },
		func() error {
			return relabel(client, map[string]string{"app": "client", "color": pick("red", "blue", "green"), "noise": pick("1", "2")})
		},
		func() error {
			return relabel(near, map[string]string{"app": "server", "color": pick("red", "blue"), "version": pick("1", "2")})
		},
		func() error { return relabel(other, map[string]string{"app": pick("other", "banned")}) },
		func() error {
			decoy := decoys[random.IntN(len(decoys))]
			return relabel(decoy, map[string]string{"app": pick("decoy", "client-2", "ghost"), "color": pick("red", "blue"), "noise": pick("1", "2", "3")})
		},
		func() error { // chooses decoys only
			if random.IntN(2) == 0 {
				return p.Delete(parsed(p.t, decoyPolicy("", ""))...)
			}
			return p.ApplyYAML(decoyPolicy(pick("decoy", "client", "server"), pick("80", "443")))
		},
		func() error { // chooses a server, to which it allows less than is allowed anyway
			if random.IntN(2) == 0 {
				return p.Delete(parsed(p.t, versionPolicy(""))...)
			}
			return p.ApplyYAML(versionPolicy(pick("80", "81")))
		},
	}
	return startBackground(25*time.Millisecond, func() error { return changes[random.IntN(len(changes))]() })
}

// shopNamespace is the namespace with a further label.
func shopNamespace(mood string) string {
	return `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: red, mood: ` + mood + `}}
`
}

func decoyPolicy(from, port string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: decoys, namespace: shop}
spec:
  podSelector: {matchLabels: {app: decoy}}
  ingress: [{from: [{podSelector: {matchLabels: {app: %q}}}], ports: [{port: %s}]}]
`, from, port)
}

func versionPolicy(port string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: version-1, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server, version: "1"}}
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: %s}]}]
`, port)
}
