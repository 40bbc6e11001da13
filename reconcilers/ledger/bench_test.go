// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
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
