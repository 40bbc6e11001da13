// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// world is the counters of a node whose programs have the maps.
type world struct {
	*counters
	policies statedb.RWTable[*tables.EgressPolicy]
	maps     map[string]*ebpf.Map
}

func newWorld(t *testing.T) *world {
	w := &world{maps: map[string]*ebpf.Map{}}
	db := statedb.New()
	traffic, err := tables.NewEgressTrafficTable(db)
	require.NoError(t, err)
	w.policies, err = tables.NewEgressPolicyTable(db)
	require.NoError(t, err)
	for name, spec := range map[string]*ebpf.MapSpec{
		bpf.TrafficMap:       {Type: ebpf.Hash, KeySize: 24, ValueSize: 4},
		bpf.TrafficOwnersMap: {Type: ebpf.Array, KeySize: 4, ValueSize: 4},
		bpf.TrafficCountsMap: {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 40},
	} {
		spec.MaxEntries = bpf.TrafficCounters
		m, err := ebpf.NewMap(spec)
		if err != nil {
			require.Empty(t, os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "BPF maps are not possible here: %v", err)
			t.Skipf("BPF maps are not possible here: %v", err)
		}
		t.Cleanup(func() { m.Close() })
		w.maps[name] = m
	}
	w.restart(db, traffic)
	return w
}

// restart is an agent that starts and finds the maps.
func (w *world) restart(db *statedb.DB, traffic statedb.RWTable[*tables.EgressTraffic]) {
	w.counters = &counters{params: params{
		DB: db, Traffic: traffic, Policies: w.policies,
		Maps: func(name string) *ebpf.Map { return w.maps[name] },
	}}
}

const egress = "203.0.113.7"

// count has each CPU count some packets of 100 bytes for a policy, as the programs do.
func (w *world) count(t *testing.T, policy string, counter uint32, packets uint64) {
	key := bpf.TrafficKey{
		Policy: bpf.PolicyCookie(policy), Egress: bpf.AddressFrom(netip.MustParseAddr(egress)),
	}
	require.NoError(t, w.maps[bpf.TrafficMap].Put(key, bpf.TrafficValue{Counter: counter}))
	require.NoError(t, w.maps[bpf.TrafficOwnersMap].Put(counter, bpf.TrafficOwner{Policy: key.Policy}))
	perCPU := make([]bpf.TrafficCount, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i].Sent = bpf.Metric{Packets: packets, Bytes: 100 * packets}
		perCPU[i].Received = bpf.Metric{Packets: 1, Bytes: 60}
	}
	require.NoError(t, w.maps[bpf.TrafficCountsMap].Put(counter, perCPU))
}

// rows reads the counters and returns the table.
func (w *world) rows(t *testing.T) []*tables.EgressTraffic {
	require.NoError(t, w.read(t.Context()))
	return statedb.Collect(w.Traffic.All(w.DB.ReadTxn()))
}

func row(policy string, packets uint64) *tables.EgressTraffic {
	cpus := uint64(ebpf.MustPossibleCPU())
	return &tables.EgressTraffic{
		Policy: policy, EgressIP: netip.MustParseAddr(egress),
		SentPackets: packets * cpus, SentBytes: packets * cpus * 100,
		ReceivedPackets: cpus, ReceivedBytes: cpus * 60,
	}
}

func (w *world) add(t *testing.T, policy string) {
	tablestest.Insert(t, w.DB, w.policies, &tables.EgressPolicy{Name: policy})
}

// TestTable: each pair has a row with what all CPUs have counted, from before the agent's start
// too. A row that does not change is not written.
func TestTable(t *testing.T) {
	w := newWorld(t)
	w.add(t, "bank")
	w.add(t, "partner")
	w.count(t, "bank", 5, 2)
	require.Equal(t, []*tables.EgressTraffic{row("bank", 2)}, w.rows(t))
	revision := w.Traffic.Revision(w.DB.ReadTxn())
	w.rows(t)
	require.Equal(t, revision, w.Traffic.Revision(w.DB.ReadTxn()))

	w.count(t, "partner", 6, 1)
	w.restart(w.DB, w.Traffic)
	require.Equal(t, []*tables.EgressTraffic{row("bank", 2), row("partner", 1)}, w.rows(t))

	w.Maps = func(string) *ebpf.Map { return nil }
	require.NoError(t, w.read(t.Context()), "without programs")
	require.NoError(t, w.sweep(t.Context()))
}

// TestPolicyGoes: the counter of a policy goes when that has been gone for two sweeps, and is
// given to the next one two sweeps later, empty.
func TestPolicyGoes(t *testing.T) {
	w := newWorld(t)
	w.add(t, "bank")
	w.count(t, "bank", 5, 2)
	w.count(t, "partner", 6, 9)
	require.Equal(t, []*tables.EgressTraffic{row("bank", 2)}, w.rows(t))
	pairs := func() int {
		all, err := bpf.DumpKernel[bpf.TrafficKey, bpf.TrafficValue](w.maps[bpf.TrafficMap])
		require.NoError(t, err)
		return len(all)
	}
	sweep := func() { require.NoError(t, w.sweep(t.Context())) }
	sweep()
	require.Equal(t, 2, pairs())
	sweep()
	require.Equal(t, 1, pairs())

	counts, _ := bpf.TrafficCountsOf(w.Maps)
	isTaken := func() bool {
		taken, err := counts.Taken()
		require.NoError(t, err)
		require.Contains(t, taken, uint32(5))
		return len(taken) == 2
	}
	// The agent that had removed it ends: the next one finds that it is no pair's.
	w.restart(w.DB, w.Traffic)
	sweep()
	require.True(t, isTaken())
	sweep()
	require.False(t, isTaken())
	var perCPU []bpf.TrafficCount
	require.NoError(t, w.maps[bpf.TrafficCountsMap].Lookup(uint32(6), &perCPU))
	for _, c := range perCPU {
		require.NotZero(t, c.Since)
		require.Less(t, c.Since, uint64(1)<<40, "who takes it next counts")
		require.Zero(t, c.Sent)
		require.Zero(t, c.Received)
	}
	require.Equal(t, []*tables.EgressTraffic{row("bank", 2)}, w.rows(t))

	// A policy that is back in time keeps its counter.
	wtxn := w.DB.WriteTxn(w.policies)
	require.NoError(t, w.policies.DeleteAll(wtxn))
	wtxn.Commit()
	sweep()
	require.Empty(t, w.rows(t))
	w.add(t, "bank")
	sweep()
	sweep()
	require.Equal(t, []*tables.EgressTraffic{row("bank", 2)}, w.rows(t))
}

// TestNothingIsRemovedAtTheStart: while the policies are not known yet.
func TestNothingIsRemovedAtTheStart(t *testing.T) {
	w := newWorld(t)
	w.count(t, "bank", 5, 2)
	wtxn := w.DB.WriteTxn(w.policies)
	done := w.policies.RegisterInitializer(wtxn, "files")
	wtxn.Commit()
	for range 4 {
		require.NoError(t, w.sweep(t.Context()))
	}
	w.add(t, "bank")
	wtxn = w.DB.WriteTxn(w.policies)
	done(wtxn)
	wtxn.Commit()
	require.Equal(t, []*tables.EgressTraffic{row("bank", 2)}, w.rows(t))
}
