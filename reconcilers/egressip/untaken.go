// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-net/sluice/tables"
)

const (
	// takeWithin is how long this node votes for one that does not take an address before it tries
	// another one: longer than it takes to ask whether others use hundreds of new addresses.
	takeWithin = uint64(15 * time.Second)

	// avoidFor is for how long it prefers others then.
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
	if len(untaken) == 0 && u.Untaken.NumObjects(txn) == 0 {
		return nil
	}
	return u.write(untaken, used)
}

// write adds rows, and removes those that are old or of addresses that are not used any more.
func (u *untaken) write(added []*tables.EgressIPUntaken, used map[netip.Addr]bool) error {
	wtxn := u.DB.WriteTxn(u.Untaken)
	defer wtxn.Abort()
	changed := len(added) > 0
	for row := range u.Untaken.All(wtxn) {
		if used[row.Addr] && time.Since(row.Since) < avoidFor {
			continue
		}
		changed = true
		if _, _, err := u.Untaken.Delete(wtxn, row); err != nil {
			return fmt.Errorf("delete that %s has not taken %s: %w", row.Node, row.Addr, err)
		}
	}
	for _, row := range added {
		u.Log.Warn("A node does not take an egress address: another one is tried",
			"address", row.Addr, "node", row.Node)
		if _, _, err := u.Untaken.Insert(wtxn, row); err != nil {
			return fmt.Errorf("write that %s has not taken %s: %w", row.Node, row.Addr, err)
		}
	}
	if changed {
		wtxn.Commit()
	}
	return nil
}
