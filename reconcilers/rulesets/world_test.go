// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has the tables, the maps in memory, and, if it runs, their reconcilers.
type world struct {
	params
	t      testing.TB
	gates  *gates
	memory *bpf.Memory

	attachments    statedb.RWTable[*tables.Attachment]
	rulesets       statedb.RWTable[*tables.Ruleset]
	egressRulesets statedb.RWTable[*tables.EgressRuleset]
	verdictSets    statedb.RWTable[*tables.VerdictSet]
	classes        statedb.RWTable[*tables.Class]
	compiled       statedb.RWTable[*tables.Compiled]
	selectors      statedb.RWTable[*tables.Selector]
	matches        statedb.RWTable[*tables.SelectorMatch]
	peerPrefixes   statedb.RWTable[*tables.PeerPrefix]

	mu                 sync.Mutex
	raised, raisedSoon int
	flushed            map[netip.Addr]int
}

type source struct {
	cell.In

	Attachments    statedb.RWTable[*tables.Attachment]
	Rulesets       statedb.RWTable[*tables.Ruleset]
	EgressRulesets statedb.RWTable[*tables.EgressRuleset]
	VerdictSets    statedb.RWTable[*tables.VerdictSet]
	Classes        statedb.RWTable[*tables.Class]
	Compiled       statedb.RWTable[*tables.Compiled]
	Selectors      statedb.RWTable[*tables.Selector]
	Matches        statedb.RWTable[*tables.SelectorMatch]
	PeerPrefixes   statedb.RWTable[*tables.PeerPrefix]
}

func newWorld(t testing.TB, runs bool) *world {
	w := &world{t: t, memory: bpf.NewMemory(), flushed: map[netip.Addr]int{}}
	opts := hive.DefaultOptions()
	opts.LogThreshold = time.Minute
	opts.ModulePrivateProviders = cell.ModulePrivateProviders{
		func(r job.Registry, h cell.Health, id cell.ModuleID, log *slog.Logger) job.Group {
			return r.NewGroup(h.NewScope(string(id)), job.WithLogger(log))
		},
	}
	h := hive.NewWithOptions(opts,
		statedb.Cell, job.Cell, cell.SimpleHealthCell, mapsync.Cell,
		cell.Provide(
			tables.NewPodTable, tables.NewDesired[*tables.Pod],
			tables.NewIPCacheTable, tables.NewDesired[*tables.IPCache],
			tables.NewFrontendTable, tables.NewDesired[*tables.Frontend], tables.NewFrontendMirrorTable,
			tables.NewSubjectTable, tables.NewDesired[*tables.Subject],
			tables.NewSubjectRouteTable, tables.NewDesired[*tables.SubjectRoute],
			tables.NewMemberTable, tables.NewDesired[*tables.Member],
			tables.NewPolicyEntryTable, tables.NewDesired[*tables.PolicyEntry],
			tables.NewVerdictTable, tables.NewDesired[*tables.Verdict],
			tables.NewEgressRuleTable, tables.NewDesired[*tables.EgressRule],
			tables.NewEgressGatewayTable, tables.NewDesired[*tables.EgressGateway],
			tables.NewPodMirrorTable, tables.NewIPCacheMirrorTable, tables.NewSubjectMirrorTable,
			tables.NewRouteMirrorTable, tables.NewPeerMirrorTable, tables.NewPolicyMirrorTable,
			tables.NewVerdictMirrorTable, tables.NewEgressMirrorTable, tables.NewGatewayMirrorTable,
			tables.NewAttachmentTable, statedb.RWTable[*tables.Attachment].ToTable,
			tables.NewRulesetTable, statedb.RWTable[*tables.Ruleset].ToTable,
			tables.NewEgressRulesetTable, statedb.RWTable[*tables.EgressRuleset].ToTable,
			tables.NewVerdictSetTable, statedb.RWTable[*tables.VerdictSet].ToTable,
			tables.NewClassTable, statedb.RWTable[*tables.Class].ToTable,
			tables.NewCompiledTable, statedb.RWTable[*tables.Compiled].ToTable,
			tables.NewSelectorTable, statedb.RWTable[*tables.Selector].ToTable,
			tables.NewSelectorMatchTable, statedb.RWTable[*tables.SelectorMatch].ToTable,
			tables.NewPeerPrefixTable, statedb.RWTable[*tables.PeerPrefix].ToTable,
			func() (Maps, error) { return openMaps(w.memory) },
			func() Verdicts {
				return Verdicts{Raise: w.raise, RaiseSoon: w.raiseSoon, Flush: w.flush}
			},
		),
		cell.Module("test", "Test", cell.Invoke(func(p params, s source) error {
			w.params, w.gates = p, newGates(&p)
			w.attachments, w.rulesets, w.egressRulesets, w.verdictSets = s.Attachments, s.Rulesets, s.EgressRulesets, s.VerdictSets
			w.classes = s.Classes
			w.compiled, w.selectors, w.matches, w.peerPrefixes = s.Compiled, s.Selectors, s.Matches, s.PeerPrefixes
			if runs {
				return register(p)
			}
			return nil
		})),
	)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, context.Background()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return w
}

func openMaps(memory *bpf.Memory) (m Maps, err error) {
	open(&m.Pods, &err, memory, "sluice_pods", bpf.TypeHash)
	open(&m.IPCache, &err, memory, "sluice_ipcache", bpf.TypeLPM)
	open(&m.Frontends, &err, memory, "sluice_services", bpf.TypeHash)
	open(&m.Subjects, &err, memory, "sluice_subjects", bpf.TypeHash)
	open(&m.Routes, &err, memory, "sluice_routes", bpf.TypeHash)
	open(&m.Peers, &err, memory, "sluice_peers", bpf.TypeHash)
	open(&m.Policy, &err, memory, "sluice_policy", bpf.TypeHash)
	open(&m.Verdicts, &err, memory, "sluice_verdicts", bpf.TypeLPM)
	open(&m.Egress, &err, memory, "sluice_egress", bpf.TypeLPM)
	open(&m.Gateways, &err, memory, "sluice_gateways", bpf.TypeHash)
	return m, err
}

func open[K, V comparable](
	m *bpf.Map[K, V], err *error, memory *bpf.Memory, name string, typ bpf.Type,
) {
	if *err == nil {
		*m, *err = bpf.Open[K, V](memory, bpf.Spec{Name: name, Type: typ, MaxEntries: 10000})
	}
}

func (w *world) raise() { w.mu.Lock(); defer w.mu.Unlock(); w.raised++ }

func (w *world) raiseSoon() { w.mu.Lock(); defer w.mu.Unlock(); w.raisedSoon++ }

func (w *world) flush(addrs []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range addrs {
		w.flushed[a]++
	}
}

// setPending makes a new row pending, if it is reconciled.
func setPending(row any) {
	if f := reflect.ValueOf(row).Elem().FieldByName("Reconciled"); f.IsValid() {
		f.Set(reflect.ValueOf(tables.Pending()))
	}
}

// insert inserts rows in one transaction, those of desired tables as pending.
func insert[R any](w *world, table statedb.RWTable[R], rows ...R) {
	w.t.Helper()
	for _, row := range rows {
		r, ok := any(row).(interface{ GetStatus() reconciler.Status })
		if ok && r.GetStatus().Kind == reconciler.StatusKindUnset {
			setPending(row)
		}
	}
	tablestest.Insert(w.t, w.DB, table, rows...)
}

// awaitStatus waits until a row, given by its primary key, has a status.
func awaitStatus[R interface{ GetStatus() reconciler.Status }](
	w *world, table statedb.Table[R], row R, status string,
) {
	w.t.Helper()
	await.True(w.t, func() bool {
		now, _, found := table.Get(w.DB.ReadTxn(), table.PrimaryIndexer().QueryFromObject(row))
		require.True(w.t, found)
		is := strings.TrimSpace(now.GetStatus().Kind.String() + " " + now.GetStatus().GetError())
		if is == "Done" {
			require.Equal(w.t, status, is)
		}
		return is == status
	}, status)
}

const waiting = "Pending waiting for "

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func life(n uint32) tables.Life { return tables.Life{Number: n} }

func pending() reconciler.Status { return reconciler.StatusPending() }
