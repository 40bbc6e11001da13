// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// fate is how a policy fares on a node.
type fate uint8

const (
	fateNone fate = iota // there is no such node, or no agent there
	fateProgrammed
	fateWaiting  // it says that it does not have all of it yet
	fateUnheard  // it has said nothing of the object as it is now
	fateSilent   // its report has no room for it
	fateFailed   // it could not, and says why
	fateNotReady // and without it: nobody knows when it will have it, or whether it is still there
)

// fate returns how the policy of a row fares on a node, and what the node says of the
// object as it is now, nil if nothing.
func (s *status) fate(txn statedb.ReadTxn, row *tables.ObjectStatus, node string) (fate, *tables.ReportedPolicy) {
	s.looks++
	n, _, found := s.Nodes.Get(txn, tables.NodeByName(node))
	if !found || !runsAgent(n) {
		return fateNone, nil
	}
	said, omitted := s.said(txn, row, node)
	switch {
	case said != nil && said.InForce():
		return fateProgrammed, said
	case !n.Ready:
		return fateNotReady, said
	case said != nil && said.Failed > 0:
		return fateFailed, said
	case omitted:
		return fateSilent, said
	case said == nil:
		return fateUnheard, nil
	}
	return fateWaiting, said
}

// said returns what a node says of the object of a row as it is now, nil if nothing,
// and whether it has said nothing for want of room.
func (s *status) said(txn statedb.ReadTxn, row *tables.ObjectStatus, node string) (said *tables.ReportedPolicy, omitted bool) {
	r, _, found := s.Reports.Get(txn, tables.NodeReportByNode(node))
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

// standing is how an egress policy fares on all nodes. It is kept from one change to
// the next, so that a change of a node is a look at that node. As there are many nodes
// for each of many policies, a node is no more than a byte in it.
type standing struct {
	uid        string
	generation int64 // of the object that nodes were asked for

	fates   []fate              // of nodes, by their numbers
	losesTo map[string][]string // what a node says that it loses
}

// standing returns how the policy of a row fares, after a look at all nodes if that
// is not known of its object as it is now.
func (s *status) standing(txn statedb.ReadTxn, row *tables.ObjectStatus) *standing {
	st := s.standings[row.Policy]
	if st == nil || st.uid != row.UID || st.generation != row.Generation {
		st = &standing{uid: row.UID, generation: row.Generation, losesTo: map[string][]string{}}
		s.standings[row.Policy] = st
		for n := range s.Nodes.All(txn) {
			s.look(txn, row.Policy, n.Name)
		}
	}
	return st
}

// lookAt takes in how all policies fare on a node of which that is known of others. A
// policy that is gone for the moment may be back before its row is computed.
func (s *status) lookAt(txn statedb.ReadTxn, node string) {
	for id := range s.standings {
		s.look(txn, id, node)
	}
}

// look takes in how a policy fares on a node, if it is known how it does on others.
func (s *status) look(txn statedb.ReadTxn, id tables.PolicyID, node string) {
	st := s.standings[id]
	if st == nil {
		return
	}
	f, said := s.fate(txn, &tables.ObjectStatus{Policy: id, UID: st.uid, Generation: st.generation}, node)
	if number, known := s.numbers.of[node]; known {
		st.fates = append(st.fates, make([]fate, max(0, number+1-len(st.fates)))...)
		st.fates[number] = f
	}
	delete(st.losesTo, node)
	if said != nil && len(said.LosesTo) > 0 {
		st.losesTo[node] = said.LosesTo
	}
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
// their names, which a message names. While a policy comes into force they are very
// many, and it is said anew with each that has it.
type someNodes struct {
	count int
	first []string
}

func (n *someNodes) add(name string) {
	n.count++
	at, _ := slices.BinarySearch(n.first, name)
	if at < maxNamed {
		n.first = slices.Insert(n.first[:min(len(n.first), maxNamed-1)], at, name)
	}
}

func (s *status) tally(txn statedb.ReadTxn, row *tables.ObjectStatus) tally {
	st := s.standing(txn, row)
	var t tally
	for number, f := range st.fates {
		node := s.numbers.names[number]
		switch f {
		case fateNone, fateNotReady:
			continue
		case fateProgrammed:
			t.programmed++
		case fateWaiting:
			t.waiting.add(node)
		case fateUnheard:
			t.unheard.add(node)
		case fateSilent:
			t.silent.add(node)
		case fateFailed:
			t.failed.add(node)
		}
		t.total++
	}
	s.explain(txn, row, t.failed.first)
	loses := map[string]struct{}{}
	for _, destinations := range st.losesTo {
		for _, d := range destinations {
			loses[d] = struct{}{}
		}
	}
	t.losesTo = slices.Sorted(maps.Keys(loses))
	return t
}

// explain adds to the names of nodes why these could not.
func (s *status) explain(txn statedb.ReadTxn, row *tables.ObjectStatus, nodes []string) {
	for i, node := range nodes {
		said, _ := s.said(txn, row, node)
		nodes[i] = fmt.Sprintf("%s: %s", node, said.Error)
	}
}

// refusals are the nodes that could not have a network policy, and why.
func (s *status) refusals(txn statedb.ReadTxn, row *tables.ObjectStatus) (failed someNodes) {
	for node := range s.named[row.Policy] {
		if f, _ := s.fate(txn, row, node); f == fateFailed {
			failed.add(node)
		}
	}
	s.explain(txn, row, failed.first)
	return failed
}

// runsAgent reports whether a node is one for which deploy/ has an agent.
func runsAgent(n *tables.Node) bool {
	system, known := n.Labels["kubernetes.io/os"]
	return !known || system == "linux"
}
