// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noPrograms is a [Datapath] without programs.
type noPrograms struct{}

func (noPrograms) Loaded() bool         { return false }
func (noPrograms) Events() *ebpf.Map    { return nil }
func (noPrograms) Map(string) *ebpf.Map { return nil }

// world is a source and the tables around it.
type world struct {
	views
	*Source

	EndpointRows statedb.RWTable[*tables.Endpoint]
	NodeRows     statedb.RWTable[*tables.Node]
	PodRows      statedb.RWTable[*tables.Pod]
	RouteRows    statedb.RWTable[*tables.SubjectRoute]
	RuleRows     statedb.RWTable[*tables.EgressRule]
	CookieRows   statedb.RWTable[*tables.RuleCookie]
	VerdictRows  statedb.RWTable[*tables.Verdict]
	SlotRows     statedb.RWTable[*tables.Slot]
	Drops        statedb.Table[*tables.Drop]
	Monitors     statedb.Table[*tables.Monitor]
}

// start runs the module in a hive with a cluster of two nodes and two pods.
func start(t testing.TB, d Datapath) *world {
	t.Helper()
	w := &world{}
	h := hive.New(
		statedb.Cell, job.Cell, cell.SimpleHealthCell,
		cell.Provide(
			func() tables.LocalNode { return tables.LocalNode{} },
			tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable,
			tables.NewNodeTable, statedb.RWTable[*tables.Node].ToTable,
			tables.NewPodTable, statedb.RWTable[*tables.Pod].ToTable,
			tables.NewSubjectRouteTable, statedb.RWTable[*tables.SubjectRoute].ToTable,
			tables.NewEgressRuleTable, statedb.RWTable[*tables.EgressRule].ToTable,
			tables.NewRuleCookieTable, statedb.RWTable[*tables.RuleCookie].ToTable,
			tables.NewVerdictTable, statedb.RWTable[*tables.Verdict].ToTable,
			tables.NewSlotTable, statedb.RWTable[*tables.Slot].ToTable,
			func() Datapath { return d },
			func(r job.Registry, h cell.Health) job.Group { return r.NewGroup(h) },
		),
		Cell,
		cell.Invoke(func(
			v views, s *Source, e statedb.RWTable[*tables.Endpoint], n statedb.RWTable[*tables.Node],
			p statedb.RWTable[*tables.Pod], route statedb.RWTable[*tables.SubjectRoute],
			r statedb.RWTable[*tables.EgressRule], c statedb.RWTable[*tables.RuleCookie],
			verdict statedb.RWTable[*tables.Verdict],
			slot statedb.RWTable[*tables.Slot],
			drops statedb.Table[*tables.Drop], monitors statedb.Table[*tables.Monitor],
		) {
			*w = world{v, s, e, n, p, route, r, c, verdict, slot, drops, monitors}
		}),
	)
	log := hivetest.Logger(t)
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })

	addr := netip.MustParseAddr
	tablestest.Insert(t, w.DB, w.NodeRows,
		&tables.Node{Name: "node-1", InternalIPs: []netip.Addr{addr("192.168.0.1")}},
		&tables.Node{Name: "node-2", InternalIPs: []netip.Addr{addr("192.168.0.2")}})
	tablestest.Insert(t, w.DB, w.EndpointRows,
		&tables.Endpoint{Name: tables.Name{Namespace: "shop", Name: "web-1"}, Node: "node-1", Addrs: []netip.Addr{addr("10.1.0.5"), addr("fd00::5")}, LabelSet: &tables.LabelSet{}},
		&tables.Endpoint{Name: tables.Name{Namespace: "shop", Name: "db-1"}, Node: "node-2", Addrs: []netip.Addr{addr("10.2.0.5")}, LabelSet: &tables.LabelSet{}})
	tablestest.Insert(t, w.DB, w.PodRows, &tables.Pod{
		Addr: addr("10.1.0.5"), Endpoint: tables.Name{Namespace: "shop", Name: "web-1"}, IfIndex: 12, Subject: 2, Local: true,
	})
	tablestest.Insert(t, w.DB, w.RouteRows, &tables.SubjectRoute{Subject: 2, EgressRuleset: 4})
	tablestest.Insert(t, w.DB, w.SlotRows,
		&tables.Slot{Use: tables.SlotInForce, Own: true},
		&tables.Slot{Number: 1, Use: tables.SlotSpare})
	tablestest.Insert(t, w.DB, w.RuleRows,
		rule(3, "0.0.0.0/0", "all"), rule(3, "203.0.113.0/24", "partner"), rule(3, "::/0", "all-6"), rule(4, "203.0.113.9/32", "other"))
	return w
}

func rule(ruleset uint32, destination, policy string) *tables.EgressRule {
	return &tables.EgressRule{
		Ruleset: ruleset, Destination: netip.MustParsePrefix(destination), Policy: policy,
	}
}

// rawDrop is a drop of a TCP SYN from web-1 to a partner.
func rawDrop(change ...func(*bpf.Event)) *bpf.Event {
	e := &bpf.Event{
		Time: uint64(time.Second), Kind: bpf.EventDrop, Reason: bpf.ReasonNoGateway, Program: bpf.ProgramFromPod, Family: bpf.FamilyIPv4,
		Protocol: 6, TCPFlags: 2, Source: address("10.1.0.5"), Destination: address("203.0.113.9"),
		SourcePort: [2]byte{0xa8, 0xca}, DestPort: [2]byte{1, 0xbb}, Length: 74, IfIndex: 12,
		EgressRuleset: 3, Group: 1,
	}
	for _, c := range change {
		c(e)
	}
	return e
}

func address(text string) bpf.Address { return bpf.AddressFrom(netip.MustParseAddr(text)) }

// follow observes events; what the observer does with them is up to next.
func follow(t testing.TB, s *Source, filter Filter, next func(*tables.Event)) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	s.Follow(filter).Observe(ctx, next, func(error) { close(done) })
	return func() {
		cancel()
		<-done
	}
}
