// SPDX-License-Identifier: Apache-2.0

package derive

import "github.com/cilium/statedb"

// Unrest returns the name of a derived table for which its rule has something to take in
// of a snapshot, or is just doing so; empty if there is none: all tables are as they will
// be until an input changes. Rules that cannot begin, as inputs are not initialized, are at
// rest.
func (m *Metrics) Unrest(txn statedb.ReadTxn) (table string) {
	for _, s := range m.All() {
		if s.atRest != nil && !s.atRest(txn) {
			return s.table
		}
	}
	return ""
}

// atRest reports whether the rule has nothing to do.
func (r *runner[Key, Out]) atRest(txn statedb.ReadTxn) bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.initialized != nil {
		return !r.mayBegin(txn)
	}
	for i, in := range r.Inputs {
		switch {
		case in.overlooks():
			if !in.sleeps(txn) && isClosed(r.watches[i]) {
				return false
			}
		case in.behind(txn):
			return false
		}
	}
	return true
}

// mayBegin reports whether all tables that the rule waits for are initialized.
func (r *runner[Key, Out]) mayBegin(txn statedb.ReadTxn) bool {
	for _, t := range r.awaited() {
		if initialized, _ := t.Initialized(txn); !initialized {
			return false
		}
	}
	return true
}

// isClosed reports whether a channel is closed; one that is nil is not.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
