// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"

	"github.com/sluice-net/sluice/bpf"
)

// Maps are sluice_policy and sluice_verdicts, or the tables of what is desired in them, by
// very keys.
type Maps struct {
	Policy  func(bpf.PolicyKey) (bpf.PolicyValue, bool)
	Verdict func(bpf.VerdictKey) (bpf.VerdictValue, bool)
}

// Desired returns what is desired in the maps.
func Desired(
	txn statedb.ReadTxn,
	entries statedb.Table[*tables.PolicyEntry], verdicts statedb.Table[*tables.Verdict],
) Maps {
	return Maps{
		Policy: func(k bpf.PolicyKey) (value bpf.PolicyValue, found bool) {
			e, _, found := entries.Get(txn, tables.PolicyEntryByKey(k))
			if found {
				value = e.MapValue()
			}
			return value, found
		},
		Verdict: func(k bpf.VerdictKey) (value bpf.VerdictValue, found bool) {
			v, _, found := verdicts.Get(txn, tables.VerdictByKey(k))
			if found {
				value = v.MapValue()
			}
			return value, found
		},
	}
}

// Question is the traffic of a pod with a peer. The port is that of the destination, or the
// type of ICMP.
type Question struct {
	Ruleset, Class uint32
	Direction      bpf.Direction
	Protocol       uint8
	Port           uint16
}

// Answer is a verdict, with the entries that it was found by.
type Answer struct {
	Entry   bpf.PolicyKey
	Key     bpf.VerdictKey
	Verdict bpf.VerdictValue
}

// Lookup does what the programs do to find a verdict: the entry of the class, or else that
// of any class, names a set, in which the longest prefix decides. If nothing is found, the
// packet is dropped.
func (m Maps) Lookup(q Question) (a Answer, found bool) {
	a.Entry = bpf.PolicyKey{Ruleset: q.Ruleset, Class: q.Class, Direction: q.Direction}
	entry, found := m.Policy(a.Entry)
	if !found {
		a.Entry.Class = bpf.AnyClass
		entry, found = m.Policy(a.Entry)
	}
	if !found {
		return Answer{}, false
	}
	for key := range Around(bpf.VerdictKeyOf(entry.Set, q.Protocol, q.Port, 16)) {
		if a.Verdict, found = m.Verdict(key); found {
			a.Key = key
			return a, true
		}
	}
	return Answer{}, false
}
