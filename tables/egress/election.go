// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// election finds nodes for addresses that move, one after the other.
type election struct {
	nodes []*tables.Node
	load  map[used]int

	// Of the last address: most have the same selectors as the one before.
	ofPool, ofPolicy string
	matching         []*tables.Node // that these selectors select, nil if there was none
}

// used counts the addresses of a pool that a node has.
type used struct{ pool, node string }

// elect finds the node for an address: of those that are ready, that the pool and the first
// policy select, and that have room, the one with the greatest weight: a hash of
// address and node, so that a node that is lost moves its own addresses only. A node that is being
// drained is elected only if there is no other.
func (e *election) elect(
	row *tables.EgressIP, pool *tables.EgressIPPool, policy *tables.EgressPolicy,
) {
	if pool.Error != "" {
		row.Reason = "pool " + pool.Name + ": " + pool.Error
		return
	}
	if row.Reason = e.match(pool, policy, itemOf(policy, row)); row.Reason != "" {
		return
	}
	addr := row.Addr.String()
	best, full, draining := uint64(0), 0, false
	for _, n := range e.matching {
		if !n.Ready || !n.UnderlayIP().IsValid() {
			continue
		}
		if pool.MaxPerNode > 0 && e.load[used{pool.Name, n.Name}] >= pool.MaxPerNode {
			full++
			continue
		}
		weight := weightOf(addr, n.Name)
		isBetter := weight > best
		if n.Draining != draining {
			isBetter = draining
		}
		if row.Node == "" || isBetter {
			best, draining = weight, n.Draining
			row.Node, row.NodeAddr = n.Name, n.UnderlayIP()
		}
	}
	if row.Node == "" {
		row.Reason = fmt.Sprintf(
			"no node: pool %s and policy %s select %d, none of which is ready, or %d have maxPerNode",
			pool.Name, policy.Name, len(e.matching), full)
		return
	}
	e.load[used{pool.Name, row.Node}]++
}

// itemOf returns the selector of the item by which a policy names the address of a row.
func itemOf(policy *tables.EgressPolicy, row *tables.EgressIP) (nodes string) {
	for _, g := range policy.Gateways {
		if g.Error == "" && g.EgressIP == row.Addr {
			return g.Nodes
		}
	}
	return ""
}

// match finds the nodes that a pool and a policy select. It returns what is wrong, if anything is.
func (e *election) match(
	pool *tables.EgressIPPool, policy *tables.EgressPolicy, nodes string,
) (wrong string) {
	if e.matching != nil && e.ofPool == pool.Nodes && e.ofPolicy == nodes {
		return ""
	}
	ofPool, err := labels.Parse(pool.Nodes)
	if err != nil {
		return "pool " + pool.Name + ": " + err.Error()
	}
	ofPolicy, err := labels.Parse(nodes)
	if err != nil {
		return "policy " + policy.Name + ": " + err.Error()
	}
	e.ofPool, e.ofPolicy, e.matching = pool.Nodes, nodes, []*tables.Node{}
	for _, n := range e.nodes {
		if ofPool.Matches(n.Labels) && ofPolicy.Matches(n.Labels) {
			e.matching = append(e.matching, n)
		}
	}
	return ""
}
