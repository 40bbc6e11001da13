// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/testdata/await"
)

// readinessWorld is what a test writes, and the readiness of classes derived of it.
type readinessWorld struct {
	cell.In

	DB        *statedb.DB
	Readiness statedb.Table[*tables.ClassReadiness]
	Classes   statedb.RWTable[*tables.Class]
	Members   statedb.RWTable[*tables.ClassMember]
	Endpoints statedb.RWTable[*tables.Endpoint]
	Sources   statedb.RWTable[*tables.SourceEntry]
}

// A gate may see of a class of network policies that it is being left while no round
// of class-readiness does. What waits for it is looked at again all the same.
func TestReadinessFollowsEachRowOfAClass(t *testing.T) {
	db := statedb.New()
	members, err := tables.NewClassMemberTable(db)
	require.NoError(t, err)
	classes, err := tables.NewClassTable(db)
	require.NoError(t, err)
	entries, err := tables.NewClassEntryTable(db)
	require.NoError(t, err)
	r := &readinessParams{Members: members, Classes: classes, ClassEntries: entries}
	key := bpf.ClassKey{Role: bpf.RolePeer, Number: 1}
	readiness := func(leaving ...tables.SelectorID) tables.ClassReadiness {
		wtxn := db.WriteTxn(members, classes)
		defer wtxn.Abort()
		_, _, err := members.Insert(wtxn, &tables.ClassMember{Role: key.Role, OfClass: true, Class: key.Number, Leaving: leaving})
		require.NoError(t, err)
		_, _, err = classes.Insert(wtxn, &tables.Class{ClassKey: key})
		require.NoError(t, err)
		rows := r.rows(wtxn.Commit(), key)
		require.Len(t, rows, 1)
		return *rows[0]
	}
	before := readiness()
	require.True(t, readiness(1).Leaving)
	after := readiness()
	require.False(t, after.Leaving)
	require.NotEqual(t, before, after)
}

// Where those are to go that leave a class is known also when their labels come to
// belong elsewhere while the kernel has none of them where they were to go.
func TestReadinessFollowsWhoLeaves(t *testing.T) {
	var w readinessWorld
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(
			job.Registry.NewGroup, derive.NewMetrics,
			func() tables.LocalNode { return tables.LocalNode{Name: "node"} },
			tables.NewClassReadinessTable, statedb.RWTable[*tables.ClassReadiness].ToTable,
			tables.NewClassTable, statedb.RWTable[*tables.Class].ToTable,
			tables.NewEgressClassTable, statedb.RWTable[*tables.EgressClass].ToTable,
			tables.NewEgressPolicyTable, statedb.RWTable[*tables.EgressPolicy].ToTable,
			tables.NewEgressGroupTable, statedb.RWTable[*tables.EgressGroup].ToTable,
			tables.NewEgressRuleTable, statedb.RWTable[*tables.EgressRule].ToTable,
			tables.NewEgressGatewayTable, statedb.RWTable[*tables.EgressGateway].ToTable,
			tables.NewClassEntryTable, statedb.RWTable[*tables.ClassEntry].ToTable,
			tables.NewEgressEntryTable, statedb.RWTable[*tables.EgressEntry].ToTable,
			tables.NewGatewayEntryTable, statedb.RWTable[*tables.GatewayEntry].ToTable,
			tables.NewSourceEntryTable, statedb.RWTable[*tables.SourceEntry].ToTable,
			tables.NewClassMemberTable, statedb.RWTable[*tables.ClassMember].ToTable,
			tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable,
		),
		cell.Invoke(deriveReadiness),
		cell.Invoke(func(p readinessWorld) { w = p })))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	defer func() { require.NoError(t, h.Stop(log, context.Background())) }()

	set := tables.NewLabelSet("default", "", map[string]string{"app": "a"}, nil)
	belongsTo := func(class uint32) {
		wtxn := w.DB.WriteTxn(w.Members)
		defer wtxn.Commit()
		_, _, err := w.Members.Insert(wtxn, &tables.ClassMember{Role: bpf.RoleEgress, LabelSet: set.ID, Class: class})
		require.NoError(t, err)
	}
	pod := netip.MustParseAddr("10.0.0.1")
	leavingTo := func(class uint32) {
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			r, _, found := w.Readiness.Get(w.DB.ReadTxn(), tables.ClassReadinessByKey(classKey(1)))
			require.True(t, found)
			require.Equal(t, []uint32{class}, r.LeavingTo)
		}, await.Bound, time.Millisecond)
	}
	belongsTo(2)
	wtxn := w.DB.WriteTxn(w.Endpoints, w.Sources, w.Classes)
	_, _, err := w.Classes.Insert(wtxn, &tables.Class{ClassKey: classKey(1)})
	require.NoError(t, err)
	_, _, err = w.Endpoints.Insert(wtxn, &tables.Endpoint{Name: tables.Name{Namespace: "default", Name: "pod"}, Node: "node", Addrs: []netip.Addr{pod}, LabelSet: set})
	require.NoError(t, err)
	_, _, err = w.Sources.Insert(wtxn, &tables.SourceEntry{
		Key: bpf.SourceKey{Addr: bpf.AddressFrom(pod)}, Value: bpf.SourceValue{Class: 1}, Wanted: tables.WantedOther,
	})
	require.NoError(t, err)
	wtxn.Commit()
	leavingTo(2)
	belongsTo(3)
	leavingTo(3)
}
