// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

const (
	// takeWithin is how long this node votes for one that does not take an address before it tries
	// another one: longer than it takes to ask whether others use hundreds of new addresses.
	takeWithin = uint64(15 * time.Second)

	// avoidFor is for how long it avoids that node then. After that it votes for it again if no other
	// node is suited.
	avoidFor = 5 * time.Minute
)

// untaken finds out which nodes do not take addresses that this one votes for: their agents may
// take no votes, or another host may use the address there. While any node has the address, none is
// blamed.
type untaken struct {
	params
	since map[netip.Addr]voted
}

// voted says for which node this one votes, and since when without any node having the address.
type voted struct {
	node  string
	since uint64
}

func newUntaken(p params) *untaken { return &untaken{params: p, since: map[netip.Addr]voted{}} }

// follow takes in how this node votes.
func (u *untaken) follow(votes []*tables.EgressIPVote, now uint64) error {
	txn := u.DB.ReadTxn()
	used := map[netip.Addr]bool{}
	var untaken []*tables.EgressIPUntaken
	for _, vote := range votes {
		used[vote.Addr] = true
		_, _, owned := u.Owners.Get(txn, tables.EgressIPOwnerByAddr(vote.Addr))
		former, found := u.since[vote.Addr]
		if owned || vote.Wait != "" || vote.Node == "" || !found || former.node != vote.Node {
			u.since[vote.Addr] = voted{vote.Node, now}
			continue
		}
		if now-former.since >= takeWithin {
			u.Log.Warn("A node does not take an egress address: another one is tried",
				"address", vote.Addr, "node", vote.Node)
			untaken = append(untaken, &tables.EgressIPUntaken{
				Addr: vote.Addr, Node: vote.Node, Since: time.Now(),
			})
			u.since[vote.Addr] = voted{vote.Node, now}
		}
	}
	for addr := range u.since {
		if !used[addr] {
			delete(u.since, addr)
		}
	}
	for row := range u.Untaken.All(txn) {
		isAgain := slices.ContainsFunc(untaken, func(o *tables.EgressIPUntaken) bool {
			return o.Addr == row.Addr && o.Node == row.Node
		})
		ip, _, found := u.IPs.Get(txn, tables.EgressIPByAddr(row.Addr))
		if !used[row.Addr] || isAgain || found && ip.Owner == row.Node {
			continue
		}
		if !row.Past && time.Since(row.Since) >= avoidFor {
			row = &tables.EgressIPUntaken{
				Addr: row.Addr, Node: row.Node, Since: row.Since, Past: true,
			}
		}
		untaken = append(untaken, row)
	}
	by := func(row *tables.EgressIPUntaken) statedb.Query[*tables.EgressIPUntaken] {
		return tables.EgressIPUntakenBy(row.Addr, row.Node)
	}
	equal := func(a, b *tables.EgressIPUntaken) bool { return *a == *b }
	return setRows(u.DB, u.Untaken, by, equal, untaken)
}
