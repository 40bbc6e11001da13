// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// policyChecker watches what the maps make of packets after every single write.
// Between two moments of rest, with one event between them, a verdict changes
// once at most, from that of the first to that of the second.
type policyChecker struct {
	mu      sync.Mutex
	verdict func(bpf.Reader, policytest.Packet) string

	probes     map[netip.Addr][]*policyProbe // by subject
	identities map[netip.Addr]identity       // at the last rest
	violations []string
	failClosed bool // too much may be denied in between
}

type policyProbe struct {
	packet   policytest.Packet
	verdicts []string // since the last rest
	writes   []string // that led to each
}

// identity is all that selectors may look at of the owner of an address.
type identity struct{ name, labels string }

func newPolicyChecker(m *bpf.Memory, hostAllowed bool) *policyChecker {
	c := &policyChecker{
		verdict: func(r bpf.Reader, p policytest.Packet) string {
			verdict, _ := policyInKernel(r, p, hostAllowed)
			return verdict
		},
		probes: map[netip.Addr][]*policyProbe{},
	}
	m.OnWrite(c.written)
	return c
}

// written takes in the verdicts that a write may have changed.
func (c *policyChecker) written(w bpf.Write, r bpf.Reader) {
	if w.Err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	write := w.String()
	for _, probes := range c.probes {
		for _, p := range probes {
			c.take(p, write, r)
		}
	}
}

func (c *policyChecker) take(p *policyProbe, write string, r bpf.Reader) {
	verdict := c.verdict(r, p.packet)
	if n := len(p.verdicts); n == 0 || p.verdicts[n-1] != verdict {
		p.verdicts = append(p.verdicts, verdict)
		p.writes = append(p.writes, write)
	}
	if verdict == noMatch {
		c.violations = append(c.violations, fmt.Sprintf("%s: no verdict, by %s", p.packet, write))
	}
}

// watch looks at other packets from now on, in a world at rest.
func (c *policyChecker) watch(packets []policytest.Packet, w *policytest.World, r bpf.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = nil
	clear(c.probes)
	for _, p := range packets {
		probe := &policyProbe{packet: p}
		c.probes[p.Subject] = append(c.probes[p.Subject], probe)
		c.take(probe, "the beginning", r)
	}
	c.identities = c.identitiesOf(w)
}

// stop looks at nothing any more.
func (c *policyChecker) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.probes)
}

func (c *policyChecker) identitiesOf(w *policytest.World) map[netip.Addr]identity {
	ids := map[netip.Addr]identity{}
	for subject, probes := range c.probes {
		ids[subject] = identityOf(w, subject)
		for _, p := range probes {
			ids[p.packet.Peer] = identityOf(w, p.packet.Peer)
		}
	}
	return ids
}

// identityOf says who has an address.
func identityOf(w *policytest.World, addr netip.Addr) (id identity) {
	if pod := w.Pod(addr); pod != nil {
		id = identity{pod.Name.String() + " on " + pod.Node, fmt.Sprint(pod.LabelSet.Labels, pod.LabelSet.ServiceAccount, pod.LabelSet.NamedPorts)}
		for _, n := range w.Namespaces {
			if n.Name == pod.Namespace {
				id.labels += n.Labels.String()
			}
		}
		return id
	}
	for _, n := range w.Nodes {
		if slices.Contains(w.NodeAddrs(n), addr) {
			id = identity{n.Name, n.Labels.String()}
		}
	}
	return id
}

// rest says what was wrong since the last rest, between which there was one event.
func (c *policyChecker) rest(w *policytest.World) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	violations := slices.Clone(c.violations)
	c.violations = nil
	identities := c.identitiesOf(w)
	for subject, probes := range c.probes {
		before, now := c.identities[subject], identities[subject]
		for _, p := range probes {
			first, last := p.verdicts[0], p.verdicts[len(p.verdicts)-1]
			// Both sides are others than before: one is known to be a moment before
			// the other.
			both := before != now && c.identities[p.packet.Peer] != identities[p.packet.Peer]
			for _, v := range p.verdicts {
				switch {
				case v == first || v == last || both:
				case v == denied && c.failClosed:
				case (v == heldNew || v == denied) && (before.name != now.name || first == notHere):
					// A pod that is new, or another one at the address.
				case v == notHere && before.name != now.name:
				default:
					violations = append(violations, fmt.Sprintf("%s: %s; by %s", p.packet,
						strings.Join(p.verdicts, " -> "), strings.Join(p.writes, "; ")))
				}
			}
			if len(p.verdicts) > 2 && before.name == now.name && first != notHere && !both && !c.failClosed {
				violations = append(violations, fmt.Sprintf("%s: to and fro, %s", p.packet, strings.Join(p.verdicts, " -> ")))
			}
			p.verdicts, p.writes = []string{last}, []string{"the last rest"}
		}
	}
	c.identities = identities
	return report(violations)
}

// withoutVerdicts says which packets had no verdict since the last rest.
func (c *policyChecker) withoutVerdicts() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return report(c.violations)
}
