// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-net/sluice/cmd/lab"
)

// sample is what one arm came to in one round.
type sample struct {
	rate     float64       // in the unit of the measure, a second
	sent     float64       // datagrams a second
	p50, p99 time.Duration // of a request and its response
	packets  uint64        // that the server is known to have got
	busy     float64       // share of the machine's CPU time, by whomever
}

// workload is a kind of traffic.
type workload struct {
	name     string
	unit     string // of the rate
	answered bool   // something goes back
	run      func(ctx context.Context, from *lab.Namespace, to netip.Addr, s *sink, window time.Duration) (sample, error)
}

var workloads = []workload{
	{"TCP, 1 stream", "Gbit/s", true, func(ctx context.Context, from *lab.Namespace, to netip.Addr, s *sink, window time.Duration) (sample, error) {
		return bulk(ctx, from, to, s, window, 1)
	}},
	{"TCP, 4 streams", "Gbit/s", true, func(ctx context.Context, from *lab.Namespace, to netip.Addr, s *sink, window time.Duration) (sample, error) {
		return bulk(ctx, from, to, s, window, 4)
	}},
	{"TCP request/response", "transactions/s", true, transactions},
	{"UDP, 64 bytes", "packets/s", false, datagrams},
}

// warmUp is how much longer than its window an arm runs before it.
func warmUp(window time.Duration) time.Duration { return min(window/4, 500*time.Millisecond) }

// during waits for the warm-up, and returns how much counters grow by a second of
// the window after it, and how busy the CPUs were.
func during(ctx context.Context, window time.Duration, counters ...*atomic.Int64) (rates []float64, busy float64, err error) {
	if err := sleep(ctx, warmUp(window)); err != nil {
		return nil, 0, err
	}
	before := make([]int64, len(counters))
	cpu, start := cpuTimes(), time.Now()
	for i, c := range counters {
		before[i] = c.Load()
	}
	if err := sleep(ctx, window); err != nil {
		return nil, 0, err
	}
	seconds := time.Since(start).Seconds()
	for i, c := range counters {
		rates = append(rates, float64(c.Load()-before[i])/seconds)
	}
	return rates, cpuTimes().busySince(cpu), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// bulk sends by some connections as much as they take. The rate is that of the
// server's reading.
func bulk(ctx context.Context, from *lab.Namespace, to netip.Addr, s *sink, window time.Duration, streams int) (sample, error) {
	var (
		stop    atomic.Bool
		senders sync.WaitGroup
		failed  = make(chan error, streams)
		conns   []*socket
	)
	end := func() {
		stop.Store(true)
		senders.Wait()
		for _, conn := range conns {
			conn.close()
		}
	}
	for range streams {
		conn, err := dial(ctx, from, to, askBulk)
		if err != nil {
			end()
			return sample{}, err
		}
		conns = append(conns, conn)
		senders.Go(func() {
			for buffer := make([]byte, bulkBuffer); !stop.Load(); {
				if _, err := conn.Write(buffer); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	rates, busy, err := during(ctx, window, &s.bytes)
	end()
	select {
	case failure := <-failed:
		err = errors.Join(err, failure)
	default:
	}
	if err != nil {
		return sample{}, err
	}
	return sample{rate: rates[0] * 8 / 1e9, busy: busy, packets: 1}, nil
}

// transactions sends one byte and waits for one, again and again.
func transactions(ctx context.Context, from *lab.Namespace, to netip.Addr, _ *sink, window time.Duration) (sample, error) {
	conn, err := dial(ctx, from, to, askEcho)
	if err != nil {
		return sample{}, err
	}
	defer conn.close()
	var (
		b     [1]byte
		times = make([]time.Duration, 0, 1<<16)
		cpu   cpuTime
		start = time.Now()
		begin = start.Add(warmUp(window))
		end   = begin.Add(window)
		warm  bool
	)
	for last := start; last.Before(end) || len(times) == 0; { // one at least, on a busy machine
		if !warm && !last.Before(begin) {
			warm, start, cpu = true, last, cpuTimes()
			last = time.Now()
		}
		if err := ctx.Err(); err != nil {
			return sample{}, err
		}
		if _, err := conn.Write(b[:]); err != nil {
			return sample{}, err
		}
		if _, err := conn.Read(b[:]); err != nil {
			return sample{}, err
		}
		now := time.Now()
		if warm {
			times = append(times, now.Sub(last))
		}
		last = now
	}
	took, busy := time.Since(start), cpuTimes().busySince(cpu)
	slices.Sort(times)
	return sample{
		rate: float64(len(times)) / took.Seconds(), busy: busy, packets: uint64(len(times)),
		p50: times[len(times)/2], p99: times[len(times)*99/100],
	}, nil
}

// datagrams sends small datagrams by one socket as fast as it can. The rate is that
// of those which the server has read.
func datagrams(ctx context.Context, from *lab.Namespace, to netip.Addr, s *sink, window time.Duration) (sample, error) {
	conn, err := from.Dial(ctx, "udp", netip.AddrPortFrom(to, sinkPort))
	if err != nil {
		return sample{}, err
	}
	defer conn.Close()
	var (
		stop   atomic.Bool
		sender sync.WaitGroup
		sent   atomic.Int64
		last   error
		first  = s.datagrams.Load()
	)
	sender.Go(func() {
		for buffer := make([]byte, datagramSize); !stop.Load(); {
			if _, err := conn.Write(buffer); err != nil {
				last = err
				continue
			}
			sent.Add(1)
		}
	})
	var rates []float64
	var busy float64
	arrived := s.await(ctx, nil, func() bool { return s.datagrams.Load() > first })
	if arrived {
		rates, busy, err = during(ctx, window, &s.datagrams, &sent)
	}
	got := s.datagrams.Load() - first
	stop.Store(true)
	sender.Wait()
	switch {
	case !arrived:
		return sample{}, errors.Join(errors.New("no datagram arrived"), last)
	case err != nil:
		return sample{}, err
	}
	if err := s.drain(ctx, conn); err != nil {
		return sample{}, err
	}
	return sample{rate: rates[0], sent: rates[1], busy: busy, packets: uint64(got)}, nil
}

// drain waits until the server has read what was on its way, so that this is not
// taken for the next arm's: it ends with marks, as a server that reads nothing for a
// moment may just not be scheduled.
func (s *sink) drain(ctx context.Context, conn net.Conn) error {
	first, last := s.marks.Load(), int64(-1)
	read := s.await(ctx, func() { _, _ = conn.Write(make([]byte, markSize)) }, func() bool {
		before := last
		last = s.datagrams.Load()
		return s.marks.Load() > first && last == before
	})
	if !read {
		return errors.New("the server does not read the end of the datagrams")
	}
	return nil
}

// await waits until something is so, and does something before each look.
func (s *sink) await(ctx context.Context, do func(), is func() bool) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if do != nil {
			do()
		}
		if is() {
			return true
		}
	}
	return false
}

// cpuTime is that of all CPUs since the start of the machine, in ticks.
type cpuTime struct{ idle, all uint64 }

// cpuTimes returns zero if it cannot be read.
func cpuTimes() (t cpuTime) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	line, _, _ := strings.Cut(string(data), "\n")
	const user, idle, wait, steal = 1, 4, 5, 8 // fields; what follows is contained in others
	for i, field := range strings.Fields(line) {
		ticks, _ := strconv.ParseUint(field, 10, 64) // 0 of the name
		if i < user || i > steal {
			continue
		}
		t.all += ticks
		if i == idle || i == wait {
			t.idle += ticks
		}
	}
	return t
}

func (t cpuTime) busySince(before cpuTime) float64 {
	if t.all == before.all {
		return 0
	}
	return 1 - float64(t.idle-before.idle)/float64(t.all-before.all)
}

// errPath says that traffic did not go the way that is measured.
var errPath = errors.New("traffic did not take its way")

func wrongSource(want netip.Addr, got []netip.Addr) error {
	return fmt.Errorf("%w: the server saw %v, not %s", errPath, got, want)
}
