// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/testdata/await"
)

func numbered(from, n int) (records []Record) {
	for i := range n {
		records = append(records, Record{Event: Begin, ID: uint64(from + i), Egress: egress, Destination: server})
	}
	return records
}

// TestRotation: files that are full are put aside, and the oldest go. All lines of those that stay are
// whole, and in order.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	f := newFile(path, 1, 3)
	const all = 40000
	for from := 1; from <= all; from += 2000 {
		done, lost, err := f.write(t.Context(), numbered(from, 2000))
		require.NoError(t, err)
		require.Equal(t, 2000, done)
		require.Zero(t, lost)
		time.Sleep(2 * time.Millisecond) // files have names by the millisecond
	}
	require.NoError(t, f.close())
	var files []*os.File
	await.True(t, func() bool {
		for _, f := range files {
			require.NoError(t, f.Close())
		}
		var err error
		files, err = openFiles(path)
		require.NoError(t, err)
		return len(files) == 3
	})
	next := uint64(0)
	for _, file := range files {
		defer file.Close()
		info, err := file.Stat()
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(1<<20))
		for _, r := range lines(t, file.Name()) {
			require.True(t, next == 0 || r.ID == next, "%d follows %d", r.ID, next)
			next = r.ID + 1
		}
	}
	require.EqualValues(t, all+1, next)
}

// TestFileRemoved: if another program removes or renames the file, a new one begins.
func TestFileRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	f := newFile(path, 1, 2)
	for i, away := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.Rename(path, path+".1") },
		func() error { return nil },
	} {
		_, _, err := f.write(t.Context(), numbered(1+i, 1))
		require.NoError(t, err)
		require.Equal(t, numbered(1+i, 1), lines(t, path))
		require.NoError(t, away())
	}
	require.NoError(t, f.close())
}

// tornWriter takes so many bytes, and then fails.
type tornWriter struct {
	bytes.Buffer
	room int
}

func (w *tornWriter) Close() error { return nil }

func (w *tornWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	w.room -= n
	w.Buffer.Write(p[:n])
	if n < len(p) {
		return n, unix.ENOSPC
	}
	return n, nil
}

// TestDiskFull: whatever part of the lines was written, each record is there once when there is room
// again, and a torn line disturbs no other.
func TestDiskFull(t *testing.T) {
	records := numbered(1, 5)
	whole := &tornWriter{room: 1 << 20}
	_, _, err := (&file{to: whole}).write(t.Context(), records)
	require.NoError(t, err)
	for room := range whole.Len() {
		w := &tornWriter{room: room}
		f := &file{to: w}
		done, _, err := f.write(t.Context(), records)
		require.ErrorIs(t, err, unix.ENOSPC)
		again := 0
		if done < len(records) {
			w.room = 3 // and a little more
			again, _, err = f.write(t.Context(), records[done:])
			require.ErrorIs(t, err, unix.ENOSPC)
			done += again
		}
		w.room = 1 << 20
		again, _, err = f.write(t.Context(), numbered(1+done, 6-done))
		require.NoError(t, err)
		require.Equal(t, len(records)+1, done+again)
		path := filepath.Join(t.TempDir(), "ledger.jsonl")
		require.NoError(t, os.WriteFile(path, w.Bytes(), 0o600))
		require.Equal(t, numbered(1, 6), lines(t, path), "room for %d bytes", room)
	}
}

// TestTornAtStart: a line that the last agent did not finish disturbs no other.
func TestTornAtStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"event":"beg`), 0o600))
	for range 2 {
		f := newFile(path, 1, 2)
		_, _, err := f.write(t.Context(), numbered(1, 1))
		require.NoError(t, err)
		require.NoError(t, f.close())
	}
	require.Len(t, lines(t, path), 2)
}

// fake is an output that works or not.
type fake struct {
	mu     sync.Mutex
	err    error
	block  chan struct{}
	taken  []Record
	closed bool
}

func (f *fake) write(_ context.Context, records []Record) (int, int, error) {
	f.mu.Lock()
	block := f.block
	f.mu.Unlock()
	if block != nil {
		<-block
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return 0, 0, f.err
	}
	f.taken = append(f.taken, records...)
	return len(records), 0, nil
}

func (f *fake) close() error { f.closed = true; return nil }

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.taken)
}

// runQueue runs a queue. end stops it as the agent does.
func runQueue(t *testing.T, q *queue) (health *cell.SimpleHealth, end func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	stopped, done := make(chan struct{}), make(chan error, 1)
	_, health = cell.NewSimpleHealth()
	go func() { done <- q.run(ctx, health, stopped) }()
	return health, func() error {
		cancel()
		close(stopped)
		return <-done
	}
}

// TestOutputFails: an output that fails is unhealthy, and what it had no room for is counted and told at
// the place. The reader does not wait for it.
func TestOutputFails(t *testing.T) {
	m := newMetrics(func() *bpf.Ledger { return nil })
	for _, waits := range []bool{true, false} {
		out := &fake{err: errors.New("no space left on device")}
		q := newQueue("file", out, waits, m)
		health, end := runQueue(t, q)
		q.add(t.Context(), numbered(1, 10))
		await.True(t, func() bool {
			health.Lock()
			defer health.Unlock()
			return health.Level == cell.StatusDegraded && errors.Is(health.Error, out.err)
		})
		q.add(t.Context(), numbered(11, queueSize-10))
		q.add(t.Context(), numbered(1, 7)) // has no room
		out.fail(nil)
		await.True(t, func() bool { return out.count() == queueSize })
		q.add(t.Context(), numbered(queueSize+8, 1))
		require.NoError(t, end())
		require.True(t, out.closed)
		require.Len(t, out.taken, queueSize+2)
		require.Equal(t, "missing output", events(out.taken[queueSize:])[0])
		require.EqualValues(t, 7, out.taken[queueSize].Count)
	}
}

// TestOutputSlow: the reader waits for an output that is slow, if it is the one that it waits for, and
// loses nothing; else what has no room is lost.
func TestOutputSlow(t *testing.T) {
	m := newMetrics(func() *bpf.Ledger { return nil })
	for _, waits := range []bool{true, false} {
		out := &fake{block: make(chan struct{})}
		q := newQueue("otlp", out, waits, m)
		_, end := runQueue(t, q)
		q.add(t.Context(), numbered(1, queueSize))
		added := make(chan struct{})
		go func() {
			q.add(t.Context(), numbered(queueSize+1, 5))
			close(added)
		}()
		if waits {
			await.True(t, func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return q.room != nil
			})
		} else {
			<-added
		}
		close(out.block)
		<-added
		await.True(t, func() bool { return out.count() >= queueSize })
		if waits {
			require.NoError(t, end())
			require.Len(t, out.taken, queueSize+5)
		} else {
			require.ErrorContains(t, end(), "5 records are lost")
		}
	}
}

// TestOutputFailsAtTheEnd: what cannot be written when the agent stops is lost, and it says how much.
func TestOutputFailsAtTheEnd(t *testing.T) {
	m := newMetrics(func() *bpf.Ledger { return nil })
	out := &fake{err: errors.New("connection refused")}
	q := newQueue("otlp", out, false, m)
	_, end := runQueue(t, q)
	q.add(t.Context(), numbered(1, 10))
	require.EqualError(t, end(), "write the ledger's otlp: 10 records are lost")
}

// TestFileFails: a file that cannot be written makes the module unhealthy, and nothing else: the logs are
// sent.
func TestFileFails(t *testing.T) {
	k, c := newKernel(t, 1<<16), newCollector(t)
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	a := start(t, func() *bpf.Ledger { return &k.Ledger },
		"--ledger-file="+filepath.Join(blocked, "ledger"), "--ledger-otlp-endpoint="+c.URL,
		"--ledger-otlp-insecure")
	a.known()
	require.Contains(t, a.says("record.file", cell.StatusDegraded), "not a directory")
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), 100)
	await.True(t, func() bool { return len(c.received()) == 101 })
	a.says("record", cell.StatusOK)
	require.NoError(t, os.Remove(blocked))
	written(t, filepath.Join(blocked, "ledger"), 101)
	a.says("record.file", cell.StatusOK)
}

// TestOTLP: a server of OpenTelemetry gets each record as a log, after it was out of reach for a while.
func TestOTLP(t *testing.T) {
	k, c := newKernel(t, 1<<16), newCollector(t)
	c.status.Store(http.StatusServiceUnavailable)
	a := start(t, func() *bpf.Ledger { return &k.Ledger }, "--ledger-otlp-endpoint="+c.URL,
		"--ledger-otlp-insecure")
	a.known()
	now := time.Now()
	k.write(raw(bpf.LedgerBegin, now, now), 1)
	k.write(raw(bpf.LedgerReused, now.Add(time.Second), now, func(r *bpf.LedgerRecord) {
		r.Used = uint32(monotonic(now) / 1e9)
	}), 1)
	require.Contains(t, a.says("record.otlp", cell.StatusDegraded), "503 Service Unavailable")
	c.status.Store(0)
	await.True(t, func() bool { return len(c.received()) == 3 })
	a.says("record.otlp", cell.StatusOK)
	require.Equal(t, "gateway-1", c.node)
	received := c.received()
	require.Equal(t, "sluice.ledger.start", received[0].EventName)
	require.Equal(t, "sluice.ledger.begin", received[1].EventName)
	end := received[2]
	require.Equal(t, "sluice.ledger.end", end.EventName)
	require.InDelta(t, now.Add(time.Second).UnixNano(), int64(end.TimeUnixNano), float64(time.Second))
	texts, numbers := map[string]string{}, map[string]int64{}
	for _, attribute := range end.Attributes {
		if text := attribute.Value.GetStringValue(); text != "" {
			texts[attribute.Key] = text
		} else {
			numbers[attribute.Key] = attribute.Value.GetIntValue()
		}
	}
	require.NotEmpty(t, texts["sluice.ledger.began"])
	require.NotEmpty(t, texts["sluice.ledger.last_used"])
	delete(texts, "sluice.ledger.began")
	delete(texts, "sluice.ledger.last_used")
	require.Equal(t, map[string]string{
		"sluice.ledger.reason": "reused", "k8s.namespace.name": "shop", "k8s.pod.name": "web-1",
		"sluice.pod.node": "node-1", "network.transport": "tcp", "source.address": "10.1.0.5",
		"sluice.egress.address": "198.51.100.7", "destination.address": "203.0.113.9",
	}, texts)
	require.NotZero(t, numbers["sluice.ledger.id"])
	delete(numbers, "sluice.ledger.id")
	require.Equal(t, map[string]int64{
		"source.port": 4660, "sluice.egress.port": 40000, "destination.port": 443,
	}, numbers)
}

// TestOTLPRefused: what the server refuses is not sent again, and counted.
func TestOTLPRefused(t *testing.T) {
	c := newCollector(t)
	o, err := newOTLP(Config{LedgerOTLPEndpoint: c.URL}, "node")
	require.NoError(t, err)
	defer o.close()
	partial := protowire.AppendTag(nil, 1, protowire.VarintType)
	partial = protowire.AppendVarint(partial, 3)
	partial = protowire.AppendTag(partial, 2, protowire.BytesType)
	partial = protowire.AppendString(partial, "too old")
	reply := protowire.AppendTag(nil, 1, protowire.BytesType)
	reply = protowire.AppendBytes(reply, partial)
	c.reply.Store(&reply)
	done, lost, err := o.write(t.Context(), numbered(1, 10))
	require.NoError(t, err)
	require.Equal(t, []int{10, 3}, []int{done, lost})

	c.status.Store(http.StatusBadRequest)
	done, lost, err = o.write(t.Context(), numbered(1, 10))
	require.ErrorContains(t, err, "400 Bad Request")
	require.Equal(t, []int{10, 10}, []int{done, lost})

	c.Close()
	done, lost, err = o.write(t.Context(), numbered(1, 10))
	require.ErrorContains(t, err, "send logs of the ledger: ")
	require.Equal(t, []int{0, 0}, []int{done, lost})
	for _, reply := range []string{"", "\x0a", "\x0a\x02\x08", "junk", "\x0a\x00", strings.Repeat("\xff", 20)} {
		require.Zero(t, rejected([]byte(reply)), "%q", reply)
	}
}
