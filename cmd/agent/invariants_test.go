// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-net/sluice/bpf"
)

// checker watches the decisions that the maps lead to after every single
// write. Between two moments of rest, what becomes of a packet may change only
// from what it was at the first to what it is at the second: no packet that
// both let pass is dropped in between, none leaves another way.
type checker struct {
	mu         sync.Mutex
	probes     map[probe]*history
	owners     map[netip.Addr]string // of addresses, at the last rest
	violations []string
	election   bool // the events since the last rest are of nodes
	disturbed  bool // another process has changed the maps since the last rest
}

// localUnderlay is in the decisions for this node as the gateway: in all scripts
// and tests that is its address.
const localUnderlay = "gateway=192.168.0.1 "

type probe struct{ src, dst netip.Addr }

// history is what became of a packet since the last rest.
type history struct {
	decisions []string
	writes    []string // that led to each

	device, atRest uint32 // by which the pod is reached, and at the last rest
}

func newChecker(m *bpf.Memory) *checker {
	c := &checker{probes: map[probe]*history{}}
	m.OnWrite(c.written)
	return c
}

// written takes in the decisions after a write.
func (c *checker) written(w bpf.Write, r bpf.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	write := w.String()
	for p, h := range c.probes {
		c.take(p, h, write, r)
	}
}

func (c *checker) take(p probe, h *history, write string, r bpf.Reader) {
	decision, err := inKernel(r, p.src, p.dst, false)
	pod, found := bpf.Get[bpf.PodKey, bpf.PodValue](
		r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(p.src)})
	local := found && pod.Flags&bpf.PodLocal != 0
	h.device = pod.IfIndex
	if !local && strings.HasPrefix(decision, "gateways ") && !strings.Contains(decision, localUnderlay) {
		decision = unknown // another node's pod and another gateway: what comes here nevertheless is dropped
	}
	if err != nil {
		c.violations = append(c.violations, fmt.Sprintf("after %s: %v", write, err))
		return
	}
	if n := len(h.decisions); n == 0 || h.decisions[n-1] != decision {
		h.decisions = append(h.decisions, decision)
		h.writes = append(h.writes, write)
	}
}

// watch adds packets to look at.
func (c *checker) watch(sources, destinations []netip.Addr, r bpf.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, src := range sources {
		for _, dst := range destinations {
			p := probe{src, dst}
			if c.probes[p] == nil && src.BitLen() == dst.BitLen() {
				c.probes[p] = &history{}
				c.take(p, c.probes[p], "the beginning", r)
			}
		}
	}
}

// violation takes in one that another observer of the writes has found.
func (c *checker) violation(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, text)
}

func (c *checker) setElection(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.election = yes
}

// disturb tells that another process changes the maps: what comes of that shows at the
// agent's next write, whatever that is.
func (c *checker) disturb() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disturbed = true
}

// rest says what was wrong since the last rest. It is told who has each address.
func (c *checker) rest(owners map[netip.Addr]string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	former := c.owners
	c.owners = owners
	violations := c.violations
	c.violations = nil
	for p, h := range c.probes {
		if len(h.decisions) == 0 {
			continue
		}
		last := h.decisions[len(h.decisions)-1]
		for i, d := range h.decisions[1:] {
			switch {
			case c.disturbed:
			case d == last && i == len(h.decisions)-2:
			case d == held && (h.decisions[0] == plain || h.decisions[0] == unknown):
				// A pod that is new, or selected for the first time.
			case d == plain && h.decisions[0] == unknown:
				// Known as a pod of this node, a moment before more is known.
			case d == unknown && h.device != h.atRest:
				// The pod moves to another device: it is held until its programs
				// run there.
			case former[p.src] != owners[p.src]:
				// The pod is gone or elsewhere, or another has its address: there
				// is no one whose traffic was to go on. That the other one is not
				// let go with the former's class is looked at with each write.
			case c.election && strings.HasPrefix(d, "gateways "):
				// A node's change concerns the election of gateways and, by node
				// selectors, which pods policies select: one is known before the other.
			default:
				violations = append(violations, fmt.Sprintf("%s to %s: %s; by %s", p.src, p.dst,
					strings.Join(h.decisions, " -> "), strings.Join(h.writes, "; ")))
			}
		}
		h.decisions, h.writes, h.atRest = []string{last}, []string{"the last rest"}, h.device
	}
	c.disturbed = false
	return report(violations)
}

func report(violations []string) error {
	if len(violations) == 0 {
		return nil
	}
	slices.Sort(violations)
	return fmt.Errorf("%d violations, such as\n%s", len(violations), strings.Join(violations[:min(5, len(violations))], "\n"))
}
