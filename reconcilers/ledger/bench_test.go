// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/binary"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/testdata/await"
)

// BenchmarkLedger is the way of a record from the kernel's buffer to the file, on one CPU. A connection
// has two. None must be missing.
func BenchmarkLedger(b *testing.B) {
	const most = 700000 // as many fit into the buffer
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	k := newKernel(b, DefaultConfig.LedgerBuffer)
	a := start(b, func() *bpf.Ledger { return &k.Ledger },
		"--ledger-file="+filepath.Join(b.TempDir(), "ledger.jsonl"))
	a.known()
	now := time.Now()
	written := a.records("file", "written")
	for done := 0; done < b.N; {
		n := min(b.N-done, most)
		b.StopTimer()
		k.write(raw(bpf.LedgerBegin, now, now), uint32((n+1)/2))
		k.write(raw(bpf.LedgerExpired, now.Add(time.Second), now), uint32(n/2))
		b.StartTimer()
		done += n
		await.True(b, func() bool { return a.records("file", "written") >= written+float64(done) })
	}
	missed, _, err := k.Missed()
	require.NoError(b, err)
	require.Zero(b, missed)
	require.Zero(b, a.records("file", "lost"))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkCompare compares what has no end with a full map of the default size, of one family.
func BenchmarkCompare(b *testing.B) {
	const connections = 1 << 18
	k := newKernel(b, 1<<12)
	k.withTranslations(2 * connections)
	o := newOpenSet(&k.Ledger)
	keys, values := make([]natmap.Key4, 0, 2*connections), make([]natmap.Entry4, 0, 2*connections)
	for i := range uint32(connections) {
		r := nth(1, 100+uint64(i))
		r.EgressPort = [2]byte{byte(i >> 8), byte(i)}
		binary.BigEndian.PutUint32(r.Remote[12:], i>>16)
		out, in := natmap.NewKey4(repliesOf(&r)), natmap.NewKey4(repliesOf(&r))
		out.Flags = ctmap.Out
		keys = append(keys, in, out)
		value := natmap.Entry4{Created: r.Began, Used: 1, Addr: podAddr.As4(), Port: r.PodPort}
		values = append(values, value, value)
	}
	_, err := k.NAT4.BatchUpdate(keys, values, nil)
	require.NoError(b, err)
	before := heap()
	require.NoError(b, o.compare(1, 1<<62, 0, foundOwner))
	each := float64(heap()-before) / float64(len(o.open))
	for b.Loop() {
		require.NoError(b, o.compare(1, 1<<62, 0, foundOwner))
	}
	b.ReportMetric(each, "B/translation")
	require.Greater(b, len(o.open), connections*9/10)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
