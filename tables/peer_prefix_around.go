// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/statedb"
)

// PeerPrefixAround returns the longest prefix that contains a prefix or is equal to it, nil if
// there is none.
//
// This is for want of a function of StateDB: see docs/statedb.md.
func PeerPrefixAround(
	txn statedb.ReadTxn, table statedb.Table[*PeerPrefix], prefix netip.Prefix,
) *PeerPrefix {
	if prefix.IsSingleIP() {
		p, _, found := table.Get(txn, peerPrefixLongest.QueryPrefix(prefix))
		if found && p.Prefix.Addr().Is4() == prefix.Addr().Is4() {
			return p
		}
		return nil
	}
	for bits := prefix.Bits(); bits >= 0; bits-- {
		around := netip.PrefixFrom(prefix.Addr(), bits).Masked()
		if p, _, found := table.Get(txn, PeerPrefixByPrefix(around)); found {
			return p
		}
	}
	return nil
}
