// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
)

// look is the gates of a round, which look at one snapshot. They look at the
// tables themselves where a row of class-readiness could be of a moment ago. That
// row changes after each of them, which has what waits looked at again; or it does
// not, where a change was undone before the row was derived anew, and bpfmap looks
// again by itself.
type look struct {
	*params
	txn statedb.ReadTxn

	// What many entries ask of the same class or group: why it is not ready, and
	// whether it is to be left by others. As far as asked.
	unready map[bpf.ClassKey]string
	leaving map[uint32]bool
}

func (p *params) look(txn statedb.ReadTxn) *look {
	return &look{p, txn, map[bpf.ClassKey]string{}, map[uint32]bool{}}
}

func egressClass(number uint32) bpf.ClassKey {
	return bpf.ClassKey{Role: bpf.RoleEgress, Number: number}
}

func gatewayGroup(number uint32) bpf.ClassKey {
	return bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: number}
}

// class is the gate of the record of what numbers stand for.
func (l *look) class(op bpfmap.Op[bpf.ClassKey, bpf.ClassValue]) (waitFor any, reason string) {
	if op.Delete() || op.Old == nil {
		return op.Key, ""
	}
	switch op.Key.Role {
	case bpf.RoleEgress:
		return op.Key, l.left(op.Key.Number)
	case bpf.RolePeer, bpf.RoleSubject:
		class := tables.ClassRow(l.txn, l.Members, op.Key)
		if class != nil && len(class.Leaving) > 0 {
			return op.Key, fmt.Sprintf("%s to be left by %d prefixes that no longer belong to it", op.Key, len(class.Leavers))
		}
	}
	return op.Key, ""
}

// gateway is the gate of sluice_gateways.
func (l *look) gateway(op bpfmap.Op[bpf.GatewayKey, bpf.GatewayValue]) (waitFor any, reason string) {
	group := gatewayGroup(op.Key.Group)
	if op.Delete() {
		_, _, used := l.EgressEntries.Get(l.txn, tables.EgressEntriesByGroup(group.Number))
		return group, unused(group, used)
	}
	return group, l.registered(group)
}

// rule is the gate of sluice_egress.
func (l *look) rule(op bpfmap.Op[bpf.EgressKey, bpf.EgressValue]) (waitFor any, reason string) {
	class := egressClass(op.Key.Class)
	if _, _, wanted := l.Classes.Get(l.txn, tables.ClassByKey(class)); !wanted {
		_, _, used := l.SourceEntries.Get(l.txn, tables.SourceEntriesByClass(class.Number))
		return class, unused(class, used)
	}
	if reason := l.left(class.Number); reason != "" || op.Delete() {
		return class, reason
	}
	if reason := l.registered(class); reason != "" || op.Value.Group == bpf.GroupExcluded {
		return class, reason
	}
	group := gatewayGroup(op.Value.Group)
	return group, l.ready(group)
}

// source is the gate of sluice_sources.
func (l *look) source(op bpfmap.Op[bpf.SourceKey, bpf.SourceValue]) (waitFor any, reason string) {
	if op.Delete() {
		return bpf.ClassKey{}, ""
	}
	class := egressClass(op.Value.Class)
	if !l.belongs(op.Key.Addr.Addr(), class.Number) {
		return class, "its class to be derived anew"
	}
	reason = l.ready(class)
	if reason == "" || op.Old == nil {
		return class, reason
	}
	// Addresses that are to leave the class hold back what it stands for and its
	// rules. Where these wait for this one to leave its own class, it gets the rules
	// as they are.
	if r := l.readiness(class); r != nil && l.waitFor(r, op.Old.Class, map[uint32]bool{}) {
		return class, ""
	}
	return class, reason
}

// pod says why a pod's traffic must not be let go yet: the kernel has the egress class
// of the former pod of its address. That the class of its own is not there yet is no
// reason: the programs hold a pod that is selected and in no class. A pod that is not
// selected any more keeps its class until its entry says so.
func (l *look) pod(op bpfmap.Op[bpf.PodKey, bpf.PodValue]) (reason string) {
	held := moves(op) || op.Old.Flags&bpf.PodEgressUnknown != 0
	if !held || op.Value.Flags&bpf.PodEgressUnknown != 0 {
		return ""
	}
	key := bpf.SourceKey{Addr: op.Key.Addr}
	source, _, found := l.SourceEntries.Get(l.txn, tables.MapEntryByKey[bpf.SourceKey, bpf.SourceValue](key))
	if !found || op.Value.Flags&bpf.PodEgressSelected != 0 && l.belongs(op.Key.Addr.Addr(), source.Value.Class) {
		return ""
	}
	return fmt.Sprintf("%s to be left by the address", egressClass(source.Value.Class))
}

// registered says why entries that name a number have to wait: it is to be recorded
// what the number stands for, or it could not be told after a restart.
func (l *look) registered(key bpf.ClassKey) (reason string) {
	if r := l.readiness(key); r == nil || !r.Registered {
		return fmt.Sprintf("%s: its number is not recorded yet", key)
	}
	return ""
}

// ready says why entries that lead to a class or group have to wait: it has to be
// complete in the kernel.
func (l *look) ready(key bpf.ClassKey) (reason string) {
	reason, known := l.unready[key]
	if known {
		return reason
	}
	switch r := l.readiness(key); {
	case r == nil:
		reason = key.String()
	case !r.Ready():
		reason = fmt.Sprintf("%s: the kernel has %d of its %d entries, and %d others", key, r.RowsReady, r.RowsWanted, r.RowsExtra)
	case key.Role == bpf.RoleEgress && !l.current(r):
		reason = fmt.Sprintf("%s: its rules to be derived anew", key)
	}
	l.unready[key] = reason
	return reason
}

// current reports whether the readiness of an egress class is that of the policies
// that apply to it now. From a changed policy to its rules, and to their readiness,
// it is several hops: who comes new to the class meanwhile would get the rules of
// before, and keep them for as long as the new ones wait.
func (l *look) current(r *tables.ClassReadiness) bool {
	class, _, found := l.Classes.Get(l.txn, tables.ClassByKey(r.ClassKey))
	if !found {
		return false
	}
	c, revision, found := l.EgressClasses.Get(l.txn, tables.EgressClassByNumber(r.Number))
	if !found || revision != r.Of {
		return false
	}
	taken := make(map[string]statedb.Revision, len(c.Policies))
	for _, choice := range c.Policies {
		taken[choice.Policy] = choice.Revision
		if _, revision, found := l.Policies.Get(l.txn, tables.EgressPolicyByName(choice.Policy)); !found || revision != choice.Revision {
			return false
		}
	}
	for _, id := range class.Selectors {
		s, _, found := l.Selectors.Get(l.txn, tables.SelectorByID(id))
		if !found {
			return false
		}
		for policy, revision := range l.Policies.List(l.txn, tables.EgressPoliciesBySelector(s.Text)) {
			if taken[policy.Name] != revision {
				return false
			}
		}
	}
	return true
}

// readiness returns what the kernel has of a class or group, nil if that is
// not known of what it stands for now.
func (l *look) readiness(key bpf.ClassKey) *tables.ClassReadiness {
	c, _, found := l.Classes.Get(l.txn, tables.ClassByKey(key))
	if !found {
		return nil
	}
	r, _, found := l.Readiness.Get(l.txn, tables.ClassReadinessByKey(key))
	if !found || r.Digest != c.Digest {
		return nil
	}
	return r
}

// waitFor reports whether the addresses that are to leave a class wait until another
// one is left by its own, each for the next.
func (l *look) waitFor(r *tables.ClassReadiness, other uint32, seen map[uint32]bool) bool {
	for _, number := range r.LeavingTo {
		if seen[number] {
			continue
		}
		seen[number] = true
		next := l.readiness(egressClass(number))
		if next != nil && !next.Ready() && (number == other || l.waitFor(next, other, seen)) {
			return true
		}
	}
	return false
}

// openSources has the addresses looked at again that wait for a class whose readiness
// has changed, or for one that others are to leave for it, each for the next: that may
// have closed a circle.
func (p *params) openSources(txn statedb.ReadTxn, r *tables.ClassReadiness, wake func(bpf.ClassKey)) {
	wake(r.ClassKey)
	if len(r.LeavingTo) > 0 {
		p.openLeaving(txn, r.Number, wake, map[uint32]bool{r.Number: true})
	}
}

func (p *params) openLeaving(txn statedb.ReadTxn, to uint32, wake func(bpf.ClassKey), seen map[uint32]bool) {
	for r := range p.Readiness.List(txn, tables.ClassReadinessLeavingTo(to)) {
		if !seen[r.Number] {
			seen[r.Number] = true
			wake(r.ClassKey)
			p.openLeaving(txn, r.Number, wake, seen)
		}
	}
}

// unused says why what belongs to a class or group has to stay: the kernel has
// something that leads to it.
func unused(key bpf.ClassKey, used bool) (reason string) {
	if used {
		return fmt.Sprintf("%s to be left by all that is in it", key)
	}
	return ""
}

// left says why changes to an egress class have to wait: the addresses that no longer
// belong to it have to be elsewhere first, or they would meet what is not meant for
// them.
func (l *look) left(number uint32) (reason string) {
	leaving, known := l.leaving[number]
	if !known {
		placement := tables.Placement{Endpoints: l.Endpoints, Members: l.Members, SourceEntries: l.SourceEntries}
		leaving = placement.Leaving(l.txn, number)
		l.leaving[number] = leaving
	}
	if leaving {
		return fmt.Sprintf("%s to be left by addresses that no longer belong to it", egressClass(number))
	}
	return ""
}

// belongs reports whether an address is of an endpoint of the class. A row that
// says so may be of a moment ago.
func (l *look) belongs(addr netip.Addr, class uint32) bool {
	owner, _ := tables.AddrOwner(l.txn, l.Endpoints, addr)
	if owner == nil {
		return false
	}
	m := tables.MemberOf(l.txn, l.Members, bpf.RoleEgress, owner)
	return m != nil && m.Class == class
}
