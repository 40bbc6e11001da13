// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"

	"github.com/sluice-net/sluice/bpf"
)

// Maps are sluice_policy and sluice_verdicts, or the tables of what is desired in them. They are
// asked by exact key.
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

// Question is the traffic of a pod with a peer. Port is the destination port, or the ICMP type.
type Question struct {
	Ruleset, Class uint32
	Direction      bpf.Direction
	Protocol       uint8
	Port           uint16
}

// Answer is a verdict, with the entries that led to it.
type Answer struct {
	Entry   bpf.PolicyKey
	Key     bpf.VerdictKey
	Verdict bpf.VerdictValue
}

// Lookup finds a verdict as the programs do: the entry of the class, or else that of any class,
// names a set, in which the longest prefix decides. If there is no entry, the packet is dropped.
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
