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

// Reference names something that has to be complete in the kernel before a write. Number or
// Prefix say which, as To has it.
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

// Dependency is a kind of things that entries refer to. One is complete if all conditions
// are met.
type Dependency struct {
	name       string
	conditions []Condition
	outside    bool
}

// NewDependency returns a dependency. Statuses say "waiting for", the name, and which.
func NewDependency(name string, conditions ...Condition) *Dependency {
	return &Dependency{name: name, conditions: conditions}
}

// Outside says that the dependency is on something that may come only after everything else
// is written, such as a program at a device: see [Control.Unwritten].
func (d *Dependency) Outside() *Dependency {
	d.outside = true
	return d
}

// On is a reference to a numbered object.
func (d *Dependency) On(number uint32) Reference { return Reference{To: d, Number: number} }

// OnPrefix is a reference to a prefix.
func (d *Dependency) OnPrefix(p netip.Prefix) Reference { return Reference{To: d, Prefix: p} }

// Condition is answered from a snapshot of tables.
type Condition struct {
	// Look begins a look at a snapshot. The function says what is missing of what is
	// referred to, nothing if the condition is met. It reads no clock.
	Look func(txn statedb.ReadTxn) func(Reference) (missing string)

	Tables []Watched // all that it reads
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

// Exists is met if the table has a row of the number.
func Exists[R any](table statedb.Table[R], byNumber func(uint32) statedb.Query[R]) Condition {
	return Condition{
		Tables: []Watched{Watch(table)},
		Look: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				if _, _, found := table.Get(txn, byNumber(r.Number)); !found {
					return "it is not in " + table.Name()
				}
				return ""
			}
		},
	}
}

// IsDone is met if the table has a row of the number, and the kernel has it.
func IsDone[R interface {
	GetStatus() reconciler.Status
}](table statedb.Table[R], byNumber func(uint32) statedb.Query[R]) Condition {
	return Condition{
		Tables: []Watched{Watch(table)},
		Look: func(txn statedb.ReadTxn) func(Reference) string {
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

// NonePending is met if an index of what the kernel does not have yet finds nothing of the
// number.
func NonePending[R any](table statedb.Table[R], pending func(uint32) statedb.Query[R]) Condition {
	return Condition{
		Tables: []Watched{Watch(table)},
		Look: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				for range table.List(txn, pending(r.Number)) {
					return table.Name()
				}
				return ""
			}
		},
	}
}

// Attached is met if programs are attached to the device whose interface index the number
// is.
func Attached(
	attachments statedb.Table[*tables.Attachment], programs ...bpf.Program,
) Condition {
	return Condition{
		Tables: []Watched{Watch(attachments)},
		Look: func(txn statedb.ReadTxn) func(Reference) string {
			return func(r Reference) string {
				return tables.Unattached(txn, attachments, r.Number, programs...)
			}
		},
	}
}

// look answers references from one snapshot.
type look struct {
	txn     statedb.ReadTxn
	begun   map[*Dependency][]func(Reference) string
	answers map[Reference]string
}

func newLook(txn statedb.ReadTxn) *look {
	return &look{txn, map[*Dependency][]func(Reference) string{}, map[Reference]string{}}
}

// missing says what is not complete of what is referred to, empty if nothing.
func (l *look) missing(r Reference) string {
	answer, ok := l.answers[r]
	if ok {
		return answer
	}
	begun, ok := l.begun[r.To]
	if !ok {
		for _, c := range r.To.conditions {
			begun = append(begun, c.Look(l.txn))
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

// first returns the first reference that is not complete, and what is missing.
func (l *look) first(references []Reference) (r Reference, missing string) {
	for _, r := range references {
		if missing := l.missing(r); missing != "" {
			return r, missing
		}
	}
	return r, ""
}
