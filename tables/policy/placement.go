// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Placement says in which subjects the kernel has pods.
type Placement struct {
	cell.In

	Pods       statedb.Table[*tables.Pod]
	PodMirrors statedb.Table[*tables.PodMirror]
}

// Outside reports whether the kernel has a pod of a subject in another subject. A pod that the
// kernel does not have delays nothing, as no policy applies to it yet.
func (p *Placement) Outside(txn statedb.ReadTxn, subject uint32) bool {
	for pod := range p.Pods.List(txn, tables.PodsBySubject(subject)) {
		key := tables.MirrorByKey[bpf.PodKey, bpf.PodValue](pod.MapKey())
		m, _, found := p.PodMirrors.Get(txn, key)
		if found && m.Present && m.Value.Subject != subject {
			return true
		}
	}
	return false
}

// Refused says which pod of a subject the kernel refused and why, empty if none.
func (p *Placement) Refused(txn statedb.ReadTxn, subject uint32) string {
	for pod := range p.Pods.List(txn, tables.PodsBySubject(subject)) {
		if IsRefused(pod.Status) {
			return fmt.Sprintf("%s: %s", pod.Addr, pod.Status.GetError())
		}
	}
	return ""
}

// Has reports whether the kernel has a pod in a subject.
func (p *Placement) Has(txn statedb.ReadTxn, subject uint32) bool {
	_, _, has := p.PodMirrors.Get(txn, tables.MirrorsTo[bpf.PodKey, bpf.PodValue](subject))
	return has
}

// MovesPod reports whether a change of a pod matters to a Placement.
func MovesPod(old, new *tables.Pod) bool {
	return old.Subject != new.Subject || IsRefused(old.Status) != IsRefused(new.Status)
}

// MovesPodMirror reports whether a change of what the kernel has matters to a Placement.
func MovesPodMirror(old, new *tables.PodMirror) bool {
	return old.Present != new.Present || old.Value.Subject != new.Value.Subject ||
		old.Busy != new.Busy || old.Writing.Subject != new.Writing.Subject
}

// IsRefused reports whether the kernel refused what is desired.
func IsRefused(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindError }

// InKernel reports whether the kernel has a value under a key, and no write is under way.
func InKernel[K, V tables.MapPart](
	txn statedb.ReadTxn, mirrors statedb.Table[*tables.Mirror[K, V]], key K, value V,
) bool {
	m, _, found := mirrors.Get(txn, tables.MirrorByKey[K, V](key))
	return found && m.Present && !m.Busy && m.Value == value
}
