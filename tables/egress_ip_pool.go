// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EgressIPPool is a set of egress addresses that move between nodes, or are fixed, from an
// EgressIPPool object. An item of its addresses that does not parse is left out; any other mistake
// is in Error, and then the pool keeps its addresses but gives them to no node.
type EgressIPPool struct {
	Name    string    `json:"name"`
	UID     string    `json:"uid,omitempty"`
	Created time.Time `json:"created"`

	Prefixes []netip.Prefix `json:"prefixes,omitempty"` // masked
	Ranges   []AddrRange    `json:"ranges,omitempty"`
	Excluded []netip.Prefix `json:"excluded,omitempty"` // masked

	// Fixed says that nodes have the addresses by others: they do not move, and are given to no
	// policy. What the pool gives is ports.
	Fixed bool `json:"fixed,omitempty"`

	// Nodes is the canonical label selector of the nodes that may have the addresses; empty
	// selects all.
	Nodes      string `json:"nodes,omitempty"`
	MaxPerNode int    `json:"maxPerNode,omitempty"` // addresses; 0: no limit

	// PortsPerBlock is how many ports of each address are in a block of the pool. Block i of
	// an address has those from FirstPort + i*PortsPerBlock on.
	PortsPerBlock int `json:"portsPerBlock,omitempty"`
	// Blocks has the nodes that have blocks, in the order of Index, from the object's status,
	// which the operator writes. Pods of a node leave with an address of the pool by ports of
	// the node's blocks only.
	Blocks []PortBlock `json:"blocks,omitempty"`
	// Allocations are the addresses that policies have which name the pool and no address, in the
	// order of addresses, from the same status.
	Allocations []PoolAllocation `json:"allocations,omitempty"`

	// Object is what the operator has to know beside that to write the status; nil at an agent,
	// so that a row there changes only with what matters to it.
	Object *PoolObject `json:"object,omitempty"`

	Error  string       `json:"error,omitempty"` // why no node gets an address
	Errors []FieldError `json:"errors,omitempty"`
}

// Contains reports whether an address is one of the pool. Addresses of a pool with an error
// are those without its exclusions, which may be what is wrong.
func (p *EgressIPPool) Contains(a netip.Addr) bool {
	in := func(prefix netip.Prefix) bool { return prefix.Contains(a) }
	if p.Error == "" && slices.ContainsFunc(p.Excluded, in) {
		return false
	}
	return slices.ContainsFunc(p.Prefixes, in) ||
		slices.ContainsFunc(p.Ranges, func(r AddrRange) bool { return r.Contains(a) })
}

// ChangesAddresses reports whether the next version of a pool differs in more than what the
// operator has given to nodes and policies: policies have their addresses by themselves.
func (p *EgressIPPool) ChangesAddresses(next *EgressIPPool) bool {
	return p.Fixed != next.Fixed || !slices.Equal(p.Prefixes, next.Prefixes) ||
		!slices.Equal(p.Ranges, next.Ranges) || !slices.Equal(p.Excluded, next.Excluded) ||
		p.Nodes != next.Nodes || p.MaxPerNode != next.MaxPerNode ||
		!p.Created.Equal(next.Created) || p.Error != next.Error
}

// BlocksOf returns the blocks of a node, that for new connections and that it gives back.
func (p *EgressIPPool) BlocksOf(node string) (open, closed []PortBlock) {
	for _, b := range p.Blocks {
		switch {
		case b.Node != node || !b.Released.IsZero():
		case b.IsOpen():
			open = append(open, b)
		default:
			closed = append(closed, b)
		}
	}
	return open, closed
}

// LacksItems reports whether an item of its addresses does not parse, so that the pool may have
// more than it contains.
func (p *EgressIPPool) LacksItems() bool {
	return slices.ContainsFunc(p.Errors, func(e FieldError) bool {
		return strings.HasPrefix(e.Field, "spec.cidrs") || strings.HasPrefix(e.Field, "spec.ranges")
	})
}

// Before reports whether p wins over o where both have an address: it is older, or of the same
// age and its name sorts first.
func (p *EgressIPPool) Before(o *EgressIPPool) bool {
	if !p.Created.Equal(o.Created) {
		return p.Created.Before(o.Created)
	}
	return p.Name < o.Name
}

// InOrder compares two different objects by which of them wins over the other.
func InOrder[Object interface{ Before(Object) bool }](a, b Object) int {
	if a.Before(b) {
		return -1
	}
	return 1
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPPool) TableHeader() []string {
	return []string{
		"Name", "Addresses", "Excluded", "Fixed", "Nodes", "MaxPerNode",
		"Blocks", "Allocations", "Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (p *EgressIPPool) TableRow() []string {
	return []string{
		p.Name, listColumn(append(stringsOf(p.Prefixes), stringsOf(p.Ranges)...), ", "),
		listColumn(stringsOf(p.Excluded), ", "), trueOrDash(p.Fixed),
		orDash(p.Nodes), strconv.Itoa(p.MaxPerNode),
		fmt.Sprintf("%d/%d", len(p.Blocks), PortBlocks(p.PortsPerBlock)),
		listColumn(stringsOf(p.Allocations), ", "), errorColumn(p.Errors),
	}
}

var (
	egressIPPoolNameIndex = UniqueIndex("name", StringKeys,
		func(p *EgressIPPool) string { return p.Name })

	// EgressIPPoolByName queries a pool by its name.
	EgressIPPoolByName = egressIPPoolNameIndex.Query
)

// NewEgressIPPoolTable creates the table of pools of egress addresses.
var NewEgressIPPoolTable = Declare("egress-ip-pools", egressIPPoolNameIndex)

// EgressIPs says whether egress addresses of pools move between nodes.
type EgressIPs struct{ Enabled bool }
