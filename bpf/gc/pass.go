// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// Flags of a pass (bpf/programs/gc.h).
const (
	flagExpired = 1 << iota
	flagOrphans
	flagReleased
	flagAll
	flagRemovals
	flagSurvivors
)

// prepare tells the programs what to do.
func (c *Collector) prepare(f Filter) error {
	control := programsGcControl{Now: f.Now, ReplyGrace: uint32(min(f.ReplyGrace/time.Second, math.MaxUint32))}
	for flag, wanted := range map[uint32]bool{
		flagExpired: f.Expired, flagOrphans: f.Orphans, flagReleased: len(f.Addrs) > 0, flagAll: f.All,
		flagRemovals: f.Removed != nil, flagSurvivors: f.Survivor != nil,
	} {
		if wanted {
			control.Flags |= flag
		}
	}
	if err := c.programs.Variables["control"].Set(control); err != nil {
		return fmt.Errorf("set what to remove: %w", err)
	}
	return c.setReleased(f.Addrs)
}

// setReleased puts the addresses in the place of former ones.
func (c *Collector) setReleased(addrs []netip.Addr) error {
	m := c.programs.Maps[releasedMap]
	if room := m.MaxEntries(); len(addrs) > int(room) {
		return fmt.Errorf("%d addresses to remove are too many for %s: want %d at most",
			len(addrs), releasedMap, room)
	}
	for _, a := range c.released {
		if err := m.Delete(a); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove address %s from %s: %w", a, releasedMap, err)
		}
	}
	c.released = c.released[:0]
	for _, addr := range addrs {
		a := bpf.AddressFrom(addr)
		if err := m.Put(a, uint32(0)); err != nil {
			return fmt.Errorf("add address %s to %s: %w", addr, releasedMap, err)
		}
		c.released = append(c.released, a)
	}
	return nil
}

// pass goes through one map, and does a step with the counts of what pods have.
func (c *Collector) pass(
	ctx context.Context, index int, method Method, step uint32, f Filter,
) (Pass, error) {
	p := Pass{Map: names[index], Method: method}
	begun := time.Now()
	if err := c.reset(step); err != nil {
		return p, err
	}
	through := c.iterate
	if method == Keys {
		through = c.byKey
	}
	if err := through(ctx, index, &p, f); err != nil {
		return p, err
	}
	p.Duration = time.Since(begun)
	return p, c.fill(&p)
}

func (c *Collector) reset(step uint32) error {
	v := c.programs.Variables
	err := errors.Join(v["counts"].Set(programsGcCounts{}), v["run"].Set(programsGcRun{Step: step}))
	if err != nil {
		return fmt.Errorf("reset the counts of a pass: %w", err)
	}
	return nil
}

func (c *Collector) counts() (counts programsGcCounts, err error) {
	if err := c.programs.Variables["counts"].Get(&counts); err != nil {
		return counts, fmt.Errorf("read the counts of a pass: %w", err)
	}
	return counts, nil
}

// fill sets the counts of a pass.
func (c *Collector) fill(p *Pass) error {
	n, err := c.counts()
	if err != nil {
		return err
	}
	p.Scanned, p.Expired, p.Translations, p.Orphans = n.Scanned, n.Expired, n.Translations, n.Orphans
	p.Released, p.Flushed, p.Condemned = n.Released, n.Flushed, n.Condemned
	p.Kept, p.Revived, p.Deferred, p.Failed = n.Kept, n.Revived, n.Deferred, n.Failed
	p.NextExpiry = n.NextExpiry
	p.LongestRun = max(p.LongestRun, time.Duration(n.LongestRun))
	return nil
}

// iterate reads the iterator of a map. It writes eight bytes when a run of the
// kernel is to end, which it does when that fills the reader's buffer.
func (c *Collector) iterate(ctx context.Context, index int, p *Pass, f Filter) error {
	opened, err := c.iterators[index].Open()
	if err != nil {
		return fmt.Errorf("open iterator of map %s: %w", p.Map, err)
	}
	defer opened.Close()
	fd := int(opened.(*os.File).Fd())
	buffer := make([]byte, 8)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Read(fd, buffer)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("read iterator of map %s: %w", p.Map, err)
		}
		if err := c.drain(f); err != nil {
			return err
		}
		if n == 0 && err == nil {
			return nil
		}
	}
}

// drain hands on what the programs have told.
func (c *Collector) drain(f Filter) error {
	var record ringbuf.Record
	for c.events.AvailableBytes() > 0 {
		switch err := c.events.ReadInto(&record); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("read events of removals: %w", err)
		}
		e, err := decodeEvent(record.RawSample)
		if err != nil {
			return err
		}
		if e.Reason == "" {
			f.Survivor(e)
		} else if f.Removed != nil {
			f.Removed(e)
		}
	}
	return nil
}
