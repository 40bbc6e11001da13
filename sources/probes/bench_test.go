// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
)

// gateways are those of the benchmark, and witnesses what is probed beside them.
const (
	gateways  = "abcdefghij"
	witnesses = "wx"
)

// wired sends what the network gets by a real socket too, to this machine.
type wired struct {
	*network
	socket *frames.Socket
}

func (w wired) Send(frame []byte, to netip.Addr) error {
	if err := w.network.Send(frame, to); err != nil {
		return err
	}
	return w.socket.Send(frame, netip.MustParseAddr("127.0.0.1"))
}

// cpuTime returns what the calling thread has used of a processor.
func cpuTime(t testing.TB) time.Duration {
	var used unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used))
	return time.Duration(used.Nano())
}

// BenchmarkProber measures what a node of a cluster of 5,000 that probes 10 gateways and 2
// witnesses spends on that, of one processor, and how often each gateway is probed. The time of the
// network is the benchmark's.
func BenchmarkProber(b *testing.B) {
	for _, c := range []struct {
		name     string
		requests time.Duration // one of a flow by each gateway so often
		answers  time.Duration // which takes as long
		cut      string
	}{
		{name: "no flows"},
		{name: "flows with answers at once", requests: 25 * time.Millisecond},
		{"4 requests a second, answered after 100 ms",
			250 * time.Millisecond, 100 * time.Millisecond, ""},
		{"13 requests a second, answered after 65 ms", 75 * time.Millisecond, 65 * time.Millisecond, ""},
		{name: "one gateway is lost", cut: "a"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var nodes []string
			for _, name := range gateways + witnesses {
				nodes = append(nodes, string(name))
			}
			n := newNetwork(b, nodes...)
			socket, err := frames.Open(
				frames.Overlay{Underlay: netip.MustParseAddr("127.0.0.1"), Port: 9, VNI: 7})
			require.NoError(b, err)
			defer socket.Close()
			n.prober.open = func(frames.Overlay) (transport, error) { return wired{n, socket}, nil }
			for i := range 5_000 {
				n.nodes.Put(&tables.Node{Name: fmt.Sprint("node-", i)})
			}
			n.prober.Log = slog.New(slog.DiscardHandler)
			n.run(time.Second)
			for _, name := range c.cut {
				n.cut[addrOf(string(name))] = true
			}
			n.run(10 * time.Second)

			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			clear(n.sent)
			begin, used := n.now, time.Duration(0)
			for range b.N {
				n.now += n.prober.settings.tick()
				for i, name := range gateways {
					if c.requests != 0 {
						phase := time.Duration(i) * 7 * time.Millisecond
						n.note(string(name), func(v *bpf.PathValue) {
							v.Sent = (n.now - phase).Truncate(c.requests) + phase
							v.Seen = (n.now - c.answers - phase).Truncate(c.requests) + phase + c.answers
						})
					}
				}
				n.deliver()
				before := cpuTime(b)
				require.NoError(b, n.prober.tick(n.now, time.Unix(0, int64(n.now))))
				used += cpuTime(b) - before
			}
			sent := 0
			for _, name := range gateways {
				sent += n.sent[addrOf(string(name))]
			}
			passed := n.now - begin
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(used)/float64(b.N)/1e3, "µs/tick")
			b.ReportMetric(100*used.Seconds()/passed.Seconds(), "%core")
			b.ReportMetric(float64(sent)/passed.Seconds()/float64(len(gateways)), "probes/s")
		})
	}
}
