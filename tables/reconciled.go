// SPDX-License-Identifier: Apache-2.0

package tables

import "github.com/cilium/statedb/reconciler"

// Reconciled is embedded by rows that a reconciler writes to the kernel, or elsewhere: the
// status says whether it has.
type Reconciled struct {
	Status reconciler.Status `json:"status"`
}

// Pending is the status of a row that is new, or whose value has changed.
func Pending() Reconciled { return Reconciled{reconciler.StatusPending()} }

// Done is the status of a row whose value is written.
func Done() Reconciled { return Reconciled{reconciler.StatusDone()} }

// GetStatus returns the reconciliation status.
func (r *Reconciled) GetStatus() reconciler.Status { return r.Status }

func (r *Reconciled) setStatus(status reconciler.Status) { r.Status = status }

// ReconciledRow is a pointer to a row that embeds [Reconciled].
type ReconciledRow[R any] interface {
	*R
	GetStatus() reconciler.Status
	setStatus(reconciler.Status)
}

// Clone returns a shallow copy of a row.
func Clone[R any](row *R) *R { c := *row; return &c }

// WithStatus returns a copy of a row with another status.
func WithStatus[R any, Row ReconciledRow[R]](row Row, status reconciler.Status) Row {
	c := Row(Clone((*R)(row)))
	c.setStatus(status)
	return c
}

// sameButStatus reports whether two rows say the same, whatever their status.
func sameButStatus[R comparable, Row ReconciledRow[R]](a, b Row) bool {
	return *WithStatus(a, b.GetStatus()) == *b
}
