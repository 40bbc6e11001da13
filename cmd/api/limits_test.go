// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// serveLimited serves the API with limits that a test need not wait for long.
func (f *fixture) serveLimited(t *testing.T, change func(*limits)) string {
	change(f.limits)
	return strings.TrimPrefix(f.serve(t), "http://")
}

// refused returns how many requests were refused for a reason.
func (f *fixture) refused(reason string) int { return refusals(f.limits)[reason] }

// refusals returns the count of each reason.
func refusals(l *limits) map[string]int {
	r := prometheus.NewRegistry()
	r.MustRegister(l.refused)
	families, err := r.Gather()
	if err != nil {
		panic(err)
	}
	counts := map[string]int{}
	for _, family := range families {
		for _, m := range family.Metric {
			counts[m.Label[0].GetValue()] = int(m.Counter.GetValue())
		}
	}
	return counts
}

// dial opens a connection that takes in little that it has not read.
func dial(t *testing.T, address string) net.Conn {
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	return conn
}

// grow makes the table of fruits one of many MB.
func (f *fixture) grow(t *testing.T, rows int) {
	wtxn := f.db.WriteTxn(f.fruits)
	defer wtxn.Abort()
	for i := range rows {
		_, _, err := f.fruits.Insert(wtxn, &fruit{fmt.Sprint("fruit-", i), netip.MustParsePrefix("10.3.0.0/16"), strings.Repeat("x", 1000)})
		require.NoError(t, err)
	}
	wtxn.Commit()
}

// A client that does not read what it asked for is cut off, and its slot is free again.
func TestSlowReaders(t *testing.T) {
	f := newFixture(t)
	f.grow(t, 20_000)
	address := f.serveLimited(t, func(l *limits) { l.writeTimeout = 100 * time.Millisecond })
	paths := []string{
		"/statedb/dump/fruits", "/statedb/dump", "/tables/fruits", "/tables/fruits?format=json",
		"/statedb/changes/fruits", "/tables/fruits?watch=true",
	}
	for _, path := range paths {
		fmt.Fprintf(dial(t, address), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	}
	await.True(t, func() bool { return f.refused(refusedSlow) == len(paths) })
	await.True(t, func() bool {
		return len(f.limits.dumps.slots)+len(f.limits.streams.slots) == 0
	})
}

// A client that always reads a little does not keep a slot forever, nor rows that are deleted
// before it has them.
func TestReaderThatNeverEnds(t *testing.T) {
	for _, path := range []string{
		"/statedb/dump/fruits", "/statedb/changes/fruits", "/statedb/changes/fruits?cells=true",
		"/tables/fruits?watch=true",
	} {
		t.Run(path, func(t *testing.T) { testReaderThatNeverEnds(t, path) })
	}
}

func testReaderThatNeverEnds(t *testing.T, path string) {
	f := newFixture(t)
	f.grow(t, 20_000)
	address := f.serveLimited(t, func(l *limits) {
		l.longest, l.writeTimeout = 200*time.Millisecond, time.Hour
	})
	conn := dial(t, address)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 16); ; {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			time.Sleep(time.Millisecond) // it is this client's way
		}
	}()
	await.True(t, func() bool {
		return f.refused(refusedSlow) == 1 && len(f.limits.dumps.slots)+len(f.limits.streams.slots) == 0
	})
	conn.Close()
	<-done
}

// A body that does not end, in any sense, is not waited for.
func TestBodiesWithoutEnd(t *testing.T) {
	f, patient := newFixture(t), newFixture(t)
	address := f.serveLimited(t, func(l *limits) { l.readTimeout = 100 * time.Millisecond })
	request := func(address, head string) (net.Conn, *bufio.Reader) {
		conn := dial(t, address)
		fmt.Fprintf(conn, "%s\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", head)
		return conn, bufio.NewReader(conn)
	}

	_, answer := request(address, "GET /statedb/query HTTP/1.1")
	resp, err := http.ReadResponse(answer, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestTimeout, resp.StatusCode)
	require.Equal(t, 1, f.refused(refusedBody))

	conn, answer := request(patient.serveLimited(t, func(*limits) {}), "GET /statedb/query HTTP/1.1")
	go func() {
		chunk := "1000\r\n" + strings.Repeat(" ", 0x1000) + "\r\n"
		for { // until the server closes
			if _, err := io.WriteString(conn, chunk); err != nil {
				return
			}
		}
	}()
	resp, err = http.ReadResponse(answer, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	require.Equal(t, 1, patient.refused(refusedBody))

	// Those that want no body do not read it, and end all the same.
	_, answer = request(address, "GET /healthz HTTP/1.1")
	resp, err = http.ReadResponse(answer, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	io.Copy(io.Discard, answer) // ends when the server closes
}

// A question with a body may take longer than the body was allowed to.
func TestBodyIsNoDeadlineForTheAnswer(t *testing.T) {
	l := newLimits()
	l.readTimeout = 50 * time.Millisecond
	srv := httptest.NewServer(guard(slog.New(slog.DiscardHandler), l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-time.After(4 * l.readTimeout):
			io.WriteString(w, "done")
		}
	})))
	defer srv.Close()
	resp, err := http.Post(srv.URL, "text/plain", strings.NewReader("body"))
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "done", string(text))
}

// A thousand dumps at once: some are answered, the others are told to come again,
// and what the agent holds meanwhile does not grow with their number.
func TestThousandDumps(t *testing.T) {
	const clients, rows = 1000, 5000
	const size = rows * 1000
	f := newFixture(t)
	f.grow(t, rows)
	url := "http://" + f.serveLimited(t, func(l *limits) { l.dumps.wait = 50 * time.Millisecond }) + "/statedb/dump/fruits"
	before := heap()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var mu sync.Mutex
	answers := map[int]int{}
	most := uint64(0)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			resp, err := client.Get(url)
			if err != nil {
				t.Error(err)
				return
			}
			n, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			answers[resp.StatusCode]++
			switch {
			case resp.StatusCode == http.StatusOK && (err != nil || n < size):
				t.Errorf("a dump was cut short after %d bytes: %v", n, err)
			case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "":
				t.Error("no Retry-After")
			}
			if len(answers) > 0 && (answers[http.StatusOK]+answers[http.StatusServiceUnavailable])%100 == 0 {
				most = max(most, heap())
			}
		})
	}
	all.Wait()
	require.Equal(t, clients, answers[http.StatusOK]+answers[http.StatusServiceUnavailable], answers)
	require.GreaterOrEqual(t, answers[http.StatusOK], maxDumps)
	require.NotZero(t, answers[http.StatusServiceUnavailable])
	require.Equal(t, answers[http.StatusServiceUnavailable], f.refused("dumps"))
	require.Less(t, int64(most)-int64(before), int64(20*size), "of %d dumps of %d MB", clients, size>>20)
}

// heap returns the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Each kind of request has a limit, and leaves its slot.
func TestLimitsOfKinds(t *testing.T) {
	f := newFixture(t)
	var err error
	f.flow, err = newDataflow(params{})
	require.NoError(t, err)
	for _, l := range []*limit{f.limits.dumps, f.limits.questions, f.limits.scrapes} {
		l.wait = time.Millisecond
	}
	for path, l := range map[string]*limit{
		"/statedb/dump": f.limits.dumps, "/statedb/dump/fruits": f.limits.dumps, "/tables/fruits": f.limits.dumps, "/tables/fruits?format=json": f.limits.dumps,
		"/status": f.limits.questions, "/statedb/query": f.limits.questions, "/rules": f.limits.questions,
		"/explain/policy": f.limits.questions, "/explain/egress": f.limits.questions,
		"/graph": f.limits.questions, "/trace": f.limits.questions, "/statedb/changes/fruits?cells=true": f.limits.streams,
		"/metrics": f.limits.scrapes, "/statedb/changes/fruits": f.limits.streams, "/tables/fruits?watch=true": f.limits.streams,
	} {
		for range cap(l.slots) {
			l.slots <- struct{}{}
		}
		before := f.refused(l.kind)
		status, body := f.get(path)
		require.Equal(t, http.StatusServiceUnavailable, status, path)
		require.Contains(t, body, "as many "+l.kind+" as there may be", path)
		require.Equal(t, before+1, f.refused(l.kind), path)
		for len(l.slots) > 0 {
			<-l.slots
		}
		if l != f.limits.streams {
			f.get(path)
			require.Empty(t, l.slots, path)
		}
	}
	for _, path := range []string{"/healthz", "/version", "/tables"} { // probes pass whatever there is
		status, _ := f.get(path)
		require.Equal(t, http.StatusOK, status, path)
	}
}

// Who waits for a slot and leaves does not get one.
func TestLimitWaits(t *testing.T) {
	l := &limit{"dumps", make(chan struct{}, 1), time.Minute}
	require.True(t, l.acquire(t.Context()))
	got := make(chan bool)
	go func() { got <- l.acquire(t.Context()) }()
	l.release()
	require.True(t, <-got)
}

func TestLimitMetrics(t *testing.T) {
	l := newLimits()
	l.streams.slots <- struct{}{}
	r := prometheus.NewRegistry()
	r.MustRegister(l)
	families, err := r.Gather()
	require.NoError(t, err)
	requests := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "sluice_api_requests" {
			for _, m := range family.Metric {
				requests[m.Label[0].GetValue()] = m.Gauge.GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{"dumps": 0, "questions": 0, "scrapes": 0, "streams": 1}, requests)
	require.Len(t, refusals(l), 8, "all reasons, before the first of each")
}
