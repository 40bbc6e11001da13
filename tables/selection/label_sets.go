// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// deriveLabelSets interns the labels of all endpoints, by their digest.
func deriveLabelSets(p derive.Params, sets statedb.RWTable[*tables.LabelSet], endpoints statedb.Table[*tables.Endpoint]) error {
	_, err := derive.Register(p, derive.Rule[tables.LabelSetID, *tables.LabelSet]{
		Output: sets,
		Inputs: []derive.Input[tables.LabelSetID]{
			derive.FromIf(endpoints,
				func(old, new *tables.Endpoint) bool { return old.LabelSet.ID != new.LabelSet.ID },
				func(_ statedb.ReadTxn, e *tables.Endpoint, affect func(tables.LabelSetID)) { affect(e.LabelSet.ID) }),
		},
		Existing: func(txn statedb.ReadTxn, id tables.LabelSetID) iter.Seq2[*tables.LabelSet, statedb.Revision] {
			return sets.List(txn, tables.LabelSetByID(id))
		},
		Rows: func(txn statedb.ReadTxn, id tables.LabelSetID) []*tables.LabelSet {
			e, _, found := endpoints.Get(txn, tables.EndpointsByLabelSet(id))
			if !found {
				return nil
			}
			return []*tables.LabelSet{e.LabelSet}
		},
		// The contents are a function of the digest.
		Equal: func(_, _ *tables.LabelSet) bool { return true },
	})
	return err
}
