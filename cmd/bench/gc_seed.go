// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// seedBatch is how many entries the seed system reads at once.
const seedBatch = 1024

// collectSeed goes through a map of connections, and one of translations if there
// is one, in the way of the seed system.
func collectSeed(ct, nat *ebpf.Map, now uint32) (r gcRun, err error) {
	begun := threadTime()
	err = eachBatched(ct, &r.longest, func(k *ctmap.Key4, e *ctmap.Entry) error {
		r.scanned++
		if e.Lifetime >= now {
			return nil
		}
		if err := gone(ct.Delete(k)); err != nil {
			return err
		}
		r.removed++
		if nat == nil {
			return nil
		}
		return forgetSeed(nat, k)
	})
	if err == nil && nat != nil {
		err = eachBatched(
			nat,
			&r.longest,
			func(k *natmap.Key4, e *natmap.Entry4) error { return orphanSeed(ct, nat, k, e) },
		)
	}
	r.cpu = threadTime() - begun
	return r, err
}

// forgetSeed removes both translations of a connection. Its key has the addresses
// in the other order.
func forgetSeed(nat *ebpf.Map, ct *ctmap.Key4) error {
	key := natmap.Key4{
		DestAddr:   ct.SourceAddr,
		SourceAddr: ct.DestAddr,
		DestPort:   ct.DestPort,
		SourcePort: ct.SourcePort,
		Protocol:   ct.Protocol,
	}
	var to natmap.Entry4
	if err := nat.Lookup(&key, &to); err != nil {
		return gone(err)
	}
	replies := natmap.Key4{
		SourceAddr: key.DestAddr, SourcePort: key.DestPort, DestAddr: to.Addr, DestPort: to.Port,
		Protocol: key.Protocol, Flags: ctmap.In,
	}
	return errors.Join(gone(nat.Delete(&key)), gone(nat.Delete(&replies)))
}

// orphanSeed removes a translation without connection.
func orphanSeed(ct, nat *ebpf.Map, k *natmap.Key4, e *natmap.Entry4) error {
	if e.NeedsCT == 0 {
		return nil
	}
	flow := ctmap.Key4{ // with addresses swapped, as keys of connections have them
		DestAddr: k.SourceAddr, SourceAddr: k.DestAddr, DestPort: k.DestPort, SourcePort: k.SourcePort, Protocol: k.Protocol,
	}
	if k.Flags&ctmap.In != 0 {
		flow = ctmap.Key4{
			DestAddr:   e.Addr,
			SourceAddr: k.SourceAddr,
			DestPort:   k.SourcePort,
			SourcePort: e.Port,
			Protocol:   k.Protocol,
		}
	}
	var found ctmap.Entry
	err := ct.Lookup(&flow, &found)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return gone(nat.Delete(k))
	}
	return err
}

// gone is an error of a deletion, or nil where there was nothing any more.
func gone(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// eachBatched reads a map in batches.
func eachBatched[K, V any](m *ebpf.Map, longest *time.Duration, do func(*K, *V) error) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, seedBatch), make([]V, seedBatch)
	for {
		begun := threadTime()
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		*longest = max(*longest, threadTime()-begun)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return fmt.Errorf("read entries: %w", err)
		}
		for i := range n {
			if err := do(&keys[i], &values[i]); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
}

// threadTime returns the CPU time of the thread, to which the caller is locked: so
// that what is measured is not what others do meanwhile.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
