// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Counts has the numbers of classes on which the size of a ruleset depends.
type Counts struct {
	// Selector returns how many classes a selector selects.
	Selector func(number uint32) int

	// Port returns how many numbers classes have for a port name in the form http/tcp, one for each
	// class if none has several.
	Port func(name string) int
}

// Size returns upper bounds for the policy entries and verdicts of rules. It does not need the
// ruleset to exist, and takes time in proportion to its ports and peers.
//
// Two selectors of a rule may select the same class, and two rulesets may share verdict sets, so
// the real numbers may be much smaller.
func Size(rules []*tables.Rule, counts Counts) (pairs, verdicts int) {
	for _, d := range directions {
		p, v := sizeOf(rules, d, counts)
		pairs, verdicts = pairs+p, verdicts+v
	}
	return pairs, verdicts
}

// maxVariants is more than there are classes.
const maxVariants = 1 << 30

func sizeOf(rules []*tables.Rule, d bpf.Direction, counts Counts) (pairs, verdicts int) {
	anyPeer := 1 // the default
	special := 0 // classes with special rules
	named := 0   // verdicts by names of ports
	hasNames := false
	type peers struct{ keys, classes int }
	var ofPeers []peers
	for _, r := range rules {
		if r.Direction != d || r.NoPorts || r.DefaultDeny {
			continue
		}
		st := newStatement(0, r)
		numbers := 0
		for _, p := range st.named {
			numbers += counts.Port(p.String())
		}
		named += numbers
		hasNames = hasNames || numbers > 0
		if r.AnyPeer {
			anyPeer += len(st.keys)
			special += numbers
			continue
		}
		classes := 0
		for _, selector := range r.Peers {
			classes += counts.Selector(selector)
		}
		special += classes
		ofPeers = append(ofPeers, peers{len(st.keys), classes})
	}

	// Classes that the same rules select share one set, unless their port numbers differ.
	variants := maxVariants
	if !hasNames && len(ofPeers) < 30 {
		variants = 1 << len(ofPeers)
	}
	verdicts = 1 + anyPeer*(1+min(special, variants-1)) + named // 1 of refused classes
	for _, p := range ofPeers {
		verdicts += p.keys * min(p.classes, variants/2)
	}
	return 2 + special, verdicts // of any class, and of refused ones
}
