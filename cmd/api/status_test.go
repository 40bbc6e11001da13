// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func (f *fixture) status(t *testing.T) (s Status) {
	code, body := f.get("/status")
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, json.Unmarshal([]byte(body), &s), body)
	return s
}

func (f *fixture) complete() {
	wtxn := f.db.WriteTxn(f.fruits)
	f.done(wtxn)
	wtxn.Commit()
}

func TestStatusOfWell(t *testing.T) {
	f := newFixture(t)
	f.started = time.Now().Add(-time.Hour)
	s := f.status(t)
	require.False(t, s.OK)
	require.Equal(t, []string{"not ready: table fruits: waits for orchard"}, s.Problems)
	require.Equal(t, []PendingTable{{"fruits", []string{"orchard"}}}, s.Tables.Uninitialized)

	f.complete()
	s = f.status(t)
	require.True(t, s.OK, s.Problems)
	require.True(t, s.Ready.Ready)
	require.Equal(t, "node-1", s.Node)
	require.GreaterOrEqual(t, s.UptimeSeconds, int64(time.Hour.Seconds()))
	require.LessOrEqual(t, s.UptimeSeconds, int64(time.Since(f.started).Seconds()))
	require.Equal(t, 2, s.Tables.Tables)
	require.Equal(t, 2, s.Tables.Rows)
	require.Empty(t, s.Tables.Uninitialized)
}

func TestStatusProblems(t *testing.T) {
	f := newFixture(t)
	f.complete()
	failed := reconciler.StatusError(errors.New("no such device"))
	f.tables.Attachments = tablestest.Open(t, f.db, tables.NewAttachmentTable,
		&tables.Attachment{IfIndex: 1, Device: "eth0", Program: bpf.ProgramFromPod, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}},
		&tables.Attachment{IfIndex: 2, Device: "eth1", Program: bpf.ProgramFromPod, Reconciled: tables.Reconciled{Status: failed}},
		&tables.Attachment{IfIndex: 3, Device: "eth2", Program: bpf.ProgramFromPod, Reconciled: tables.Pending()},
	)
	f.insertHealth(t, &tables.Health{ID: "bpfmap", Level: cell.StatusDegraded, Message: "map full"})

	s := f.status(t)
	require.False(t, s.OK)
	require.Equal(t, []string{"health: bpfmap: map full", "table attachments: 1 of 3 rows failed: no such device"}, s.Problems)
	require.Equal(t, []RowsStatus{{"attachments", 3, condition.Counts{Pending: 1, Errors: 1}, "no such device"}}, s.Tables.Statuses)
	require.Equal(t, []ProgramStatus{{"from_pod", 1, 1, 1, []string{"eth0"}, "eth1: no such device"}}, s.Programs)
}

func TestStatusOfPolicies(t *testing.T) {
	f := newFixture(t)
	row := func(name string, change func(*tables.EgressPolicyStatus)) *tables.EgressPolicyStatus {
		s := &tables.EgressPolicyStatus{Policy: name, Gateways: []string{"none: x", "node-1 (192.0.2.1)"}, Rules: 2, Programmed: 2}
		change(s)
		return s
	}
	f.tables.Egress = tablestest.Open(t, f.db, tables.NewEgressPolicyStatusTable,
		row("a", func(*tables.EgressPolicyStatus) {}),
		row("b", func(s *tables.EgressPolicyStatus) { s.Programmed = 1 }),
		row("c", func(s *tables.EgressPolicyStatus) { s.Programmed, s.Failed = 1, 1 }),
		row("d", func(s *tables.EgressPolicyStatus) { s.Errors = []string{"spec"} }),
		row("e", func(s *tables.EgressPolicyStatus) { s.Gateways = []string{"none: no node"} }),
		row("f", func(s *tables.EgressPolicyStatus) { s.Conflicts = []string{"it has what g wants"} }),
		row("g", func(s *tables.EgressPolicyStatus) { s.Conflicts, s.LosesTo = []string{"f has it"}, []string{"f"} }),
	)
	f.tables.Leaders = tablestest.Open(t, f.db, tables.NewLeadershipTable, &tables.Leadership{
		Lease: "x/sluice", Holder: "node-1", Leading: true,
	})
	require.Equal(t, []*tables.Leadership{{Lease: "x/sluice", Holder: "node-1", Leading: true}}, f.status(t).Leaders)
	require.Nil(t, f.status(t).Report)
	f.tables.Report = tablestest.Open(t, f.db, tables.NewPolicyReportTable,
		&tables.PolicyReport{
			ReportedPolicy: tables.ReportedPolicy{Policy: tables.EgressPolicyID("a")},
			Reconciled:     tables.Reconciled{Status: reconciler.StatusDone()},
		},
		&tables.PolicyReport{
			ReportedPolicy: tables.ReportedPolicy{Policy: tables.EgressPolicyID("b")},
			Reconciled:     tables.Reconciled{Status: reconciler.StatusError(errors.New("forbidden"))},
		})
	require.Nil(t, f.status(t).Report, "nothing is reported")
	f.tables.Reporting.Enabled = true
	require.Equal(t, &ReportStatus{Policies: 2, Pending: 1, Error: "forbidden"}, f.status(t).Report)
	f.tables.Network = tablestest.Open(t, f.db, tables.NewNetworkPolicyStatusTable,
		&tables.NetworkPolicyStatus{Policy: tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Name: "x"}}, State: tables.PolicyInForce},
	)
	require.Equal(t, PoliciesStatus{
		Egress:  map[tables.EgressState]int{"in force": 2, "pending": 1, "failed": 1, "invalid": 1, "no gateway": 1, "conflicted": 1},
		Network: map[tables.PolicyState]int{tables.PolicyInForce: 1},
	}, f.status(t).Policies)
}

func TestStatusOfCollections(t *testing.T) {
	f := newFixture(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := func(id, pass uint64, set string, expired uint64) *tables.CTGCRun {
		return &tables.CTGCRun{
			ID: id, Pass: pass, Set: set, Reason: "interval", Started: at, Duration: time.Second,
			Scanned: 10, Expired: expired, Translations: 1, NextRun: at.Add(5 * time.Minute),
		}
	}
	f.tables.Runs = tablestest.Open(t, f.db, tables.NewCTGCRunTable,
		run(1, 1, "global", 100), run(2, 2, "global", 3), run(3, 2, "global", 4), run(4, 3, "cluster 1", 0))
	require.Equal(t, []GCStatus{
		{Set: "cluster 1", Reason: "interval", Started: at, Duration: time.Second, Scanned: 10, Removed: 1, NextRun: at.Add(5 * time.Minute), IntervalSeconds: 300},
		{Set: "global", Reason: "interval", Started: at, Duration: 2 * time.Second, Scanned: 20, Removed: 9, NextRun: at.Add(5 * time.Minute), IntervalSeconds: 300},
	}, f.status(t).GC)
}

func TestStatusOfDrops(t *testing.T) {
	f := newFixture(t)
	var rows []*tables.Drop
	for i := range 7 {
		rows = append(rows, &tables.Drop{Reason: fmt.Sprint("reason ", i), Direction: "egress", Count: uint64(i)})
	}
	rows = append(rows,
		&tables.Drop{Pod: "shop/web", Reason: "reason 6", Direction: "egress", Count: 1, Last: time.Unix(1, 0), Packet: "last"},
		&tables.Drop{Pod: "shop/web", Reason: "reason 6", Direction: "ingress", Count: 1})
	f.tables.Drops = tablestest.Open(t, f.db, tables.NewDropTable, rows...)
	s := f.status(t).Drops
	require.EqualValues(t, 23, s.Packets)
	require.Equal(t, 2, s.Others)
	require.Len(t, s.Reasons, shownDrops)
	first := s.Reasons[0]
	require.Equal(t, "reason 6", first.Reason)
	require.EqualValues(t, 8, first.Packets)
	require.Equal(t, 1, first.Pods)
	require.Equal(t, "last", first.Packet)
}

// A summary of a large cluster does not take long.
func BenchmarkStatus_50000_Endpoints(b *testing.B) {
	db := statedb.New()
	table, err := tables.NewIPCacheTable(db)
	require.NoError(b, err)
	health, err := tables.NewHealthTable(db)
	require.NoError(b, err)
	wtxn := db.WriteTxn(table)
	for i := range 50_000 {
		_, _, err := table.Insert(wtxn, &tables.IPCache{
			Prefix: netip.PrefixFrom(
				netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32,
			),
			Reconciled: tables.Done(),
		})
		require.NoError(b, err)
	}
	wtxn.Commit()
	h := &handlers{db: db, health: health}
	for b.Loop() {
		require.NotNil(b, h.summary(time.Now()))
	}
}
