// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// keyOf returns the key of the member that a prefix belongs to which is in some class,
// and notes whether it is stale: an address or prefix that nobody has any more, of which
// the kernel has an entry still, or the ipcache the row of who had it. It belongs to what
// is around it, which may change class or be divided before it has gone; but nothing leads
// from there to it, as there is no index by prefix of what the kernel has, nor of pods.
func (s *policyScope) keyOf(txn statedb.ReadTxn, prefix netip.Prefix) tables.MemberKey {
	key := s.place.key(txn, prefix)
	if s.place.isStale(txn, prefix, key) {
		s.stale[prefix] = struct{}{}
	} else {
		delete(s.stale, prefix)
	}
	return key
}
