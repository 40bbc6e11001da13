// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// policyPorts are those on which all pods and nodes of these tests serve.
var policyPorts = []uint16{80, 81, 7999, 8000, 8005, 8010, 8011}

// policyTest is a cluster of two nodes for tests of network policies.
//
//	node-1  client (app client), near (app server, port "web" is 80), other (app other)
//	node-2  far (app server, port "web" is 81), stranger (app client, of another namespace)
type policyTest struct {
	*traffic
	drops   *dropWatch
	names   map[string]place
	servers map[string]*server
}

// place is who talks, or is talked to.
type place struct {
	*Namespace
	ipv4, ipv6 netip.Addr
	node       *Node   // whose programs judge what is from or for it, nil for the world
	behind     *target // of an address that nodes translate
}

// target is where a translation leads to.
type target struct {
	place
	port uint16
}

func (p place) addr(v6 bool) netip.Addr {
	if v6 {
		return p.ipv6
	}
	return p.ipv4
}

func newPolicyTest(t *testing.T, options Options) *policyTest {
	t.Helper()
	options.Nodes = 2
	p := &policyTest{traffic: newTraffic(t, options), names: map[string]place{}, servers: map[string]*server{}}
	n1, n2 := p.Nodes[0], p.Nodes[1]
	require.NoError(t, p.ApplyYAML(`
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: red}}
---
apiVersion: v1
kind: Namespace
metadata: {name: garden, labels: {team: green}}
`))
	p.addPods(
		PodSpec{Node: n1, Namespace: "shop", Name: "client", Labels: map[string]string{"app": "client"}},
		PodSpec{Node: n1, Namespace: "shop", Name: "near", Labels: map[string]string{"app": "server"}, Ports: map[string]uint16{"web": 80}},
		PodSpec{Node: n1, Namespace: "shop", Name: "other", Labels: map[string]string{"app": "other"}},
		PodSpec{Node: n2, Namespace: "shop", Name: "far", Labels: map[string]string{"app": "server"}, Ports: map[string]uint16{"web": 81}},
		PodSpec{Node: n2, Namespace: "garden", Name: "stranger", Labels: map[string]string{"app": "client"}},
	)
	for _, n := range p.Nodes {
		p.names[n.Name] = place{n.Namespace, n.IPv4, n.IPv6, n, nil}
		p.serve(n.Namespace)
	}
	p.names["world"] = place{p.World.Namespace, ServerIPv4, ServerIPv6, nil, nil}
	p.inForce(nil)
	var err error
	p.drops, err = watchDrops(p.Nodes)
	require.NoError(t, err)
	t.Cleanup(p.drops.close)
	return p
}

// on is the same cluster in a subtest.
func (p *policyTest) on(t *testing.T) *policyTest {
	return &policyTest{p.sub(t), p.drops, p.names, p.servers}
}

func (p *policyTest) addPods(specs ...PodSpec) []*Pod {
	p.t.Helper()
	pods, err := p.AddPods(specs...)
	require.NoError(p.t, err)
	for _, pod := range pods {
		p.names[pod.Spec.Name] = place{pod.Namespace, pod.IPv4, pod.IPv6, pod.Node, nil}
		p.servers[pod.Spec.Name] = p.serve(pod.Namespace)
	}
	return pods
}

func (p *policyTest) serve(n *Namespace) *server {
	p.t.Helper()
	s, err := startServer(n, policyPorts...)
	require.NoError(p.t, err)
	p.t.Cleanup(s.close)
	return s
}

// relabel gives a pod other labels, of which its agent hears.
func (p *policyTest) relabel(pod *Pod, labels map[string]string) {
	p.t.Helper()
	pod.Spec.Labels = labels
	require.NoError(p.t, p.Apply(pod.Object()))
}

// place is who a name means, or the world at an address.
func (p *policyTest) place(name string) place {
	p.t.Helper()
	if known, ok := p.names[name]; ok {
		return known
	}
	addr, err := netip.ParseAddr(name)
	require.NoError(p.t, err, "who is %q?", name)
	w := p.names["world"]
	w.ipv4, w.ipv6 = netip.Addr{}, netip.Addr{}
	if addr.Is6() {
		w.ipv6 = addr
	} else {
		w.ipv4 = addr
	}
	return w
}

// call is an attempt to talk.
type call struct {
	from, to place
	network  string // tcp, udp, sctp or icmp
	port     uint16
	v6       bool
}

func (c call) String() string {
	return fmt.Sprintf("%s from %s to %s", c.network, c.from.Name, netip.AddrPortFrom(c.to.addr(c.v6), c.port))
}

// callsOf are the calls that a text names, such as "client near tcp/80": over both
// families, unless it says one, as tcp6/80, or who is called has an address of one.
func (p *policyTest) callsOf(text string) (calls []call) {
	p.t.Helper()
	words := strings.Fields(text)
	require.Len(p.t, words, 3, text)
	c := call{from: p.place(words[0]), to: p.place(words[1])}
	network, port, _ := strings.Cut(words[2], "/")
	if port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		require.NoError(p.t, err, text)
		c.port = uint16(number)
	}
	c.network = strings.TrimRight(network, "46")
	require.Contains(p.t, eventProtocols, c.network, text)
	for family, v6 := range map[string]bool{"4": false, "6": true} {
		if c.v6 = v6; c.to.addr(v6).IsValid() && (network == c.network || network == c.network+family) {
			calls = append(calls, c)
		}
	}
	require.NotEmpty(p.t, calls, text)
	return calls
}

// callOf is the one call that a text names.
func (p *policyTest) callOf(text string) call {
	p.t.Helper()
	calls := p.callsOf(text)
	require.Len(p.t, calls, 1, text)
	return calls[0]
}

// try talks, and returns no error when there is an answer.
func (c call) try(ctx context.Context) error {
	to := c.to.addr(c.v6)
	switch c.network {
	case "icmp":
		return c.from.Ping(ctx, to, 64)
	case "sctp":
		return c.associate(ctx)
	}
	conn, err := c.from.Dial(ctx, c.network, netip.AddrPortFrom(to, c.port))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = AskOn(ctx, conn)
	return err
}

var eventProtocols = map[string][2]string{
	"tcp": {"TCP", "TCP"}, "udp": {"UDP", "UDP"}, "sctp": {"SCTP", "SCTP"}, "icmp": {"ICMP", "ICMPv6"},
}

// dropped reports whether a drop is of the call, in its own direction.
func (c call) dropped(e dropEvent) bool { return c.is(e, e.Source, e.Destination) }

// replyDropped reports whether a drop is of an answer to the call.
func (c call) replyDropped(e dropEvent) bool { return c.is(e, e.Destination, e.Source) }

func (c call) is(e dropEvent, client, server tables.EventPeer) bool {
	i := 0
	if c.v6 {
		i = 1
	}
	to, port := c.to, c.port
	if c.to.behind != nil {
		to, port = c.to.behind.place, c.to.behind.port
	}
	return client.Addr == c.from.addr(c.v6) && server.Addr == to.addr(c.v6) && e.Protocol == eventProtocols[c.network][i] &&
		(c.network == "icmp" || server.Port == port)
}

// verdict is what is expected of calls.
type verdict struct {
	allowed   bool
	direction bpf.Direction // of the policy that denies
	reason    string
	policy    string // that the event of the drop must name, if not empty
	unnamed   bool   // there is no policy to name
}

// judge is the side of a call whose policies deny it.
func (c call) judge(want verdict) place {
	switch {
	case want.direction == bpf.DirectionEgress:
		return c.from
	case c.to.behind != nil:
		return c.to.behind.place
	}
	return c.to
}

// verdictOf parses "allowed", or "egress" or "ingress" with "-rule" if a rule
// denies, and the policy that does, or "-".
func verdictOf(words []string) (v verdict, err error) {
	if words[0] == "allowed" {
		return verdict{allowed: true}, nil
	}
	side, rule, _ := strings.Cut(words[0], "-")
	v.reason = reasonDefault
	if rule == "rule" {
		v.reason = reasonRule
	} else if rule != "" {
		return v, fmt.Errorf("unknown verdict %q", words[0])
	}
	switch side {
	case "ingress":
		v.direction = bpf.DirectionIngress
	case "egress":
	default:
		return v, fmt.Errorf("unknown verdict %q", words[0])
	}
	if len(words) > 1 {
		v.policy = words[1]
	}
	if v.policy == noPolicy {
		v.policy, v.unnamed = "", true
	}
	return v, nil
}

// noPolicy is in place of a policy where there is none to name.
const noPolicy = "-"

// check asserts what becomes of calls, one a line, such as
//
//	client near tcp/80   allowed
//	other  near udp/80   ingress NetworkPolicy/shop/web
func (p *policyTest) check(lines string) {
	p.t.Helper()
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		require.GreaterOrEqual(p.t, len(words), 4, line)
		want, err := verdictOf(words[3:])
		require.NoError(p.t, err)
		for _, c := range p.callsOf(strings.Join(words[:3], " ")) {
			p.judge(c, want)
			p.explained(c, want)
		}
	}
}

// judge asserts what becomes of a call. That one is denied shows by the drop.
func (p *policyTest) judge(c call, want verdict) {
	p.t.Helper()
	if !want.allowed {
		p.denied(c, want)
		return
	}
	position := p.drops.position()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	require.NoError(p.t, c.try(ctx), "%s: %v", c, texts(p.drops.since(position, c.dropped)))
	require.Empty(p.t, texts(p.drops.since(position, c.dropped)), "%s: drops of what is allowed", c)
}

func (p *policyTest) denied(c call, want verdict) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	position := p.drops.position()
	tried := make(chan error, 1)
	go func() { tried <- c.try(ctx) }()
	e, err := p.drops.next(ctx, position, c.dropped)
	cancel()
	require.Error(p.t, <-tried, "%s is answered", c)
	require.NoError(p.t, err, "%s is not answered, but there is no drop: %v", c, texts(p.drops.since(position, anyDrop)))
	require.Equal(p.t, want.reason, e.Reason, "%s: %s", c, e.text)
	require.Equal(p.t, want.direction.String(), e.Direction, "%s: %s", c, e.text)
	require.Equal(p.t, c.judge(want).node.Name, e.node.Name, "%s: %s", c, e.text)
	if want.policy != "" {
		require.Contains(p.t, e.text, want.policy, "%s: the drop does not tell the policy", c)
	}
}

func anyDrop(dropEvent) bool { return true }

func texts(events []dropEvent) (list []string) {
	for _, e := range events {
		list = append(list, e.node.Name+": "+e.text)
	}
	return list
}

// becomes waits until a call succeeds, or is dropped.
func (p *policyTest) becomes(text string, want verdict) {
	p.t.Helper()
	for _, c := range p.callsOf(text) {
		p.eventually(fmt.Sprintf("%s is as expected: %+v", c, want), func() error { return p.once(c, want) })
	}
}

var (
	isAllowed  = verdict{allowed: true}
	isDropped  = verdict{direction: bpf.DirectionIngress, reason: reasonDefault}
	cannotSend = verdict{direction: bpf.DirectionEgress, reason: reasonDefault}
)

// once tries a call until it is answered or a packet of it is dropped.
func (p *policyTest) once(c call, want verdict) error {
	ctx, cancel := context.WithTimeout(p.ctx, silence)
	defer cancel()
	position := p.drops.position()
	tried := make(chan error, 1)
	go func() { tried <- c.try(ctx); cancel() }()
	e, err := p.drops.next(ctx, position, c.dropped)
	cancel()
	answer := <-tried
	switch {
	case answer == nil && want.allowed:
		return nil
	case answer == nil:
		return errors.New("it is allowed")
	case err != nil:
		return fmt.Errorf("no answer (%w), and no drop: %w", answer, err)
	case want.allowed || e.Reason != want.reason || e.Direction != want.direction.String():
		return fmt.Errorf("it is dropped: %s", e.text)
	}
	return nil
}
