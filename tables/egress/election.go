// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// election finds nodes for addresses that move, one after the other.
type election struct {
	nodes []*tables.Node
	state func(node string) tables.PathState // of the path to it, empty if it is not probed
	load  map[used]int

	// untaken finds the row which says that a node has not taken an address.
	untaken func(addr netip.Addr, node string) (row *tables.EgressIPUntaken, found bool)

	// Of the last address: most have the same selectors as the one before.
	ofPool, ofPolicy string
	matching         []*tables.Node // that these selectors select, nil if there was none
}

// used counts the addresses of a pool that a node has.
type used struct{ pool, node string }

// maxPoolNodes is how many nodes that pool and policy select may have an address: the first, by
// name, that are ready.
const maxPoolNodes = 64

// rank is how well a node is suited for an address, the least is best.
type rank int

const (
	suited     rank = iota
	doubtful        // it has not taken the address long ago
	draining        // it gives its addresses up
	unprobed        // it may have no agent that takes votes
	recovering      // it was lost, and answers again
	untaken         // it has not taken the address
	lost            // for this node
)

func (e *election) rank(addr netip.Addr, n *tables.Node) rank {
	state := e.state(n.Name)
	row, found := e.untaken(addr, n.Name)
	switch {
	case state == tables.PathLost:
		return lost
	case found && !row.Past:
		return untaken
	case state == tables.PathRecovering:
		return recovering
	case state == tables.PathUnprobed:
		return unprobed
	case n.Draining:
		return draining
	case found:
		return doubtful
	}
	return suited
}

// elect finds the node for which this node votes: of those that are ready, that the pool and the
// first policy select, and that have room, one that is suited best, and of these the one with the
// greatest weight: a hash of address and node, so that a node that is lost moves its own addresses
// only. It reports whether the local node may have the address, if others vote for it.
func (e *election) elect(
	row *tables.EgressIP, pool *tables.EgressIPPool, policy *tables.EgressPolicy, local string,
) (mayHave bool) {
	if pool.Error != "" {
		row.Reason = "pool " + pool.Name + ": " + pool.Error
		return false
	}
	if row.Reason = e.match(pool, policy, itemOf(policy, row)); row.Reason != "" {
		return false
	}
	addr := row.Addr.String()
	var best uint64
	var bestRank rank
	full := 0
	for _, n := range e.matching {
		mayHave = mayHave || n.Name == local
		if !n.Ready {
			continue
		}
		if pool.MaxPerNode > 0 && e.load[used{pool.Name, n.Name}] >= pool.MaxPerNode {
			full++
			continue
		}
		weight, rank := weightOf(addr, n.Name), e.rank(row.Addr, n)
		if row.Node == "" || rank < bestRank || rank == bestRank && weight > best {
			best, bestRank = weight, rank
			row.Node, row.NodeAddr = n.Name, n.UnderlayIP()
		}
	}
	if row.Node == "" {
		row.Reason = fmt.Sprintf(
			"no node: pool %s and policy %s select %d, none of which is ready, or %d have maxPerNode",
			pool.Name, policy.Name, len(e.matching), full)
		return mayHave
	}
	e.load[used{pool.Name, row.Node}]++
	return mayHave
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
	e.ofPool, e.ofPolicy = pool.Nodes, nodes
	e.matching = poolNodes(slices.Values(e.nodes), func(n *tables.Node) bool {
		return ofPool.Matches(n.Labels) && ofPolicy.Matches(n.Labels)
	})
	return ""
}

// poolNodes returns the nodes that are selected and may have addresses, in order of name. Those
// that are not ready are limited too.
func poolNodes(nodes iter.Seq[*tables.Node], selects func(*tables.Node) bool) []*tables.Node {
	selected, ready := []*tables.Node{}, 0
	for n := range nodes {
		if ready == maxPoolNodes {
			break
		}
		if !n.UnderlayIP().IsValid() || !selects(n) ||
			!n.Ready && len(selected)-ready >= maxPoolNodes {
			continue
		}
		selected = append(selected, n)
		if n.Ready {
			ready++
		}
	}
	return selected
}
