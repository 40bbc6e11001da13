// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// holdsPods reports whether the programs hold pods of which it is not known yet what
// network policies say of them: if there are network policies.
//
// That begins when it has been tried to attach the programs to the devices of all pods:
// what these send is unmarked until then, and the backstop would drop packets of
// connections that are alive.
func (c *configParams) holdsPods(txn statedb.ReadTxn) bool {
	return tables.HoldsByPolicy(txn, c.Policies, c.Enforcement) &&
		(c.heldBefore(txn) || tables.AllAttached(txn, c.Attachments))
}

// heldBefore reports whether the programs hold pods already, or are about to: by this
// agent's row, or by what an earlier agent wrote.
func (c *configParams) heldBefore(txn statedb.ReadTxn) bool {
	row, _, found := c.Configs.Get(txn, tables.DatapathConfigByIndex(theConfig))
	if found && row.Flags&bpf.ConfigNetworkPolicies != 0 {
		return true
	}
	entry := tables.ConfigEntryOf(txn, c.Entries)
	return entry != nil && entry.Value.Flags&bpf.ConfigNetworkPolicies != 0
}
