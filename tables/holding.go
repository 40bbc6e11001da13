// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// HoldsByPolicy reports whether the programs are to hold pods of which it is not known
// yet what network policies say of them: if policies are enforced and there are some.
func HoldsByPolicy(
	txn statedb.ReadTxn, policies statedb.Table[*NetworkPolicy], mode Enforcement,
) bool {
	return mode == EnforcementAlways || mode != EnforcementNever && policies.NumObjects(txn) > 0
}

// Holding has the tables that say whether the programs, as they are now, hold pods.
type Holding struct {
	cell.In

	DB            *statedb.DB
	Slots         statedb.Table[*Slot]
	Attachments   statedb.Table[*Attachment]
	ConfigEntries statedb.Table[*ConfigMirror]
	Policies      statedb.Table[*NetworkPolicy]
	Enforcement   Enforcement
}

// ConfigEntryOf returns what the kernel has of the configuration, nil if nothing.
func ConfigEntryOf(txn statedb.ReadTxn, entries statedb.Table[*ConfigMirror]) *ConfigMirror {
	entry, _, _ := entries.Get(txn, MirrorByKey[bpf.ConfigKey, bpf.ConfigValue](bpf.ConfigKey{}))
	return entry
}

// ConfigHolds reports whether the kernel's configuration has the programs hold pods, if
// they are to.
func ConfigHolds(
	txn statedb.ReadTxn, entries statedb.Table[*ConfigMirror],
	policies statedb.Table[*NetworkPolicy], mode Enforcement,
) bool {
	entry := ConfigEntryOf(txn, entries)
	return entry != nil &&
		(entry.Value.Flags&bpf.ConfigNetworkPolicies != 0 || !HoldsByPolicy(txn, policies, mode))
}

// Await returns when pods that start are held until they are known: what this agent has
// written is in force, it has been tried to attach all programs, and the configuration says
// so. It reports false if the context ends before.
func (h *Holding) Await(ctx context.Context) bool {
	if !AwaitInitialized(ctx, h.DB, h.Slots) {
		return false
	}
	for ctx.Err() == nil {
		txn, watch := h.DB.ReadTxn(), statedb.NewWatchSet()
		_, attachments := h.Attachments.AllWatch(txn)
		_, entries := h.ConfigEntries.AllWatch(txn)
		_, policies := h.Policies.AllWatch(txn)
		if AllAttached(txn, h.Attachments) &&
			ConfigHolds(txn, h.ConfigEntries, h.Policies, h.Enforcement) {
			return true
		}
		watch.Add(attachments, entries, policies)
		_, _ = watch.Wait(ctx, 0)
	}
	return false
}
