// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/former"
)

// roster has the members of each class of a role, other than those that no selector
// chooses: the rows that the table has of them when a round begins, for nobody else
// writes it. As an index of the table each would take as much memory as a row.
type roster struct {
	primary statedb.Indexer[*tables.ClassMember]
	classes map[uint32]*former.Rows[*tables.ClassMember]
}

func newRoster(table statedb.Table[*tables.ClassMember]) *roster {
	return &roster{primary: table.PrimaryIndexer(), classes: map[uint32]*former.Rows[*tables.ClassMember]{}}
}

// of yields the members of a class.
func (x *roster) of(class uint32) func(yield func(*tables.ClassMember) bool) {
	if members := x.classes[class]; members != nil {
		return members.All
	}
	return func(func(*tables.ClassMember) bool) {}
}

// any returns a member of a class, nil if there is none. All have one signature.
func (x *roster) any(class uint32) *tables.ClassMember {
	for m := range x.of(class) {
		return m
	}
	return nil
}

// expect makes room for the members of the classes that have none yet.
func (x *roster) expect(order []evaluation) {
	coming := map[uint32]int{}
	for i := range order {
		for _, m := range order[i].wanted {
			if m.Class != 0 && x.classes[m.Class] == nil {
				coming[m.Class]++
			}
		}
	}
	for class, members := range coming {
		x.classes[class] = former.NewRows(x.primary)
		x.classes[class].Reserve(members)
	}
}

// take takes in what came of a key. Rows that say the same stay as they were.
func (x *roster) take(of *evaluation) {
	for _, old := range of.former {
		if members := x.classes[old.Class]; members != nil {
			members.Forget(old)
			if members.Len() == 0 {
				delete(x.classes, old.Class)
			}
		}
	}
	for i, m := range of.wanted {
		for _, old := range of.former {
			if m.Equal(old) {
				m = old
			}
		}
		of.wanted[i] = m
		if m.Class == 0 {
			continue
		}
		if x.classes[m.Class] == nil {
			x.classes[m.Class] = former.NewRows(x.primary)
		}
		x.classes[m.Class].Swap(m)
	}
}
