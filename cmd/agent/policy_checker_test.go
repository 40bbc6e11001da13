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

	// concerned returns which packets of a pod a write may change the verdict on, nil for
	// none.
	concerned func(bpf.Write, bpf.Reader, netip.Addr) func(policytest.Packet) bool

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

// identity is all that selectors may look at of whoever has an address.
type identity struct{ name, labels string }

func newPolicyChecker(m *bpf.Memory, hostAllowed bool) *policyChecker {
	return watchPolicies(m, &policyChecker{
		verdict:   func(r bpf.Reader, p policytest.Packet) string { return policyInKernel(r, p, hostAllowed) },
		concerned: concernedByWrite,
	})
}

// watchPolicies has a checker called after every write.
func watchPolicies(m *bpf.Memory, c *policyChecker) *policyChecker {
	c.probes = map[netip.Addr][]*policyProbe{}
	m.OnWrite(c.written)
	return c
}

func concernedByWrite(w bpf.Write, r bpf.Reader, subject netip.Addr) func(policytest.Packet) bool {
	switch key := w.Key.(type) {
	case bpf.PodKey:
		return func(policytest.Packet) bool { return key.Addr.Addr() == subject }
	case bpf.IPCacheKey:
		prefix := key.Prefix()
		return func(p policytest.Packet) bool { return prefix.Contains(p.Peer) }
	case bpf.PolicyKey:
		pod, local := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(subject)})
		return func(p policytest.Packet) bool {
			return local && pod.SubjectClass == key.Subject && p.Direction == key.Direction
		}
	}
	return nil
}

// written takes in the verdicts that a write may have changed.
func (c *policyChecker) written(w bpf.Write, r bpf.Reader) {
	if w.Err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for subject, probes := range c.probes {
		concerned := c.concerned(w, r, subject)
		if concerned == nil {
			return
		}
		for _, p := range probes {
			if concerned(p.packet) {
				c.take(p, w.String(), r)
			}
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
		c.violations = append(c.violations, fmt.Sprintf("%s: in a class without verdicts, by %s", p.packet, write))
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

// withoutVerdicts says who was in a class without verdicts since the last rest.
func (c *policyChecker) withoutVerdicts() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return report(c.violations)
}

// inClassWithoutVerdicts says who is in a class of pods that has no default of its
// own, which is there if the class was ever programmed.
func inClassWithoutVerdicts(r bpf.Reader) error {
	var violations []string
	for pod, v := range bpf.All[bpf.PodKey, bpf.PodValue](r, "sluice_pods") {
		for _, direction := range []bpf.Direction{bpf.DirectionIngress, bpf.DirectionEgress} {
			key := bpf.PolicyKeyOf(v.SubjectClass, bpf.AnyPeerClass, direction, 0, 0, 0)
			if _, found := bpf.Get[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy", key); !found && v.SubjectClass != bpf.NoSubjectClass {
				violations = append(violations, fmt.Sprintf("%s is in subject class %d, without a default of %s", pod, v.SubjectClass, direction))
			}
		}
	}
	return report(violations)
}
