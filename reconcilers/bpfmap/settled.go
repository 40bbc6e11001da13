// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// Unsettled says of which map something is still to be written that a snapshot desires, and
// what; empty if of none. An entry that the map has no room for is settled, as far as this
// goes, and so is one that waits for another: while nothing else changes, it does so in vain.
func (c *Control) Unsettled(txn statedb.ReadTxn) (what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.reports)) {
		if what := c.reports[name].unsettled(txn); what != "" {
			return name + ": " + what
		}
	}
	return ""
}

// unsettled says what is still to be written to the map, empty if nothing.
func (l *loop[Row, K, V]) unsettled(txn statedb.ReadTxn) string {
	if initialized, _ := l.Desired.Initialized(txn); !initialized {
		return l.Desired.Name() + " is not complete"
	}
	if !l.taken.TryLock() {
		return "being written"
	}
	defer l.taken.Unlock()
	switch {
	case !l.begun, l.revision != l.Desired.Revision(txn),
		len(l.items.timers) > 0 && !l.items.timers[0].due.After(time.Now()),
		l.Opener != nil && len(l.items.waiting) > 0 && l.Opener.behind(txn):
		return "about to be written"
	}
	for _, it := range l.items.byKey {
		if it.state == stateFailed && !errors.Is(it.err, bpf.ErrMapFull) {
			return fmt.Sprintf("%v: %s", it.key, l.errorText(it.err))
		}
	}
	return ""
}
