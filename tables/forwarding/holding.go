// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// holding tells whether the programs hold pods of which it is not known yet what network
// policies say of them: if there are network policies.
//
// Where no agent has run before, that begins when the programs have been attached to the
// devices of all pods: what these send is unmarked until then, and the backstop would
// drop what is of connections that are alive.
type holding struct {
	*configParams
	attached bool
}

// waits reports whether the programs are still to be attached.
func (h *holding) waits(statedb.ReadTxn) bool { return !h.attached }

func (h *holding) holds(txn statedb.ReadTxn) bool {
	h.attached = h.attached || h.heldBefore(txn) || tables.AllAttached(txn, h.Attachments)
	return h.attached && tables.HoldsByPolicy(txn, h.Policies, h.Enforcement)
}

// heldBefore reports whether an earlier agent had the programs hold pods.
func (h *holding) heldBefore(txn statedb.ReadTxn) bool {
	entry := tables.ConfigEntryOf(txn, h.Entries)
	return entry != nil && entry.Value.Flags&bpf.ConfigNetworkPolicies != 0
}
