// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// chooser tells which selectors of a role choose a label set by its labels. What it has
// looked up it remembers for as long as selectors and namespaces stay as they are.
type chooser struct {
	*members
	role bpf.Role

	selectors, namespaces statedb.Revision // of which it remembers something
	remembered

	// Of the label set that is looked at: which choose it, and whether others may, by labels of
	// its namespace that are not known.
	chosen  []*tables.Selector
	unknown bool
}

// remembered is what was looked up.
type remembered struct {
	spaces   map[string]space                    // by name
	labelled map[tables.Label][]*tables.Selector // by the label that they require
	required map[string]bool                     // labels that selectors require, by key
	counted  bool                                // whether there are selectors, in none
	none     bool                                // no selector looks at label sets
}

// mostRemembered is how many namespaces, labels and their keys are remembered from round
// to round: where there are many, few are asked for again.
const mostRemembered = 1024

// space is what the label sets of a namespace have in common.
type space struct {
	namespace *tables.Namespace
	selectors []*tables.Selector // that require it, or nothing in particular
}

// begin forgets what does not hold in a snapshot that a round is of.
func (c *chooser) begin(txn statedb.ReadTxn) {
	selectors, namespaces := c.Selectors.Revision(txn), c.Namespaces.Revision(txn)
	if c.spaces == nil || c.selectors != selectors || c.namespaces != namespaces {
		c.selectors, c.namespaces = selectors, namespaces
		c.forget()
	}
}

// end forgets what a round has looked up if that is much.
func (c *chooser) end() {
	if len(c.spaces)+len(c.labelled)+len(c.required) > mostRemembered {
		c.forget()
	}
}

func (c *chooser) forget() {
	c.remembered = remembered{spaces: map[string]space{}, labelled: map[tables.Label][]*tables.Selector{}, required: map[string]bool{}}
}

// choosing returns the selectors that choose a label set by its labels, on some
// node at least, each once. They are good until the next call.
func (c *chooser) choosing(txn statedb.ReadTxn, set *tables.LabelSet) []*tables.Selector {
	c.chosen, c.unknown = c.chosen[:0], false
	at := c.spaceOf(txn, set.Namespace)
	consider := func(selectors []*tables.Selector) {
		for _, s := range selectors {
			again := len(s.Pods) > 1 && slices.Contains(c.chosen, s)
			if !again && s.MatchesLabels(set, at.namespace) {
				c.chosen = append(c.chosen, s)
			}
			c.unknown = c.unknown || at.namespace == nil && s.MayMatch(set)
		}
	}
	consider(at.selectors)
	for _, label := range set.Labels {
		if c.requires(txn, label.Key) {
			consider(c.requiring(txn, label))
		}
	}
	return c.chosen
}

// noSelectors reports whether no selector of the role looks at label sets, as where
// there are no egress policies.
func (c *chooser) noSelectors(txn statedb.ReadTxn) bool {
	if !c.counted {
		c.counted, c.none = true, true
		for range c.Selectors.Prefix(txn, tables.SelectorsByAnchor(tables.RoleAnchor{Role: c.role})) {
			c.none = false
			break
		}
	}
	return c.none
}

// withAnchor returns the selectors that require something.
func (c *chooser) withAnchor(txn statedb.ReadTxn, anchor string) []*tables.Selector {
	return statedb.Collect(tables.Rare(txn, c.Selectors, tables.SelectorsByAnchor(tables.RoleAnchor{Role: c.role, Anchor: anchor})))
}

func (c *chooser) spaceOf(txn statedb.ReadTxn, name string) space {
	s, known := c.spaces[name]
	if !known {
		selectors := slices.Concat(c.withAnchor(txn, tables.AnyAnchor), c.withAnchor(txn, tables.NamespaceAnchor(name)))
		s = space{c.namespace(txn, name), selectors}
		c.spaces[name] = s
	}
	return s
}

// requiring returns the selectors that require a label.
func (c *chooser) requiring(txn statedb.ReadTxn, label tables.Label) []*tables.Selector {
	selectors, known := c.labelled[label]
	if !known {
		selectors = c.withAnchor(txn, tables.LabelAnchor(label.Key, label.Value))
		c.labelled[label] = selectors
	}
	return selectors
}

// requires reports whether some selector requires a label with a key: most labels
// nobody looks at, and some have another value in each pod.
func (c *chooser) requires(txn statedb.ReadTxn, key string) (is bool) {
	is, known := c.required[key]
	if known {
		return is
	}
	for range c.Selectors.Prefix(txn, tables.SelectorsByAnchor(tables.RoleAnchor{Role: c.role, Anchor: tables.LabelAnchor(key, "")})) {
		is = true
		break
	}
	c.required[key] = is
	return is
}
