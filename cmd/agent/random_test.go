// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/netlink"
)

// After any sequence of events the maps lead to what the base tables ask for.
// Event by event, they do so by one step: from what became of each packet
// before the event to what becomes of it after.
func TestRandomEvents(t *testing.T) {
	for seed := range randomSeeds(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newGenerator(t, seed)
			for i := range 60 {
				event := g.event()
				g.checker.setElection(strings.Contains(event, "kind: Node\n"))
				require.NoError(t, g.settle(t.Context()), "event %d: %s", i, event)
			}
		})
	}
}

// The same with several events at a time, writes that fail, and restarts in
// between. When the faults stop, all is right again with no new event.
func TestRandomEventsAndFaults(t *testing.T) {
	for seed := range randomSeeds(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newGenerator(t, 1000+seed)
			for range 15 {
				var events []string
				g.faults(10)
				for range 1 + g.IntN(12) {
					events = append(events, g.event())
				}
				if g.IntN(4) == 0 {
					events = append(events, "restart")
					require.NoError(t, g.hive.Stop(g.log, t.Context()))
					g.construct()
					require.NoError(t, g.hive.Start(g.log, t.Context()))
				}
				g.faults(0)
				require.NoError(t, g.agrees(t.Context()), events)
			}
		})
	}
}

// randomSeeds is how many runs there are, SLUICE_RANDOM_SEEDS for a search that
// goes on for longer.
func randomSeeds(n uint64) uint64 {
	if more, err := strconv.ParseUint(os.Getenv("SLUICE_RANDOM_SEEDS"), 10, 32); err == nil {
		return more
	}
	return n
}

// generator makes random events in a small world, so that they meet.
type generator struct {
	*cluster
	*rand.Rand
}

func newGenerator(t *testing.T, seed uint64) *generator {
	g := &generator{
		newCluster(t, []string{"--node-name=node-0", "--retry-min=2ms", "--retry-max=20ms"}),
		rand.New(rand.NewPCG(seed, 0)),
	}
	require.NoError(t, g.api.Sync())
	require.NoError(t, g.hive.Start(g.log, t.Context()))
	for range 25 {
		g.event()
	}
	require.NoError(t, g.quiet(t.Context()))
	g.checker.rest(g.oracle.owners(g.oracle.DB.ReadTxn())) // the beginning is many events at once
	return g
}

var errFault = errors.New("injected")

// faults makes a share of the writes fail.
func (g *generator) faults(percent int) {
	random := rand.New(rand.NewPCG(g.Uint64(), 0))
	g.memory.Inject(func(string, bpf.Op) error {
		if random.IntN(100) < percent {
			return errFault
		}
		return nil
	})
}

func (g *generator) pick(options ...string) string { return options[g.IntN(len(options))] }

// event makes something happen, and says what.
func (g *generator) event() string {
	what, do := "apply", g.api.Apply
	var object string
	switch g.IntN(12) {
	case 0, 1, 2, 3, 4:
		object = g.pod()
	case 5, 6, 7:
		object = g.policy()
	case 8:
		object = g.namespace()
	case 9, 10:
		object = g.node()
	default:
		return g.netlinkEvent()
	}
	if g.IntN(4) == 0 {
		what, do = "delete", g.api.Delete
	}
	if err := do([]byte(object)); err != nil && !strings.Contains(err.Error(), "not found") {
		g.t.Errorf("%s: %v", what, err)
	}
	return what + "\n" + object
}

func (g *generator) pod() string {
	n := g.IntN(8)
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: pod-%d, namespace: ns-%d, labels: {app: %s, tier: %s}}
spec: {nodeName: node-%d, containers: [{name: c}]}
status: {phase: %s, podIPs: [{ip: 10.0.0.%d}]}
`, n, n%3, g.pick("web", "db", "api"), g.pick("front", "back"), g.IntN(2), g.pick("Running", "Running", "Running", "Failed"), 1+(n+g.IntN(2))%8)
}

func (g *generator) policy() string {
	var selectors, destinations, excluded []string
	for range 1 + g.IntN(2) {
		selectors = append(selectors, g.pick(
			"{podSelector: {matchLabels: {app: web}}}",
			"{podSelector: {matchLabels: {tier: front}}}",
			"{podSelector: {matchExpressions: [{key: app, operator: In, values: [db, api]}]}}",
			"{namespaceSelector: {matchLabels: {team: blue}}}",
			"{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [blue]}]}}",
			"{namespaceSelector: {matchLabels: {team: blue}}, podSelector: {matchLabels: {tier: back}}}",
			"{podSelector: {matchLabels: {app: web}}, nodeSelector: {matchLabels: {zone: a}}}",
			"{podSelector: {matchLabels: {io.kubernetes.pod.namespace: ns-1}}}",
			"{namespaceSelector: {}}"))
	}
	prefix := func() string {
		return g.pick("0.0.0.0/0", "203.0.113.0/24", "203.0.113.0/25", "203.0.113.128/25", "198.51.100.0/24", "198.51.100.7/32", "bad")
	}
	for range 1 + g.IntN(3) {
		destinations = append(destinations, prefix())
	}
	for range g.IntN(2) {
		excluded = append(excluded, prefix())
	}
	return fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: policy-%d, annotations: {%s}}
spec:
  selectors: [%s]
  destinationCIDRs: [%s]
  excludedCIDRs: [%s]
  egressGateways: [%s]
`, g.IntN(4), g.limit(), strings.Join(selectors, ", "), strings.Join(destinations, ", "),
		strings.Join(excluded, ", "), g.pick(
			"{nodeSelector: {matchLabels: {egress: a}}}",
			"{nodeSelector: {matchLabels: {egress: b}}}",
			"{nodeSelector: {matchLabels: {egress: a}}}, {nodeSelector: {matchLabels: {egress: b}}}",
			"{nodeSelector: {matchLabels: {egress: a}}, interface: eth1}",
			"{nodeSelector: {matchLabels: {egress: a}}, egressIP: 192.0.2.9}",
			"{interface: eth1}"))
}

// limit is an annotation of a policy that limits its bandwidth, or none.
func (g *generator) limit() string {
	return g.pick("", "", "sluice.net/bandwidth: 8M", "sluice.net/bandwidth: 1G",
		"sluice.net/bandwidth-per-pod: 80k", "sluice.net/bandwidth-per-pod: bad")
}

func (g *generator) namespace() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: ns-%d, labels: {team: %s}}
`, g.IntN(3), g.pick("blue", "red"))
}

func (g *generator) node() string {
	n := g.IntN(3)
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: node-%d, labels: {zone: %s, egress: %s}}
status:
  addresses: [{type: InternalIP, address: 192.168.0.%d}]
  conditions: [{type: Ready, status: "%s"}]
`, n, g.pick("a", "b"), g.pick("a", "b", "none"), n+1, g.pick("True", "True", "True", "False"))
}

// netlinkEvent sets the devices, addresses and routes of the node.
func (g *generator) netlinkEvent() string {
	state := `
devices: [{index: 2, name: eth0, mac: "02:00:00:00:00:02"}, {index: 3, name: eth1, mac: "02:00:00:00:00:03"}]
addresses:
- {addr: 192.168.0.1, device: eth0}
`
	if g.IntN(2) == 0 {
		state += fmt.Sprintf("- {addr: 192.0.2.%d, device: %s}\n", 8+g.IntN(2), g.pick("eth0", "eth1"))
	}
	if g.IntN(3) > 0 {
		state += fmt.Sprintf("routes: [{destination: 0.0.0.0/0, gateway: 192.168.0.254, device: %s}]\n", g.pick("eth0", "eth1"))
	}
	parsed, err := netlink.ParseState([]byte(state))
	if err != nil {
		g.t.Errorf("netlink state: %v", err)
		return ""
	}
	g.netlink.Set(parsed)
	return "netlink\n" + state
}
