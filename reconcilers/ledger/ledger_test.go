// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/testdata/await"
)

// lines returns the records of a file.
func lines(t testing.TB, path string) (records []Record) {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		var r Record
		if line[len(line)-1] == '\n' && json.Unmarshal(line, &r) == nil {
			records = append(records, r)
		}
	}
	return records
}

// written waits for so many records of a file.
func written(t testing.TB, path string, n int) (records []Record) {
	t.Helper()
	await.True(t, func() bool {
		records = lines(t, path)
		return len(records) >= n
	})
	require.Equal(t, n, len(records))
	return records
}

func events(records []Record) (all []string) {
	for _, r := range records {
		text := string(r.Event)
		if r.Reason != "" {
			text += " " + r.Reason
		}
		if r.Pod != "" {
			text += " " + r.Pod
		}
		all = append(all, text)
	}
	return all
}

// TestFile: what the kernel records is in the file, with the names of the pod and its node.
func TestFile(t *testing.T) {
	k, path := newKernel(t, 1<<16), filepath.Join(t.TempDir(), "new", "ledger.jsonl")
	a := start(t, func() *bpf.Ledger { return &k.Ledger }, "--ledger-file="+path)
	a.known()
	now := time.Now().Round(0).UTC()
	k.write(raw(bpf.LedgerBegin, now, now), 1)
	k.write(raw(bpf.LedgerExpired, now.Add(time.Minute), now, func(r *bpf.LedgerRecord) {
		r.Used = uint32(monotonic(now.Add(10*time.Second)) / 1e9)
	}), 1)
	k.write(raw(bpf.LedgerBegin, now, now, func(r *bpf.LedgerRecord) { // of a node itself
		r.Protocol, r.Pod = 17, bpf.AddressFrom(netip.MustParseAddr("192.168.0.2"))
	}), 1)
	k.write(raw(bpf.LedgerBegin, now, now, func(r *bpf.LedgerRecord) { // of a pod that is not known
		r.Protocol, r.Pod = 58, bpf.AddressFrom(netip.MustParseAddr("fd00::9"))
	}), 1)
	records := written(t, path, 5)
	require.Equal(t, []string{"start new", "begin web-1", "end expired web-1", "begin", "begin"}, events(records))

	begin, end := records[1], records[2]
	require.WithinDuration(t, now, begin.Time, time.Second)
	require.WithinDuration(t, now, end.Began, time.Second)
	require.WithinDuration(t, now.Add(time.Minute), end.Time, time.Second)
	require.WithinDuration(t, now.Add(10*time.Second), end.LastUsed, 2*time.Second)
	require.Equal(t, begin.ID, end.ID)
	for _, r := range []Record{begin, end} {
		require.NotZero(t, r.ID)
		r.Time, r.Began, r.LastUsed, r.ID = time.Time{}, time.Time{}, time.Time{}, 0
		require.Equal(t, Record{
			Event: r.Event, Reason: r.Reason, Namespace: "shop", Pod: "web-1", Node: "node-1",
			PodAddress: netip.MustParseAddrPort("10.1.0.5:4660"), Protocol: "TCP", Egress: egress, Destination: server,
		}, r)
	}
	require.Equal(t, "node-2", records[3].Node)
	require.Equal(t, "UDP", records[3].Protocol)
	require.Equal(t, "[fd00::9]:4660", records[4].PodAddress.String())
	require.Equal(t, "ICMPv6", records[4].Protocol)
	await.True(t, func() bool { return a.records("file", "written") == 5 })
	require.Zero(t, a.records("file", "lost"))

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
}

// TestOff: without an output nothing is read, and there is no buffer.
func TestOff(t *testing.T) {
	start(t, func() *bpf.Ledger { t.Error("the maps are used"); return nil })
	require.Zero(t, DefaultConfig.buffer())
	with := DefaultConfig
	with.LedgerOTLPEndpoint = "http://[::1]:4318"
	require.EqualValues(t, 1<<26, with.buffer())
}

func TestConfig(t *testing.T) {
	for _, tc := range []struct{ flag, want string }{
		{"--ledger-file=ledger", `--ledger-file "ledger" is not an absolute path`},
		{"--ledger-max-size=0", "--ledger-max-size 0: want 1 MiB at least"},
		{"--ledger-max-files=1", "--ledger-max-files 1: want 2 at least"},
		{"--ledger-buffer=100000", "--ledger-buffer 100000: want a power of two from"},
	} {
		_, err := tryStart(t, func() *bpf.Ledger { return nil }, tc.flag)
		require.ErrorContains(t, err, tc.want)
	}
}

// TestNoPrograms: without programs in the kernel there is nothing to record, which is no fault.
func TestNoPrograms(t *testing.T) {
	a := start(t, func() *bpf.Ledger { return nil }, "--ledger-file="+filepath.Join(t.TempDir(), "ledger"))
	require.Equal(t, "No programs are loaded: there is nothing to record", a.says("record", cell.StatusOK))
}

// TestMissing: what did not fit into the kernel's buffer is told at its place, once, also if nothing
// follows, and if the agent was restarted.
func TestMissing(t *testing.T) {
	k, path := newKernel(t, 1<<12), filepath.Join(t.TempDir(), "ledger.jsonl")
	maps := func() *bpf.Ledger { return &k.Ledger }
	room := uint32(k.Records.MaxEntries()) / uint32(bpf.LedgerRecordBytes)
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), room+7)
	a := start(t, maps, "--ledger-file="+path)
	a.known()
	records := written(t, path, int(room)+2)
	require.Equal(t, Start, records[0].Event)
	require.Equal(t, "missing buffer", events(records)[room+1])
	require.EqualValues(t, 7, records[room+1].Count)
	a.stop()

	// While there is no agent; and what fits again says that something is missing before it.
	k.write(raw(bpf.LedgerBegin, now, now), room+3)
	missed, told, err := k.Missed()
	require.NoError(t, err)
	require.EqualValues(t, []uint64{10, 7}, []uint64{missed, told})
	a = start(t, maps, "--ledger-file="+path)
	a.known()
	await.True(t, func() bool {
		_, told, err := k.Missed()
		require.NoError(t, err)
		return told == 10
	})
	k.write(raw(bpf.LedgerBegin, now, now, func(r *bpf.LedgerRecord) { r.Missing = 15 }), 1)
	records = written(t, path, int(2*room+6))
	tail := records[room+2:]
	require.Equal(t, "start stopped", events(tail)[0])
	require.EqualValues(t, 3, tail[room+1].Count)
	require.Equal(t, []string{"missing buffer", "begin web-1"}, events(tail[room+2:]), "before the record")
	require.EqualValues(t, 5, tail[room+2].Count)
}

// TestRestart: what is recorded while there is no agent is in the file when the next one runs. If the
// one before was killed, the file says so.
func TestRestart(t *testing.T) {
	k, path := newKernel(t, 1<<16), filepath.Join(t.TempDir(), "ledger.jsonl")
	maps := func() *bpf.Ledger { return &k.Ledger }
	now := time.Now()
	a := start(t, maps, "--ledger-file="+path)
	a.known()
	k.write(raw(bpf.LedgerBegin, now, now), 1)
	written(t, path, 2)
	a.stop()
	k.write(raw(bpf.LedgerBegin, now, now), 300)
	a = start(t, maps, "--ledger-file="+path)
	a.known()
	records := written(t, path, 303)
	require.Equal(t, "start stopped", events(records)[2])
	a.stop()

	require.NoError(t, k.SetReading(bpf.LedgerBeingRead, 42))
	a = start(t, maps, "--ledger-file="+path)
	a.known()
	last := written(t, path, 304)[303]
	require.EqualValues(t, 42, a.records("file", "uncertain"))
	require.Equal(t, []string{"start killed"}, events([]Record{last}))
	require.EqualValues(t, 42, last.Count)
}

// TestInHand: the kernel knows how many records are lost if the agent is killed now, and no more
// than these.
func TestInHand(t *testing.T) {
	k, out := newKernel(t, 1<<16), &fake{block: make(chan struct{})}
	now, room := time.Now(), uint32(k.Records.MaxEntries())/uint32(bpf.LedgerRecordBytes)
	k.write(raw(bpf.LedgerBegin, now, now), room+10)
	inHand := func() uint64 {
		_, inHand, err := k.Reading()
		require.NoError(t, err)
		return inHand
	}
	a := runReader(t, &k.Ledger, out, "")
	await.True(t, func() bool { return inHand() == uint64(room)+2 }) // a start and what is missing
	missed, told, err := k.Missed()
	require.NoError(t, err)
	require.EqualValues(t, []uint64{10, 0}, []uint64{missed, told}, "it would be told again")
	close(out.block)
	await.True(t, func() bool { return inHand() == 0 })
	_, told, err = k.Missed()
	require.NoError(t, err)
	require.EqualValues(t, 10, told)
	require.NoError(t, a.stop())
}

// TestOtherVersion: records that cannot be read are counted, and cost no others.
func TestOtherVersion(t *testing.T) {
	k, path := newKernel(t, 1<<16), filepath.Join(t.TempDir(), "ledger.jsonl")
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), 1)
	k.write(raw(bpf.LedgerUndone+1, now, now), 3)
	k.write(raw(bpf.LedgerExpired, now, now), 1)
	start(t, func() *bpf.Ledger { return &k.Ledger }, "--ledger-file="+path).known()
	records := written(t, path, 4)
	require.Equal(t, []string{
		"start new", "begin web-1", "end expired web-1", "missing version",
	}, events(records))
	require.EqualValues(t, 3, records[3].Count)
}

// TestClockSet: that the time of day was set is recorded, and its adjustment is not.
func TestClockSet(t *testing.T) {
	q := newQueue("file", &fake{}, true, nil)
	r := &reader{queues: []*queue{q}, clock: newClock()}
	r.readClock(t.Context())
	require.Empty(t, q.pending)
	r.clock.now = r.clock.now.Add(time.Hour)
	r.readClock(t.Context())
	require.Equal(t, []string{"clock"}, events(q.pending))
	step, err := time.ParseDuration(q.pending[0].Step)
	require.NoError(t, err)
	require.Equal(t, -time.Hour, step.Round(time.Minute))
}

// TestNamesLater: records wait in the buffer until the pods are known, but not until it is full.
func TestNamesLater(t *testing.T) {
	k, path := newKernel(t, 1<<12), filepath.Join(t.TempDir(), "ledger.jsonl")
	a := start(t, func() *bpf.Ledger { return &k.Ledger }, "--ledger-file="+path)
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), 3)
	written(t, path, 1)
	time.Sleep(3 * pollInterval)
	written(t, path, 1)
	k.write(raw(bpf.LedgerBegin, now, now), 30)
	written(t, path, 34)
	a.known()
}

// TestNamesOfThen: a record has the name of the pod that had the address then.
func TestNamesOfThen(t *testing.T) {
	k, path := newKernel(t, 1<<16), filepath.Join(t.TempDir(), "ledger.jsonl")
	a := start(t, func() *bpf.Ledger { return &k.Ledger }, "--ledger-file="+path)
	a.known()
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), 1)
	written(t, path, 2)
	a.pod("web-2", now.Add(time.Second))
	k.write(raw(bpf.LedgerReleased, now.Add(2*time.Second), now), 1)
	k.write(raw(bpf.LedgerBegin, now.Add(3*time.Second), now.Add(3*time.Second)), 1)
	k.write(raw(bpf.LedgerExpired, now.Add(4*time.Second), now.Add(3*time.Second)), 1)
	// The clock by which pods are created may be ahead of this node's.
	written(t, path, 5)
	a.pod("web-3", now.Add(time.Hour))
	k.write(raw(bpf.LedgerBegin, now.Add(5*time.Second), now.Add(5*time.Second)), 1)
	// Of before the agent was started: another pod may have had the address.
	k.write(raw(bpf.LedgerExpired, now.Add(4*time.Second), now.Add(-time.Hour)), 1)
	k.write(raw(bpf.LedgerBegin, now.Add(-time.Hour), now.Add(-time.Hour)), 1)
	require.Equal(t, []string{
		"end released web-1", "begin web-2", "end expired web-2", "begin web-3", "end expired", "begin",
	}, events(written(t, path, 8)[2:]))
}
