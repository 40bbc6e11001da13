// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// server stands for the API server: it keeps what is written to it, and when.
type server struct {
	dynamic.Interface
	dynamic.NamespaceableResourceInterface
	mu     sync.Mutex
	writes []write
	fails  error
}

type write struct {
	at     time.Time
	report struct {
		Metadata metav1.ObjectMeta
		Status   tables.ReportContents
	}
}

func (s *server) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return s
}

func (s *server) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		s.writes = append(s.writes, write{at: time.Now()})
		return nil, s.fails
	}
	w := write{at: time.Now()}
	if err := json.Unmarshal(data, &w.report); err != nil {
		return nil, err
	}
	s.writes = append(s.writes, w)
	return nil, nil
}

// noPorts are no rows of egress-port-demand.
func noPorts(func(*tables.EgressPortDemand, statedb.Revision) bool) {}

// world is a reporter and what it reads and writes.
type world struct {
	*testing.T
	*reporter
	server *server
	nodes  statedb.RWTable[*tables.Node]
	taken  statedb.RWTable[*tables.EgressVotersTaken]
	ports  statedb.RWTable[*tables.EgressPortDemand]
}

// in runs a test with a reporter, in a time of its own.
func in(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		db := statedb.New()
		reports, err := tables.NewPolicyReportTable(db)
		require.NoError(t, err)
		nodes, err := tables.NewNodeTable(db)
		require.NoError(t, err)
		taken, err := tables.NewEgressVotersTakenTable(db)
		require.NoError(t, err)
		ports, err := tables.NewEgressPortDemandTable(db)
		require.NoError(t, err)
		w := &world{T: t, server: &server{}, nodes: nodes, taken: taken, ports: ports}
		w.reporter, err = newReporter(params{
			DB: db, Client: w.server, Version: "v1", Reports: tables.NewDesired(reports),
			Nodes: nodes, Ports: ports, LocalNode: tables.LocalNode{Name: "node-1"},
			Voters: taken,
		}, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "writes"}, []string{"outcome"}))
		require.NoError(t, err)
		w.node("node-1", "uid-1")

		_, health := cell.NewSimpleHealth()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.run(ctx, health.NewScope("test")) }()
		defer func() { stop(); require.NoError(t, <-ended) }()
		test(w)
	})
}

// written returns what was written so far.
func (w *world) written() []write {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return slices.Clone(w.server.writes)
}

// fail has writes fail from now on, or no more.
func (w *world) fail(err error) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.fails = err
}

func (w *world) node(name, uid string) {
	wtxn := w.DB.WriteTxn(w.nodes)
	defer wtxn.Abort()
	_, _, err := w.nodes.Insert(wtxn, &tables.Node{Name: name, UID: uid})
	require.NoError(w, err)
	wtxn.Commit()
}

func (w *world) tell(name string, programmed int) {
	wtxn := w.DB.WriteTxn(w.Reports)
	defer wtxn.Abort()
	_, _, err := w.Reports.Insert(wtxn, &tables.PolicyReport{
		ReportedPolicy: tables.ReportedPolicy{Policy: tables.EgressPolicyID(name), Wanted: 10, Programmed: programmed}, Reconciled: tables.Pending(),
	})
	require.NoError(w, err)
	wtxn.Commit()
}

func (w *world) kind(name string) reconciler.StatusKind {
	row, _, found := w.Reports.Get(w.DB.ReadTxn(), tables.PolicyReportByPolicy(tables.EgressPolicyID(name)))
	require.True(w, found)
	return row.Status.Kind
}

// However much happens, a report is written every 5 s at most; and at rest none is.
func TestReportsAreRare(t *testing.T) {
	in(t, func(w *world) {
		time.Sleep(time.Second)
		require.Len(w, w.written(), 1, "that there is nothing to tell is told too")
		require.Equal(w, "0/0", w.written()[0].report.Status.Summary.Egress)
		require.EqualValues(w, "uid-1", w.written()[0].report.Metadata.OwnerReferences[0].UID)

		for i := range 1000 { // 10 s
			w.tell("web", i%11)
			time.Sleep(10 * time.Millisecond)
		}
		w.tell("web", 10)
		time.Sleep(time.Minute)
		require.LessOrEqual(w, len(w.written()), 4)
		last := w.written()[len(w.written())-1].report.Status
		require.Equal(w, "1/1", last.Summary.Egress)
		require.Equal(w, reconciler.StatusKindDone, w.kind("web"))
		for i := 1; i < len(w.written()); i++ {
			require.GreaterOrEqual(w, w.written()[i].at.Sub(w.written()[i-1].at), 5*time.Second-time.Millisecond)
		}

		count := len(w.written())
		time.Sleep(50 * time.Minute)
		require.Len(w, w.written(), count, "none at rest")

		// What is on its way and back is not told.
		w.tell("web", 0)
		time.Sleep(100 * time.Millisecond)
		w.tell("web", 10)
		time.Sleep(50 * time.Minute)
		require.Len(w, w.written(), count)
		require.Equal(w, reconciler.StatusKindDone, w.kind("web"))

		// With another Node of its name the object is gone, and has another owner.
		w.node("node-1", "uid-2")
		time.Sleep(50 * time.Minute)
		require.Len(w, w.written(), count+1)
		require.EqualValues(w, "uid-2", w.written()[count].report.Metadata.OwnerReferences[0].UID)
	})
}

// How many ports are used is not written: only how many blocks the node needs for that.
func TestPortsAreReported(t *testing.T) {
	in(t, func(w *world) {
		needs := func(used, blocks int, drained ...tables.DrainedBlock) {
			tablestest.Insert(w.T, w.DB, w.ports, &tables.EgressPortDemand{Used: used,
				PoolPorts: tables.PoolPorts{Pool: "p", Blocks: blocks, Drained: drained}})
			time.Sleep(10 * time.Second)
		}
		needs(1, 1)
		count := len(w.written())
		needs(2, 1)
		needs(100, 1)
		require.Len(w, w.written(), count)
		closed := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
		needs(200, 2, tables.DrainedBlock{Index: 7, Closed: closed})
		require.Len(w, w.written(), count+1)
		require.Equal(w, []tables.PoolPorts{{Pool: "p", Blocks: 2, Drained: []tables.DrainedBlock{
			{Index: 7, Closed: closed},
		}}}, w.written()[count].report.Status.EgressPorts)
	})
}

// A report that was deleted is there again within an hour or so.
func TestReportsAreRepeated(t *testing.T) {
	in(t, func(w *world) {
		time.Sleep(24 * time.Hour)
		require.InDelta(w, 24, len(w.written()), 2)
	})
}

// A Node that goes and comes again is not waited for with retries.
func TestNodeComesAgain(t *testing.T) {
	in(t, func(w *world) {
		time.Sleep(time.Minute)
		count := len(w.written())
		wtxn := w.DB.WriteTxn(w.nodes)
		_, _, err := w.nodes.Delete(wtxn, &tables.Node{Name: "node-1"})
		require.NoError(w, err)
		wtxn.Commit()
		time.Sleep(6 * time.Hour)
		require.Len(w, w.written(), count)
		w.node("node-1", "uid-2")
		time.Sleep(2 * time.Second)
		require.Len(w, w.written(), count+1)
	})
}

// All nodes of a large cluster write 50 reports a second.
func TestReportsOfManyNodes(t *testing.T) {
	in(t, func(w *world) {
		for i := range 4999 {
			w.node(fmt.Sprintf("other-%d", i), "uid")
		}
		for i := range 3600 {
			w.tell("web", i%11)
			time.Sleep(time.Second)
		}
		require.InDelta(w, 3600/100, len(w.written()), 2)
	})
}

// A right that is missing is asked for every few minutes, and health says so.
func TestRefused(t *testing.T) {
	for name, err := range map[string]error{
		"no right": apierrors.NewForbidden(Resource.GroupResource(), "node-1", errors.New("no")),
		"no CRD":   apierrors.NewNotFound(Resource.GroupResource(), "node-1"),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(w *world) {
				w.fail(err)
				w.tell("web", 10)
				time.Sleep(time.Hour)
				require.InDelta(w, 15, len(w.written()), 10)
				require.Equal(w, reconciler.StatusKindError, w.kind("web"))
				w.fail(nil)
				time.Sleep(10 * time.Minute)
				require.Equal(w, reconciler.StatusKindDone, w.kind("web"))
			})
		})
	}
}

// An API server that has just started refuses what it accepts a moment later.
func TestRefusedForAMoment(t *testing.T) {
	in(t, func(w *world) {
		w.fail(apierrors.NewForbidden(Resource.GroupResource(), "node-1", errors.New("no")))
		w.tell("web", 10)
		time.Sleep(15 * time.Second)
		require.Equal(w, reconciler.StatusKindError, w.kind("web"))
		w.fail(nil)
		time.Sleep(30 * time.Second)
		require.Equal(w, reconciler.StatusKindDone, w.kind("web"))
	})
}

// Whatever the policies, a report is below 1 MiB, and what is wrong is in it.
func TestReportIsBounded(t *testing.T) {
	db := statedb.New()
	table, err := tables.NewPolicyReportTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	long := strings.Repeat("long ", 1000)
	for i := range 5000 {
		row := &tables.PolicyReport{ReportedPolicy: tables.ReportedPolicy{
			Policy: tables.EgressPolicyID(fmt.Sprintf("%04d-%s", i, strings.Repeat("x", 248))), UID: strings.Repeat("u", 36),
			Generation: 1 << 60, Wanted: 1 << 30, Programmed: 1 << 30, LosesTo: []string{long, long, long, long, long, long}, GatewayError: long,
		}}
		for range 64 {
			row.EgressIPs = append(row.EgressIPs, netip.MustParseAddr("2001:db8:1234:5678:9abc:def0:1234:5678"))
		}
		if i == 4999 {
			row.Failed, row.Error = 1, long
		}
		_, _, err := table.Insert(wtxn, row)
		require.NoError(t, err)
		row = tables.Clone(row)
		row.Policy = tables.PolicyID{Kind: tables.PolicyCiliumClusterwide, Name: row.Policy.Name}
		_, _, err = table.Insert(wtxn, row)
		require.NoError(t, err)
	}
	wtxn.Commit()
	c := compose("v1", table.All(db.ReadTxn()), noPorts)
	require.Len(t, c.Policies, maxEgress+maxNetwork)
	require.Equal(t, 10000-maxEgress-maxNetwork, c.Omitted)
	require.Equal(t, 2, c.Summary.Failed)
	require.Equal(t, 5000, c.Summary.Leaving)
	worst := c.Policy(tables.EgressPolicyID("4999-" + strings.Repeat("x", 248)))
	require.NotNil(t, worst)
	require.LessOrEqual(t, len(worst.Error), maxText)
	require.Less(t, len(manifest(&tables.Node{Name: "node-1", UID: "uid"}, c)), 800<<10)
}

// Failing policies of one namespace leave room for what others have to report.
func TestReportsOfNamespacesInTurn(t *testing.T) {
	db := statedb.New()
	table, err := tables.NewPolicyReportTable(db)
	require.NoError(t, err)
	failing := func(namespace, name string) tables.PolicyID {
		id := tables.PolicyID{
			Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: namespace, Name: name},
		}
		wtxn := db.WriteTxn(table)
		_, _, err := table.Insert(wtxn, &tables.PolicyReport{
			ReportedPolicy: tables.ReportedPolicy{Policy: id, Failed: 1, Error: "TooLarge"},
		})
		require.NoError(t, err)
		wtxn.Commit()
		return id
	}
	for i := range 10 * maxNetwork {
		failing("a-tenant", fmt.Sprint(i))
	}
	other := failing("shop", "web")
	c := compose("v1", table.All(db.ReadTxn()), noPorts)
	require.Len(t, c.Policies, maxNetwork)
	require.NotNil(t, c.Policy(other))
}
