// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/testdata/await"
)

// trafficTimeout bounds a test with packets; they take some 10 to 30 s where nothing
// else runs.
const trafficTimeout = 20 * time.Minute

const (
	// patience is for what needs no agent but only packets.
	patience = await.Bound
	// silence is for how long an answer that must not come is waited for.
	silence = 5 * time.Second
)

// trafficMaps are sizes of the maps that the programs write: the kernel takes the
// memory of these at once, and there are many agents.
var trafficMaps = []string{
	"--map-size-ct-tcp=65536", "--map-size-ct-any=65536", "--map-size-nat=131072", "--map-size-fragments=1024",
}

// traffic is a cluster for a test.
type traffic struct {
	*Cluster
	t   *testing.T
	ctx context.Context
}

func newTraffic(t *testing.T, options Options) *traffic {
	t.Helper()
	options.AgentFlags = append(append([]string{}, trafficMaps...), options.AgentFlags...)
	_, c := newCluster(t, options)
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	t.Cleanup(cancel)
	tr := &traffic{c, t, ctx}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.Nodes {
				tr.drops(n)
			}
		}
	})
	return tr
}

// sub is the same cluster in a subtest.
func (tr *traffic) sub(t *testing.T) *traffic { return &traffic{tr.Cluster, t, tr.ctx} }

// eventually fails the test unless there is no error in time.
func (tr *traffic) eventually(what string, check func() error) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.ctx, await.Bound)
	defer cancel()
	require.NoError(tr.t, eventually(ctx, what, check))
}

// pod adds a pod with the label app.
func (tr *traffic) pod(node *Node, name, app string) *Pod {
	tr.t.Helper()
	p, err := tr.AddPod(node, name, map[string]string{"app": app})
	require.NoError(tr.t, err)
	return p
}

// exit is an item of egressGateways.
type exit struct {
	node string // "" selects no node
	ip   netip.Addr
	dev  string
}

// egress is a policy for the pods of an app.
type egress struct {
	name, app string
	to, not   []netip.Prefix
	exits     []exit
}

func (e egress) object() Object {
	texts := func(prefixes []netip.Prefix) (list []any) {
		for _, p := range prefixes {
			list = append(list, p.String())
		}
		return list
	}
	var gateways []any
	for _, x := range e.exits {
		labels := map[string]any{"kubernetes.io/hostname": x.node}
		if x.node == "" {
			labels = map[string]any{"no": "node"}
		}
		g := map[string]any{"nodeSelector": map[string]any{"matchLabels": labels}}
		if x.ip.IsValid() {
			g["egressIP"] = x.ip.String()
		}
		if x.dev != "" {
			g["interface"] = x.dev
		}
		gateways = append(gateways, g)
	}
	o := Policy(e.name)
	o["metadata"].(map[string]any)["creationTimestamp"] = "2025-01-10T09:00:00Z"
	spec := map[string]any{
		"selectors":        []any{map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": e.app}}}},
		"destinationCIDRs": texts(e.to),
		"egressGateways":   gateways,
	}
	if len(gateways) == 1 {
		delete(spec, "egressGateways")
		spec["egressGateway"] = gateways[0]
	}
	if len(e.not) > 0 {
		spec["excludedCIDRs"] = texts(e.not)
	}
	o["spec"] = spec
	return o
}

func (tr *traffic) policy(policies ...egress) {
	tr.t.Helper()
	for _, p := range policies {
		require.NoError(tr.t, tr.Apply(p.object()))
	}
}

// inForce waits until all agents are ready, pods have programs, and these of them
// are selected everywhere.
func (tr *traffic) inForce(policies []string, chosen ...*Pod) {
	tr.t.Helper()
	require.NoError(tr.t, tr.AwaitAgents(tr.ctx))
	require.NoError(tr.t, tr.AwaitSources(tr.ctx, true, nil, chosen...))
	pods := map[*Node][]*Pod{}
	for p := range tr.pods {
		pods[p.Node] = append(pods[p.Node], p)
		if tr.options.BridgeCNI {
			tr.introduce(p)
		}
	}
	for _, n := range tr.Nodes {
		for _, policy := range policies {
			require.NoError(tr.t, n.Agent.AwaitPolicy(tr.ctx, policy))
		}
		require.NoError(tr.t, n.Agent.AwaitAttached(tr.ctx, pods[n]...))
		require.NoError(tr.t, n.Agent.AwaitSettled(tr.ctx)) // exits wait for what is attached
	}
}

// introduce has a pod send a first packet: the node does not know where a pod of a bridge is
// before that.
func (tr *traffic) introduce(p *Pod) {
	tr.t.Helper()
	v4, v6 := podNetworks(p.Node.number)
	for _, network := range []netip.Prefix{v4, v6} {
		tr.eventually("the node hears the pod", func() error { // it is held until its device is known
			ctx, cancel := context.WithTimeout(tr.ctx, time.Second)
			defer cancel()
			return p.Ping(ctx, hostOf(network, routerHost), 16)
		})
	}
}

// ask asks the server which source it sees, over TCP, UDP or ICMP.
func (tr *traffic) ask(from *Namespace, network string, to netip.Addr) (netip.Addr, error) {
	return tr.askFor(from, network, to, patience)
}

func (tr *traffic) askFor(from *Namespace, network string, to netip.Addr, timeout time.Duration) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(tr.ctx, timeout)
	defer cancel()
	if network == "icmp" {
		return tr.PingWorld(ctx, from, to, 100)
	}
	source, err := from.Ask(ctx, network, to)
	return source.Addr(), err
}

// sees asserts which source the server sees of a pod, over each protocol.
func (tr *traffic) sees(from *Namespace, to, source netip.Addr) {
	tr.t.Helper()
	for _, network := range []string{"tcp", "udp", "icmp"} {
		got, err := tr.ask(from, network, to)
		require.NoError(tr.t, err, "%s from %s to %s", network, from.Name, to)
		require.Equal(tr.t, source, got, "%s from %s to %s", network, from.Name, to)
	}
}

// becomes waits until the server sees a source of new connections.
func (tr *traffic) becomes(from *Namespace, to, source netip.Addr) {
	tr.t.Helper()
	tr.eventually(fmt.Sprintf("%s comes from %s", from.Name, source), func() error {
		ctx, cancel := context.WithTimeout(tr.ctx, silence) // a SYN is sent again meanwhile
		defer cancel()
		got, err := from.Ask(ctx, "tcp", to)
		if err == nil && got.Addr() != source {
			err = fmt.Errorf("it comes from %s", got)
		}
		return err
	})
}

// dial connects to the server and fails the test if it cannot.
func (tr *traffic) dial(from *Namespace, network string, to netip.Addr) net.Conn {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.ctx, patience)
	defer cancel()
	conn, err := from.Dial(ctx, network, netip.AddrPortFrom(to, Port))
	require.NoError(tr.t, err)
	tr.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// askSoon asks on a connection that there is.
func askSoon(ctx context.Context, conn net.Conn) (netip.AddrPort, error) {
	return askWithin(ctx, conn, patience)
}

func askWithin(ctx context.Context, conn net.Conn, timeout time.Duration) (netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return AskOn(ctx, conn)
}

// askOn is askSoon, without the port.
func (tr *traffic) askOn(conn net.Conn) (netip.Addr, error) {
	source, err := askSoon(tr.ctx, conn)
	return source.Addr(), err
}

// cut disconnects a node from the others, without it or them losing a carrier; plugIn undoes it. It
// stays connected with the world.
func (tr *traffic) cut(n *Node) {
	tr.t.Helper()
	port, err := tr.fabric.link(n.Name + "-" + n.device)
	require.NoError(tr.t, err)
	require.NoError(tr.t, tr.fabric.handle.LinkSetNoMaster(port))
}

func (tr *traffic) plugIn(n *Node) {
	tr.t.Helper()
	require.NoError(tr.t, tr.fabric.plug(n.Name+"-"+n.device, switchBridge))
}

// openCounters opens the map in which a node's programs count packets.
func (n *Node) openCounters() (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(filepath.Join(n.Agent.BPFFS(), "sluice", "sluice_metrics"), &ebpf.LoadPinOptions{ReadOnly: true})
}

// packets is how often a node's programs met with a reason, in both directions.
// It does not need the agent.
func (n *Node) packets(reason bpf.Reason) (uint64, error) {
	m, err := n.openCounters()
	if err != nil {
		return 0, err
	}
	defer m.Close()
	return packetsIn(m, reason)
}

func packetsIn(counters *ebpf.Map, reason bpf.Reason) (total uint64, err error) {
	for direction := range uint32(bpf.Directions) {
		var perCPU []bpf.Metric
		if err := counters.Lookup(uint32(reason)*bpf.Directions+direction, &perCPU); err != nil {
			return 0, err
		}
		for _, metric := range perCPU {
			total += metric.Packets
		}
	}
	return total, nil
}

// count is packets, for a test.
func (tr *traffic) count(n *Node, reason bpf.Reason) uint64 {
	tr.t.Helper()
	total, err := n.packets(reason)
	require.NoError(tr.t, err)
	return total
}

// drops logs and returns what a node has dropped, by reason.
func (tr *traffic) drops(n *Node) map[bpf.Reason]uint64 {
	tr.t.Helper()
	found := map[bpf.Reason]uint64{}
	for reason := bpf.ReasonDrops; reason < bpf.ReasonCount; reason++ {
		c, err := n.packets(reason)
		if err != nil {
			tr.t.Errorf("read drops of %s: %v", n.Name, err)
			return nil
		}
		if c > 0 {
			found[reason] = c
		}
	}
	table, _ := n.Agent.Table(tr.ctx, "drops")
	tr.t.Logf("drops of %s: %v\n%s", n.Name, found, table)
	return found
}

// dropRow is a row of table drops.
type dropRow struct {
	Pod    string
	Reason string
	Count  uint64
}

// reported waits until the agent of the pod's node tells of drops of a pod.
func (tr *traffic) reported(n *Node, pod string, reason bpf.Reason) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.ctx, patience)
	defer cancel()
	require.NoError(tr.t, AwaitRows(ctx, n.Agent, "drops", func(rows []dropRow) error {
		for _, r := range rows {
			if r.Pod == pod && r.Reason == reason.String() && r.Count > 0 {
				return nil
			}
		}
		return fmt.Errorf("there is no drop of %q with reason %q: %v", pod, reason, rows)
	}))
}

// noLeaks asserts that the world saw no other sources.
func (tr *traffic) noLeaks(allowed ...netip.Addr) {
	tr.t.Helper()
	sources := tr.World.Sources()
	for _, a := range allowed {
		delete(sources, a)
	}
	require.Empty(tr.t, sources, "sources that the world must not see")
}

// allOutside are the addresses that nodes themselves have on the world's network.
func (tr *traffic) allOutside() (addrs []netip.Addr) {
	for _, n := range tr.Nodes {
		addrs = append(addrs, n.OutsideIPv4, n.OutsideIPv6)
	}
	return addrs
}

// isTimeout reports whether an operation got no answer in time.
func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func addrOf(text string) netip.Addr { return netip.MustParseAddr(text) }
