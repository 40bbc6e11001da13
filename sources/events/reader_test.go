// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// reports is a [cell.Health] that keeps what it was told last.
type reports struct {
	mu   sync.Mutex
	last string
}

func (r *reports) set(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = text
}

func (r *reports) get() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *reports) OK(text string)                  { r.set("OK: " + text) }
func (r *reports) Stopped(text string)             { r.set("stopped: " + text) }
func (r *reports) Degraded(text string, err error) { r.set("degraded: " + text + ": " + err.Error()) }
func (r *reports) NewScope(string) cell.Health     { return r }
func (r *reports) Close()                          {}

// ring is a [Datapath] with a map of whatever type, or none.
type ring struct{ m *ebpf.Map }

func (ring) Loaded() bool         { return true }
func (r ring) Events() *ebpf.Map  { return r.m }
func (ring) Map(string) *ebpf.Map { return nil }

// run runs a reader until the test ends and returns its health.
func run(t *testing.T, d Datapath, s *Source) *reports {
	ctx, cancel := context.WithCancel(t.Context())
	health, done := &reports{}, make(chan error)
	go func() { done <- (&reader{datapath: d, source: s}).run(ctx, health) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	await.True(t, func() bool { return health.get() != "" })
	return health
}

func TestReaderHealth(t *testing.T) {
	require.Equal(t, "OK: No programs are loaded: there are no events", run(t, noPrograms{}, nil).get())
	require.Equal(t, "degraded: Events cannot be read: drops are counted in the metrics only: open sluice_events: there is no such map",
		run(t, ring{}, nil).get())
}

const tcxDrop = 2

// synAck returns a frame with a TCP segment.
func synAck(source, destination netip.AddrPort) []byte {
	frame := make([]byte, 14, 54)
	frame[12] = 8                                                                 // IPv4
	frame = append(frame, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0) // the header's checksum follows
	frame = append(append(frame, source.Addr().AsSlice()...), destination.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum+sum>>16))
	frame = binary.BigEndian.AppendUint16(frame, source.Port())
	frame = binary.BigEndian.AppendUint16(frame, destination.Port())
	return append(frame, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x12, 1, 0, 0, 0, 0, 0)
}

// The programs' own events arrive, with what the packet had in it.
func TestKernelEvents(t *testing.T) {
	d, err := datapath.Load(datapath.Options{Sizes: datapath.Sizes{Events: uint32(os.Getpagesize())}})
	if err != nil {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "" || os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skipf("programs cannot be loaded here: %v", err)
	}
	defer d.Close()
	require.NoError(t, d.Map("sluice_config").Put(uint32(0), &bpf.ConfigValue{
		Underlay: address("192.168.0.1"), VNI: 7, MarkMask: 3 << 12, MarkShift: 12, LifetimeTCP: 8000,
	}))
	w := start(t, noPrograms{})
	got := make(chan *tables.Event, 2000)
	end := follow(t, w.Source, Filter{}, func(e *tables.Event) { got <- e })
	defer end()

	packet := synAck(netip.MustParseAddrPort("10.1.0.5:43210"), netip.MustParseAddrPort("203.0.113.9:443"))
	drop := func() { // from over the overlay, but from no node
		verdict, err := d.Program(bpf.ProgramFromOverlay).Run(&ebpf.RunOptions{Data: packet})
		require.NoError(t, err)
		require.Equal(t, uint32(tcxDrop), verdict)
	}

	// What does not fit before the first read is counted by the kernel.
	const sent = 1000
	began := time.Now()
	for range sent {
		drop()
	}
	require.Equal(t, "OK: Reading events", run(t, d, w.Source).get())
	var e *tables.Event
	select {
	case e = <-got:
	case <-time.After(await.Bound):
		t.Fatal("no event arrives")
	}
	require.Equal(t, tables.EventDrop, e.Kind)
	require.Equal(t, "unknown overlay source", e.Reason)
	require.Equal(t, "from_overlay", e.Program)
	require.Equal(t, "shop/web-1:43210 -> 203.0.113.9:443", e.Source.String()+" -> "+e.Destination.String())
	require.Equal(t, "TCP SA", e.Protocol+" "+e.TCPFlags)
	require.Equal(t, uint32(len(packet)), e.Length)
	require.False(t, e.Time.Before(began), "%s is before %s", e.Time, began)
	require.False(t, e.Time.After(time.Now()), "%s is not over", e.Time)

	var perCPU []bpf.Metric
	require.NoError(t, d.Metrics().Lookup(uint32(bpf.ReasonEventLost)*bpf.Directions, &perCPU))
	var lost uint64
	for _, m := range perCPU {
		lost += m.Packets
	}
	require.NotZero(t, lost)
	await.True(t, func() bool { return w.Counts().Drops+lost == sent },
		"each is read or counted as lost: %v %v", w.Counts(), lost)

	// And it goes on.
	before := w.Counts().Drops
	drop()
	await.True(t, func() bool { return w.Counts().Drops == before+1 })
	require.Zero(t, w.Counts().Malformed)

	// A map that is no ring buffer.
	require.Contains(t, run(t, ring{d.Metrics()}, w.Source).get(), "degraded: Events cannot be read")
}
