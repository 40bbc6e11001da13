// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// ledgerRoom is how large the ring buffer of the ledger is in tests, in bytes.
const ledgerRoom = 1 << 12

// ledgerNode has the programs loaded that write a ledger.
var ledgerNode = sync.OnceValues(func() (*packettest.Node, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, err
	}
	spec.Maps[bpf.LedgerMap].MaxEntries = ledgerRoom
	if err := spec.Variables[bpf.LedgerOn].Set(true); err != nil {
		return nil, err
	}
	return packettest.NewNode(spec)
})

// recorded reads what is in the ledger.
func (f *fixture) recorded() (records []bpf.LedgerRecord) {
	f.Helper()
	rd, err := ringbuf.NewReader(f.Map(bpf.LedgerMap))
	require.NoError(f, err)
	defer rd.Close()
	rd.SetDeadline(time.Unix(1, 0))
	for {
		sample, err := rd.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return records
		}
		require.NoError(f, err)
		r, err := bpf.DecodeLedger(sample.RawSample)
		require.NoError(f, err)
		records = append(records, r)
	}
}

// eachLedger runs a test for pods here and elsewhere, each family and each protocol.
func eachLedger(t *testing.T, test func(g gatewayOf)) {
	for _, where := range []string{"here", "elsewhere"} {
		for _, w := range both {
			for _, transport := range []string{"TCP", "UDP", "ICMP"} {
				t.Run(where+" "+w.Family+" "+transport, func(t *testing.T) {
					f := newFixtureOn(t, w, ledgerNode)
					f.recorded()
					f.selected(f.Here(f.Egress))
					require.NoError(f, f.SetRemotePod(f.RemotePod))
					g := gatewayOf{f, transport, f.Pod}
					if where == "elsewhere" {
						g.pod = f.RemotePod
					}
					test(g)
				})
			}
		}
	}
}

// is asserts what a record says of the flow that g.first begins, with a port and an egress address.
func (g gatewayOf) is(r bpf.LedgerRecord, event bpf.LedgerEvent, egress netip.Addr, port uint16) {
	g.Helper()
	in := inTuple(g.transport, g.Server, egress, port)
	require.Equal(g, event.String(), r.Event.String())
	require.Equal(g, g.pod, r.Pod.Addr())
	require.Equal(g, egress, r.Egress.Addr())
	require.Equal(g, g.Server, r.Remote.Addr())
	require.Equal(g, networkOrder(g.port()), r.PodPort, "port of the pod")
	require.Equal(g, networkOrder(in.Dport), r.EgressPort, "egress port")
	require.Equal(g, networkOrder(in.Sport), r.RemotePort, "port of the destination")
	require.Equal(g, in.Protocol, r.Protocol)
	require.Zero(g, r.Missing)
	require.GreaterOrEqual(g, r.Time, r.Began)
	require.GreaterOrEqual(g, r.Began/1e9+1, uint64(g.since), "it began with this packet")
}

func networkOrder(port uint16) [2]byte { return [2]byte{byte(port >> 8), byte(port)} }

// collected makes a pass of the garbage collection with the ledger of the node.
func (g gatewayOf) collected(filter gc.Filter) {
	g.Helper()
	maps := gc.Maps{
		CT4TCP: g.Map("sluice_ct4_tcp"), CT4Any: g.Map("sluice_ct4_any"),
		CT6TCP: g.Map("sluice_ct6_tcp"), CT6Any: g.Map("sluice_ct6_any"),
		NAT4: g.Map(natmap.Name4), NAT6: g.Map(natmap.Name6),
	}
	c, err := gc.OpenWith(maps, gc.Extras{Ledger: &bpf.Ledger{
		Records: g.Map(bpf.LedgerMap), Missing: g.Map(bpf.MissingMap),
	}})
	require.NoError(g, err)
	defer c.Close()
	_, err = c.Run(g.Context(), filter)
	require.NoError(g, err)
}

// TestLedger: each translation has a record when it begins and one when it ends, which says why,
// and nothing between has any.
func TestLedger(t *testing.T) {
	for name, end := range map[bpf.LedgerEvent]func(g gatewayOf){
		bpf.LedgerExpired: func(g gatewayOf) {
			g.expired(60)
			g.age(60)
			g.collected(gc.Filter{Expired: true})
		},
		bpf.LedgerReleased: func(g gatewayOf) { g.collected(gc.Filter{Addrs: []netip.Addr{g.pod}}) },
		bpf.LedgerFlushed:  func(g gatewayOf) { g.collected(gc.Filter{All: true}) },
		bpf.LedgerOrphan: func(g gatewayOf) {
			for _, name := range []string{"ct4_tcp", "ct4_any", "ct6_tcp", "ct6_any"} {
				require.NoError(g, g.Clear("sluice_"+name))
			}
			g.age(60)
			g.collected(gc.Filter{Orphans: true})
		},
	} {
		t.Run(name.String(), func(t *testing.T) {
			eachLedger(t, func(g gatewayOf) {
				port := portOf(g.translated(g.first(), g.Egress), g.transport)
				begin := g.recorded()
				require.Len(g, begin, 1)
				g.is(begin[0], bpf.LedgerBegin, g.Egress, port)

				g.answer(g.Egress, port)
				g.translated(g.next(), g.Egress)
				require.Empty(g, g.recorded(), "it goes on")

				end(g)
				ended := g.recorded()
				require.Len(g, ended, 1)
				g.since = 0 // its entry was made older
				g.is(ended[0], name, g.Egress, port)
				require.NotZero(g, ended[0].Used)
				require.Nil(g, g.translation(inTuple(g.transport, g.Server, g.Egress, port)))
			})
		})
	}
}

// TestLedgerOfTheSameBegin: the end of a translation names the time of its begin exactly.
func TestLedgerOfTheSameBegin(t *testing.T) {
	eachLedger(t, func(g gatewayOf) {
		g.translated(g.first(), g.Egress)
		g.collected(gc.Filter{All: true})
		records := g.recorded()
		require.Len(g, records, 2)
		require.Equal(g, records[0].Began, records[1].Began)
		require.Greater(g, records[1].Time, records[0].Time)
	})
}

// TestLedgerRenewed: a connection that begins with the ports of one that is over, and gets another
// address, ends the first.
func TestLedgerRenewed(t *testing.T) {
	eachLedger(t, func(g gatewayOf) {
		port := portOf(g.translated(g.first(), g.Egress), g.transport)
		g.age(10)
		g.expire()
		g.recorded()
		require.NoError(g, g.SetGateway(packettest.Group, g.Here(g.SharedEgress)))
		given := portOf(g.translated(g.first(), g.SharedEgress), g.transport)
		records := g.recorded()
		require.Len(g, records, 2)
		g.is(records[1], bpf.LedgerBegin, g.SharedEgress, given)
		g.since = 0
		g.is(records[0], bpf.LedgerRenewed, g.Egress, port)
	})
}

// TestLedgerReused: a pod that takes the port of another's connection, which has ended, ends it.
func TestLedgerReused(t *testing.T) {
	eachLedger(t, func(g gatewayOf) {
		port := portOf(g.translated(g.first(), g.Egress), g.transport)
		g.age(10)
		g.expire()
		g.recorded()
		other := g
		other.pod = g.OtherPod
		pod := bpf.PodValue{
			Subject: packettest.Routed, IfIndex: g.Index(packettest.OtherPodDevice),
			Flags: bpf.PodLocal,
		}
		require.NoError(g, g.SetPod(g.OtherPod, pod))
		g.translated(g.fromOtherPod(request(g.transport, g.OtherPod, g.Server)...), g.Egress)
		records := g.recorded()
		require.Len(g, records, 2)
		other.is(records[1], bpf.LedgerBegin, g.Egress, port)
		g.since = 0
		g.is(records[0], bpf.LedgerReused, g.Egress, port)
	})
}

// TestLedgerMoved: if a pod moves to another node, its translation is another one.
func TestLedgerMoved(t *testing.T) {
	eachLedger(t, func(g gatewayOf) {
		if g.pod != g.RemotePod {
			return
		}
		packet := request(g.transport, g.RemotePod, g.Server)
		port := portOf(g.translated(g.fromOverlay(second(), packet...), g.Egress), g.transport)
		g.livesOn(g.RemotePod, third())
		g.translated(g.fromOverlay(third(), packet...), g.Egress)
		records := g.recorded()
		require.Len(g, records, 3)
		g.is(records[0], bpf.LedgerBegin, g.Egress, port)
		g.is(records[1], bpf.LedgerBegin, g.Egress, port)
		g.is(records[2], bpf.LedgerRenewed, g.Egress, port)
		require.Equal(g, records[0].Began, records[2].Began)
		require.Greater(g, records[1].Began, records[0].Began)
	})
}

// TestLedgerEvicted: the kernel evicts records from a full map, and no program sees it. If the flow
// goes on it begins again, in the ledger too. The agent finds the end of the first.
func TestLedgerEvicted(t *testing.T) {
	eachLedger(t, func(g gatewayOf) {
		port := portOf(g.translated(g.first(), g.Egress), g.transport)
		require.NoError(g, g.DeleteTranslation(inTuple(g.transport, g.Server, g.Egress, port)))
		g.translated(g.next(), g.Egress)
		records := g.recorded()
		require.Len(g, records, 2)
		g.is(records[0], bpf.LedgerBegin, g.Egress, port)
		g.is(records[1], bpf.LedgerBegin, g.Egress, port)
		require.Greater(g, records[1].Began, records[0].Began)
	})
}

// TestLedgerFull: what does not fit is counted, and the next record that does says so. Packets do
// not notice.
func TestLedgerFull(t *testing.T) {
	f := newFixtureOn(t, packettest.World4, ledgerNode)
	f.recorded()
	f.selected(f.Here(f.Egress))
	const sent = 100
	for i := range uint16(sent) {
		f.translated(f.fromPod(udp(f.Pod, f.Server, 1024+i, serverPort)...), f.Egress)
	}
	ledger := bpf.Ledger{Records: f.Map(bpf.LedgerMap), Missing: f.Map(bpf.MissingMap)}
	missed, told, err := ledger.Missed()
	require.NoError(t, err)
	require.Zero(t, told)
	records := f.recorded()
	require.EqualValues(t, sent-len(records), missed)
	require.NotZero(t, missed)
	require.InDelta(t, ledgerRoom/bpf.LedgerRecordBytes, len(records), 1, "the size of a record")
	for _, r := range records {
		require.Zero(t, r.Missing)
	}

	f.translated(f.fromPod(udp(f.Pod, f.Server, 5000, serverPort)...), f.Egress)
	records = f.recorded()
	require.Len(t, records, 1)
	require.EqualValues(t, missed, records[0].Missing)

	require.NoError(t, ledger.Tell(missed))
	missed, told, err = ledger.Missed()
	require.NoError(t, err)
	require.Equal(t, missed, told)
}

// TestLedgerOff: nothing is recorded, nor counted, and the ring buffer has the least size.
func TestLedgerOff(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	f.translated(f.fromPod(udp(f.Pod, f.Server, podPort, serverPort)...), f.Egress)
	require.Empty(t, f.recorded())
	ledger := f.Map(bpf.LedgerMap)
	info, err := ledger.Info()
	require.NoError(t, err)
	require.EqualValues(t, unix.Getpagesize(), info.MaxEntries, "the least that the kernel makes")
	var missed uint64
	require.NoError(t, f.Map(bpf.MissingMap).Lookup(bpf.LedgerMissed, &missed))
	require.Zero(t, missed)
}
