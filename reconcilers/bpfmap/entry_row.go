// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// EntryRow is a row that stands for one entry of a map.
type EntryRow[R any, K, V tables.MapPart] interface {
	tables.ReconciledRow[R]
	MapKey() K
	MapValue() V
}

// ConfigOf returns the configuration of a map whose desired rows stand for one
// entry each.
func ConfigOf[R any, Row EntryRow[R, K, V], K, V tables.MapPart](
	m bpf.Map[K, V], desired tables.Desired[Row], mirror statedb.RWTable[*tables.MapEntry[K, V]], plan Plan[K, V],
) Config[Row, K, V] {
	return Config[Row, K, V]{
		Map:        m,
		Desired:    desired.RWTable,
		Entries:    mirror,
		MapKey:     Row.MapKey,
		MapValue:   Row.MapValue,
		WithStatus: tables.WithStatus[R, Row],
		GetStatus:  Row.GetStatus,
		Plan:       plan,
	}
}

// PlanPrefixUnsqueezed is [PlanPrefix], but never deletes an entry to make room
// for what replaces it: traffic would be decided by a shorter prefix meanwhile,
// or leave with its own source. Better that the map stays as it is, and the rows
// say that it is full.
func PlanPrefixUnsqueezed[K, V tables.MapPart]() Plan[K, V] {
	plan := PlanPrefix[K, V]()
	plan.Squeezable = nil
	return plan
}
