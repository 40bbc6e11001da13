// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// maxAllocations bounds the addresses that a pool gives to policies, by the size of its object.
const maxAllocations = 4096

// uses are what policies have, or want, of pools.
type uses struct {
	named map[netip.Addr]bool               // addresses that policies name by themselves
	wants map[string][]*tables.EgressPolicy // by the pool that gives them an address, in order

	internal map[netip.Addr]string // internal addresses of Nodes, with their names
}

func (r *rule) uses(in statedb.ReadTxn) uses {
	u := uses{
		named: map[netip.Addr]bool{}, wants: map[string][]*tables.EgressPolicy{},
		internal: map[netip.Addr]string{},
	}
	for p := range r.Policies.All(in) {
		if pool := p.Pool(); pool != "" {
			u.wants[pool] = append(u.wants[pool], p)
		}
		for _, addr := range p.NamedEgressIPs() {
			u.named[addr] = true
		}
	}
	for _, policies := range u.wants {
		slices.SortFunc(policies, tables.InOrder[*tables.EgressPolicy])
	}
	for n := range r.Nodes.All(in) {
		for _, addr := range n.InternalIPs {
			u.internal[addr] = n.Name
		}
	}
	return u
}

// spansOf returns the addresses of a pool that are of no older one.
func spansOf(p *tables.EgressIPPool, older []*tables.EgressIPPool) []tables.AddrRange {
	spans := p.Spans()
	for _, o := range older {
		for _, span := range o.Spans() {
			spans = tables.SubtractRange(spans, span)
		}
	}
	return spans
}

// isKnown reports whether spansOf has all addresses of a pool: whether no item of it is misspelled,
// and no exclusion of an older one.
func isKnown(p *tables.EgressIPPool, older []*tables.EgressIPPool) bool {
	return !p.LacksItems() &&
		!slices.ContainsFunc(older, func(o *tables.EgressIPPool) bool { return o.Error != "" })
}

func contains(spans []tables.AddrRange, addr netip.Addr) bool {
	return slices.ContainsFunc(spans, func(r tables.AddrRange) bool { return r.Contains(addr) })
}

// ofNodes returns the addresses of a pool that policies name and that are internal ones of Nodes,
// with these, in order.
func (u *uses) ofNodes(spans []tables.AddrRange) (named []string) {
	for _, addr := range slices.SortedFunc(maps.Keys(u.named), netip.Addr.Compare) {
		if node := u.internal[addr]; node != "" && contains(spans, addr) {
			named = append(named, addr.String()+" of "+node)
		}
	}
	return named
}

// reserved returns the addresses of a pool that no policy is given, though it may name them: those
// of networks, and internal ones of Nodes. A fixed pool gives none, and has none of these.
func (u *uses) reserved(p *tables.EgressIPPool, spans []tables.AddrRange) map[netip.Addr]bool {
	reserved := map[netip.Addr]bool{}
	if p.Fixed {
		return reserved
	}
	for _, addr := range p.NetworkAddrs() {
		if contains(spans, addr) {
			reserved[addr] = true
		}
	}
	for addr := range u.internal {
		if contains(spans, addr) {
			reserved[addr] = true
		}
	}
	return reserved
}

// count counts the addresses of a pool, of which those are used that policies have or name. A
// reserved one counts if it is used.
func (u *uses) count(
	spans []tables.AddrRange, reserved map[netip.Addr]bool, allocations []tables.PoolAllocation,
) tables.PoolAddresses {
	used := map[netip.Addr]bool{}
	for addr := range u.named {
		if contains(spans, addr) {
			used[addr] = true
		}
	}
	for _, a := range allocations {
		used[a.Addr] = true
	}
	n := tables.PoolAddresses{Total: tables.CountAddrs(spans), Used: int64(len(used))}
	for addr := range reserved {
		if !used[addr] && n.Total < math.MaxInt64 {
			n.Total--
		}
	}
	return n
}

// assign returns the addresses that policies have of a pool, in order, and the policies for which
// there is none. A policy keeps the address that it has, and any as long as it is not known which
// ones are the pool's. One without gets the lowest that is free and not reserved.
func (u *uses) assign(
	p *tables.EgressIPPool, spans []tables.AddrRange, reserved map[netip.Addr]bool, known bool,
) (allocations []tables.PoolAllocation, without []string) {
	wants := map[string]bool{}
	for _, policy := range u.wants[p.Name] {
		wants[policy.Name] = true
	}
	taken, served := map[netip.Addr]bool{}, map[string]bool{}
	for _, a := range p.Allocations {
		if wants[a.Policy] && (!known || contains(spans, a.Addr)) {
			allocations = append(allocations, a)
			taken[a.Addr], served[a.Policy] = true, true
		}
	}
	isFree := func(a netip.Addr) bool { return !taken[a] && !u.named[a] && !reserved[a] }
	v4, v6 := free{is: isFree}, free{is: isFree}
	for _, span := range spans {
		if p.Error != "" || p.Fixed { // which addresses are excluded, or where they are, is not known
			break
		}
		if span.First.Is4() {
			v4.spans = append(v4.spans, span)
		} else {
			v6.spans = append(v6.spans, span)
		}
	}
	for _, policy := range u.wants[p.Name] {
		if served[policy.Name] {
			continue
		}
		first, second := &v4, &v6
		if policy.WantsIPv6() {
			first, second = &v6, &v4
		}
		addr := first.next()
		if !addr.IsValid() {
			addr = second.next()
		}
		if !addr.IsValid() || len(allocations) == maxAllocations {
			without = append(without, policy.Name)
			continue
		}
		allocations = append(allocations, tables.PoolAllocation{Addr: addr, Policy: policy.Name})
	}
	slices.SortFunc(allocations,
		func(a, b tables.PoolAllocation) int { return a.Addr.Compare(b.Addr) })
	return allocations, without
}

// free finds the free addresses of one family, in order.
type free struct {
	is    func(netip.Addr) bool
	spans []tables.AddrRange // that may have more
}

// next returns the next one, invalid if there is none.
func (f *free) next() netip.Addr {
	for len(f.spans) > 0 {
		span := &f.spans[0]
		addr := span.First
		if addr == span.Last {
			f.spans = f.spans[1:]
		} else {
			span.First = addr.Next()
		}
		if f.is(addr) {
			return addr
		}
	}
	return netip.Addr{}
}
