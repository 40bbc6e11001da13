// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// outcome returns the status of the policy of a row on a node, and what the node says of the
// object as it is now, nil if nothing.
func (c *statusRound) outcome(
	row *tables.ObjectStatus, node string,
) (tables.NodeOutcome, *tables.ReportedPolicy) {
	c.looks++
	n, _, found := c.Nodes.Get(c.in, tables.NodeByName(node))
	if !found || !n.RunsAgent() {
		return tables.OutcomeNone, nil
	}
	said, omitted := c.said(row, node)
	switch {
	case said != nil && said.Applied():
		return tables.OutcomeProgrammed, said
	case !n.Ready:
		return tables.OutcomeNotReady, said
	case said != nil && said.Failed > 0:
		return tables.OutcomeFailed, said
	case omitted:
		return tables.OutcomeSilent, said
	case said == nil:
		return tables.OutcomeUnheard, nil
	}
	return tables.OutcomeWaiting, said
}

// said returns what a node says of the object of a row as it is now, nil if nothing,
// and whether it has said nothing for want of room.
func (c *statusRound) said(
	row *tables.ObjectStatus, node string,
) (said *tables.ReportedPolicy, omitted bool) {
	r, _, found := c.Reports.Get(c.in, tables.NodeReportByNode(node))
	if !found {
		return nil, false
	}
	said = r.Policy(row.Policy)
	if said == nil {
		return nil, r.Omitted > 0
	}
	if said.Generation != row.Generation || said.UID != "" && said.UID != row.UID {
		return nil, false
	}
	return said, false
}

// exception returns what there is to say of a node beside that it has the policy of a row,
// and reports whether that is anything.
func (c *statusRound) exception(
	row *tables.ObjectStatus, node string,
) (e tables.NodeException, is bool) {
	outcome, said := c.outcome(row, node)
	e = tables.NodeException{Node: node, Outcome: outcome}
	if outcome == tables.OutcomeFailed {
		e.Error = said.Error
	}
	if said != nil {
		e.LosesTo = said.LosesTo
	}
	return e, outcome > tables.OutcomeProgrammed || len(e.LosesTo) > 0
}

// exceptions are those of the policy of a row, which are the former ones but for the nodes that
// have changed: all nodes are looked at only for an object that is new or has changed.
func (c *statusRound) exceptions(
	row, former *tables.ObjectStatus, changed []string,
) (exceptions []tables.NodeException) {
	if former == nil || former.UID != row.UID || former.Generation != row.Generation {
		for n := range c.Nodes.All(c.in) {
			if e, is := c.exception(row, n.Name); is {
				exceptions = append(exceptions, e)
			}
		}
		return exceptions
	}
	if len(changed) == 0 {
		return former.Exceptions
	}
	exceptions = slices.Clone(former.Exceptions)
	for _, node := range changed {
		at, found := slices.BinarySearchFunc(exceptions, node,
			func(e tables.NodeException, node string) int { return strings.Compare(e.Node, node) })
		if found {
			exceptions = slices.Delete(exceptions, at, at+1)
		}
		if e, is := c.exception(row, node); is {
			exceptions = slices.Insert(exceptions, at, e)
		}
	}
	return exceptions
}

// tally is what the nodes say of an egress policy. One that is not ready counts only
// if it has the policy.
type tally struct {
	programmed, total int
	waiting           someNodes // that say that they do not have all of it yet
	unheard           someNodes // that have said nothing of the object as it is now
	silent            someNodes // of which the report has no room for it
	failed            someNodes // that could not, and why
	losesTo           []string
}

// someNodes are the nodes of which the same is said: how many, and the first few by
// their names, which a message names.
type someNodes struct {
	count int
	first []string
}

// add adds the next node in the order of names.
func (n *someNodes) add(text string) {
	if n.count++; n.count <= maxNamed {
		n.first = append(n.first, text)
	}
}

func (n *someNodes) addError(node, text string) { n.add(fmt.Sprintf("%s: %s", node, text)) }

// tallyOf is what the exceptions come to, of so many nodes with an agent.
func tallyOf(exceptions []tables.NodeException, agents int) (t tally) {
	t.programmed, t.total = agents, agents
	loses := map[string]struct{}{}
	for _, e := range exceptions {
		for _, destination := range e.LosesTo {
			loses[destination] = struct{}{}
		}
		if e.Outcome == tables.OutcomeProgrammed {
			continue
		}
		t.programmed--
		switch e.Outcome {
		case tables.OutcomeNotReady:
			t.total--
		case tables.OutcomeWaiting:
			t.waiting.add(e.Node)
		case tables.OutcomeUnheard:
			t.unheard.add(e.Node)
		case tables.OutcomeSilent:
			t.silent.add(e.Node)
		case tables.OutcomeFailed:
			t.failed.addError(e.Node, e.Error)
		}
	}
	t.losesTo = slices.Sorted(maps.Keys(loses))
	return t
}

// refusals are the nodes that could not have a network policy, and why.
func (c *statusRound) refusals(row *tables.ObjectStatus) (failed someNodes) {
	for r := range c.Reports.List(c.in, tables.NodeReportsByNetworkPolicy(row.Policy)) {
		if outcome, said := c.outcome(row, r.Node); outcome == tables.OutcomeFailed {
			failed.addError(r.Node, said.Error)
		}
	}
	return failed
}
