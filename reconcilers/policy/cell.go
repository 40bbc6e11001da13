// SPDX-License-Identifier: Apache-2.0

// Package policy keeps sluice_policy equal to policy-entries. No gate holds its
// entries back: addresses come into a class when the kernel has all its verdicts,
// which the tables of addresses see to. What this package sees to is the order of
// the writes: all entries of a subject class and a direction change so that after
// each write every packet meets its old verdict or its new one.
package policy

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
)

// Cell reconciles the map of verdicts.
var Cell = cell.Module(
	"policy-maps",
	"Map of network policies",

	tables.Own(tables.NewPolicyMapEntryTable),
	cell.Invoke(register),
)

func register(p bpfmap.Params, maps *bpf.Maps, desired tables.Desired[*tables.PolicyEntry], mirror statedb.RWTable[*tables.PolicyMapEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Policy, desired, mirror, bpfmap.PlanPrecedence(Precedence))
	cfg.Independent = true // no gate looks at it
	return bpfmap.Register(p, cfg)
}

// Precedence is how the programs decide by sluice_policy. It looks up one key for
// the class of the peer, and one for any peer.
var Precedence = bpfmap.Precedence[bpf.PolicyKey, bpf.PolicyValue]{
	Of:       func(v bpf.PolicyValue) int { return int(v.Precedence) },
	Denies:   func(v bpf.PolicyValue) bool { return v.Deny != 0 },
	Length:   func(k bpf.PolicyKey) int { return int(k.PrefixLen) },
	Covers:   policy.Covering,
	Overlaps: overlap,
	Forbid: func(entry, denial bpf.PolicyValue) bpf.PolicyValue {
		return bpf.PolicyValue{Precedence: entry.Precedence, Cookie: denial.Cookie, Deny: 1}
	},
	Unit: func(k bpf.PolicyKey) any { return unit{k.Subject, k.Direction} },
}

// unit is what the keys have in common that may decide about one packet.
type unit struct {
	subject   uint32
	direction bpf.Direction
}

// overlap reports whether a packet is looked up by keys that both cover.
func overlap(a, b bpf.PolicyKey) bool {
	if a.Peer != b.Peer && a.Peer != bpf.AnyPeerClass && b.Peer != bpf.AnyPeerClass {
		return false
	}
	b.Peer = a.Peer
	return a.Covers(b) || b.Covers(a)
}
