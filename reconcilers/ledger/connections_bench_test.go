// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

// gateway are the programs with a ledger, and maps of the default sizes.
type gateway struct {
	testing.TB
	*packettest.Node
	ledger bpf.Ledger
}

func newGateway(b testing.TB) *gateway {
	newKernel(b, 1<<12) // skips without root
	spec, err := datapath.Spec()
	require.NoError(b, err)
	spec.Maps[bpf.LedgerMap].MaxEntries = DefaultConfig.LedgerBuffer
	require.NoError(b, spec.Variables[bpf.LedgerOn].Set(true))
	const room = 1 << 19
	n, err := packettest.NewNodeWith(spec, map[string]uint32{
		natmap.Name4: room, natmap.Name6: room, ctmap.CT4Any: room,
	})
	require.NoError(b, err)
	b.Cleanup(n.Close)
	w := packettest.World4
	require.NoError(b, n.Select(w, n.Here(w.Egress)))
	config := n.Config
	config.Flags &^= bpf.ConfigFlowEvents
	require.NoError(b, n.SetConfig(config))
	pod := n.LocalPod(packettest.Routed)
	pod.IfIndex = 1 // packets of a test run come from the loopback device
	require.NoError(b, n.SetPod(w.Pod, pod))
	return &gateway{b, n, bpf.Ledger{
		Records: n.Map(bpf.LedgerMap), Missing: n.Map(bpf.MissingMap),
		NAT4: n.Map(natmap.Name4), NAT6: n.Map(natmap.Name6),
	}}
}

// connect has the pod send the first packet of so many connections, at a rate a second if that is
// not 0. It returns the time of the CPU that it took.
func (g *gateway) connect(connections int, rate float64) time.Duration {
	const sourcePort, burst = 34, 50 // offset in the packet; packets
	w := packettest.World4
	packet := packettest.Build(
		packettest.Ethernet{Dst: g.MAC(packettest.PodDevice), Src: packettest.PodMAC},
		packettest.IPv4{Src: w.Pod, Dst: w.Server}, packettest.UDP{}, packettest.Pattern(100),
	)
	program, options := g.Program("from_pod"), &ebpf.RunOptions{Data: packet}
	begin := time.Now()
	return onThread(func() {
		for i := range connections {
			if rate != 0 && i%burst == 0 {
				due := begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
				time.Sleep(time.Until(due))
			}
			binary.BigEndian.PutUint16(packet[sourcePort:], uint16(10000+i%50000))
			binary.BigEndian.PutUint16(packet[sourcePort+2:], uint16(1000+i/50000))
			verdict, err := program.Run(options)
			if err != nil || packettest.Verdict(verdict) != packettest.Redirect {
				g.Errorf("connection %d: verdict %d: %v", i, verdict, err)
				return
			}
		}
	})
}

// endAll has the garbage collection end all connections once a second, until the context ends.
func (g *gateway) endAll(ctx context.Context) time.Duration {
	c, err := gc.OpenWith(gc.Maps{
		CT4Any: g.Map(ctmap.CT4Any), NAT4: g.Map(natmap.Name4),
	}, gc.Extras{Ledger: &g.ledger})
	require.NoError(g, err)
	defer c.Close()
	return onThread(func() {
		for last := false; !last; {
			select {
			case <-ctx.Done():
				last = true
			case <-time.After(time.Second):
			}
			if _, err := c.Run(context.Background(), gc.Filter{All: true}); err != nil {
				g.Error(err)
			}
		}
	})
}

// onThread runs a function, and returns the time of a CPU that its thread took.
func onThread(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := used(unix.RUSAGE_THREAD)
	do()
	return used(unix.RUSAGE_THREAD) - before
}

func used(whose int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(whose, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkConnections is the whole way: a pod's first packets, which the programs translate, the
// kernel's buffer, the agent's reader, and files or a server. The garbage collection ends the
// connections. All are on the same CPUs. The files must have all records.
func BenchmarkConnections(b *testing.B) {
	files := func(b *testing.B, rate float64, flags ...string) {
		dir := b.TempDir()
		benchmarkConnections(b, rate, "file", append(slices.Clone(flags),
			"--ledger-file="+filepath.Join(dir, "ledger.jsonl"), "--ledger-max-files=1000")...)
		require.Equal(b, b.N, count(b, dir, `"event":"begin"`))
		require.Equal(b, b.N, count(b, dir, `"event":"end"`))
		require.Equal(b, 2*b.N, count(b, dir, `"pod":"web-9"`))
	}
	b.Run("rate=50000/file", func(b *testing.B) { files(b, 50000) })
	b.Run("rate=any/file", func(b *testing.B) { files(b, 0) })
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer server.Close()
	otlp := []string{"--ledger-otlp-endpoint=" + server.URL, "--ledger-otlp-insecure"}
	b.Run("rate=50000/otlp", func(b *testing.B) { benchmarkConnections(b, 50000, "otlp", otlp...) })
	b.Run("rate=50000/both", func(b *testing.B) { files(b, 50000, otlp...) })
}

func benchmarkConnections(b *testing.B, rate float64, output string, flags ...string) {
	g := newGateway(b)
	a := start(b, func() *bpf.Ledger { return &g.ledger }, flags...)
	tablestest.Insert(b, a.db, a.endpoints, &tables.Endpoint{
		Name: tables.Name{Namespace: "shop", Name: "web-9"}, Node: "node-1",
		Addrs:   []netip.Addr{packettest.World4.Pod},
		Created: time.Now().Add(-time.Hour), LabelSet: &tables.LabelSet{},
	})
	a.known()
	a.says("record", "OK")

	var ending sync.WaitGroup
	var connecting, collecting time.Duration
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	before := used(unix.RUSAGE_SELF)
	b.ResetTimer()
	ending.Go(func() { collecting = g.endAll(ctx) })
	connecting = g.connect(b.N, rate)
	connected := b.Elapsed()
	cancel()
	ending.Wait()
	missed, _, err := g.ledger.Missed()
	require.NoError(b, err)
	records := 2 * b.N
	await.True(b, func() bool {
		done := a.records(output, "written") + a.records(output, "lost") + float64(missed)
		return done >= float64(records+1) // and the one of the start
	})
	b.StopTimer()
	agent := used(unix.RUSAGE_SELF) - before - connecting - collecting
	a.stop()

	lost := a.records("file", "lost") + a.records("otlp", "lost")
	each := func(cpu time.Duration, n int) float64 { return float64(cpu.Nanoseconds()) / float64(n) }
	b.ReportMetric(float64(b.N)/connected.Seconds(), "connections/s")
	b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(missed)+lost, "missing")
	b.ReportMetric(each(agent, records), "agent-ns/record")
	b.ReportMetric(each(connecting, b.N), "packet-ns/connection")
	b.ReportMetric(each(collecting, b.N), "gc-ns/connection")
}

// count returns how often a text is in the files of a directory.
func count(b testing.TB, dir, text string) (n int) {
	files, err := os.ReadDir(dir)
	require.NoError(b, err)
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(b, err)
		n += bytes.Count(content, []byte(text))
	}
	return n
}
