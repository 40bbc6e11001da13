// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Reference names something that must be complete in the kernel before a write. Number or Prefix
// identifies it, depending on To.
type Reference struct {
	To     *Dependency
	Number uint32
	Prefix netip.Prefix
}

func (r Reference) String() string {
	if r.Prefix.IsValid() {
		return fmt.Sprintf("%s %s", r.To.name, r.Prefix)
	}
	if r.Number == 0 { // there is only one
		return r.To.name
	}
	return fmt.Sprintf("%s %d", r.To.name, r.Number)
}

// Dependency is a kind of object that entries refer to. An object is complete if all conditions are
// met.
type Dependency struct {
	name       string
	conditions []Condition
	outside    bool
}

// NewDependency returns a dependency. Statuses say "waiting for", the name, and which.
func NewDependency(name string, conditions ...Condition) *Dependency {
	return &Dependency{name: name, conditions: conditions}
}

// Outside says that the dependency may be met only after everything else is written, as for a
// program at a device: see [Control.Unwritten].
func (d *Dependency) Outside() *Dependency {
	d.outside = true
	return d
}

// On returns a reference to a numbered object.
func (d *Dependency) On(number uint32) Reference { return Reference{To: d, Number: number} }

// OnPrefix returns a reference to a prefix.
func (d *Dependency) OnPrefix(p netip.Prefix) Reference { return Reference{To: d, Prefix: p} }

// Condition is evaluated on a snapshot of tables.
type Condition struct {
	// Evaluate prepares checks of one snapshot. The function that it returns says what the
	// reference lacks, or returns an empty string if the condition is met. It reads no clock.
	Evaluate func(txn statedb.ReadTxn) func(Reference) (missing string)

	Tables []Watched // all tables that Evaluate reads
}

// Watched is a table that a condition reads.
type Watched func(statedb.ReadTxn) <-chan struct{}

// Watch returns a table of a condition.
func Watch[R any](table statedb.Table[R]) Watched {
	return func(txn statedb.ReadTxn) <-chan struct{} {
		_, watch := table.AllWatch(txn)
		return watch
	}
}

// Exists is met if the table has a row with the number.
func Exists[R any](table statedb.Table[R], byNumber func(uint32) statedb.Query[R]) Condition {
	return Condition{
		Tables: []Watched{Watch(table)},
		Evaluate: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				if _, _, found := table.Get(txn, byNumber(r.Number)); !found {
					return "it is not in " + table.Name()
				}
				return ""
			}
		},
	}
}

// IsDone is met if the table has a row with the number, and the kernel has its value.
func IsDone[R interface {
	GetStatus() reconciler.Status
}](table statedb.Table[R], byNumber func(uint32) statedb.Query[R]) Condition {
	return Condition{
		Tables: []Watched{Watch(table)},
		Evaluate: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				row, _, found := table.Get(txn, byNumber(r.Number))
				if !found || row.GetStatus().Kind != reconciler.StatusKindDone {
					return table.Name()
				}
				return ""
			}
		},
	}
}

// NonePending is met if an index of rows that the kernel does not have yet has none with the
// number.
func NonePending[R any](table statedb.Table[R], pending func(uint32) statedb.Query[R]) Condition {
	return Condition{
		Tables: []Watched{Watch(table)},
		Evaluate: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				for range table.List(txn, pending(r.Number)) {
					return table.Name()
				}
				return ""
			}
		},
	}
}

// Attached is met if programs are attached to the device with the number as interface index.
func Attached(
	attachments statedb.Table[*tables.Attachment], programs ...bpf.Program,
) Condition {
	return Condition{
		Tables: []Watched{Watch(attachments)},
		Evaluate: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				return tables.Unattached(txn, attachments, r.Number, programs...)
			}
		},
	}
}

// gateView evaluates references on one snapshot.
type gateView struct {
	txn     statedb.ReadTxn
	begun   map[*Dependency][]func(Reference) string
	answers map[Reference]string
}

func newGateView(txn statedb.ReadTxn) *gateView {
	return &gateView{txn, map[*Dependency][]func(Reference) string{}, map[Reference]string{}}
}

// missing says what the object of a reference lacks, empty if nothing.
func (l *gateView) missing(r Reference) string {
	answer, ok := l.answers[r]
	if ok {
		return answer
	}
	begun, ok := l.begun[r.To]
	if !ok {
		for _, c := range r.To.conditions {
			begun = append(begun, c.Evaluate(l.txn))
		}
		l.begun[r.To] = begun
	}
	for _, missing := range begun {
		answer = cmp.Or(answer, missing(r))
		if answer != "" {
			break
		}
	}
	l.answers[r] = answer
	return answer
}

// first returns the first reference that is not complete, and what it lacks.
func (l *gateView) first(references []Reference) (r Reference, missing string) {
	for _, r := range references {
		if missing := l.missing(r); missing != "" {
			return r, missing
		}
	}
	return r, ""
}
