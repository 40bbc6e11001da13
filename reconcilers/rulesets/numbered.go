// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"fmt"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// lookNumbered checks whether all members that the kernel has are in classes with their numbers for
// the names of ports in egress rules of a ruleset. Otherwise a subject could enter a ruleset that
// allows a port by name, while members are still in classes without the number: that was allowed,
// would be denied for a moment, and allowed again.
func (p *params) lookNumbered(txn statedb.ReadTxn) func(mapsync.Reference) string {
	answers := map[string]string{}
	return func(r mapsync.Reference) string {
		ruleset, _, found := p.Rulesets.Get(txn, tables.RulesetByNumber(r.Number))
		if !found {
			return "it is not in " + p.Rulesets.Name()
		}
		for _, name := range ruleset.PeerPorts() {
			answer, known := answers[name]
			if !known {
				answer = p.withoutNumber(txn, name)
				answers[name] = answer
			}
			if answer != "" {
				return fmt.Sprintf("port %s: %s", name, answer)
			}
		}
		return ""
	}
}

// withoutNumber names the table of members if one has a number for the name of a port, and the
// kernel may have it in a class without the number.
func (p *params) withoutNumber(txn statedb.ReadTxn, name string) string {
	for m := range p.Members.All(txn) {
		if m.Labels == nil {
			continue
		}
		for _, port := range m.Labels.NamedPorts {
			if port.NameText() == name && !p.hasNumber(txn, m, port) {
				return p.Members.Name()
			}
		}
	}
	return ""
}

func (p *params) hasNumber(txn statedb.ReadTxn, m *tables.Member, port tables.NamedPort) bool {
	key := tables.MirrorByKey[bpf.PeerKey, bpf.PeerValue](m.MapKey())
	mirror, _, found := p.PeerMirror.Get(txn, key)
	if !found {
		return true
	}
	for _, v := range mirror.Values() {
		class, _, known := p.Classes.Get(txn, tables.ClassByNumber(v.Class))
		if known && class.Precision != tables.Refused && !slices.Contains(class.Ports, port) {
			return false
		}
	}
	return true
}
