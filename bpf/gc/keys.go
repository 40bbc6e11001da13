// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// Flush removes the connections that are chosen, also those in use, with their
// translations: a pod that goes on sending begins them anew. Each is chosen by
// what it was when its map was read. removed, if not nil, is called once for each
// entry that is removed, of connections and translations, with its final value.
//
// To remove all connections, or those of some addresses, [Collector.Run] is faster.
func (c *Collector) Flush(
	ctx context.Context, chosen func(Entry) bool, removed func(Entry),
) (passes []Pass, err error) {
	f := Filter{All: true, Removed: removed}
	if err := c.prepare(f); err != nil {
		return nil, err
	}
	for i, m := range c.maps[:indexNAT4] {
		if m == nil {
			continue
		}
		p, err := c.flush(ctx, i, f, chosen)
		passes = append(passes, p)
		if err != nil {
			return passes, fmt.Errorf("flush map %s: %w", names[i], err)
		}
	}
	return passes, nil
}

// flush removes the chosen connections of one map.
func (c *Collector) flush(ctx context.Context, index int, f Filter, chosen func(Entry) bool) (Pass, error) {
	p := Pass{Map: names[index], Method: Keys}
	if err := c.reset(stepNone); err != nil {
		return p, err
	}
	begun := time.Now()
	scanned := uint64(0)
	remove := func(key []byte, e Entry) error {
		scanned++
		if e.CT.Lifetime == 0 || !chosen(e) {
			return nil
		}
		// A packet that refreshes the connection at the same moment keeps the program from
		// removing it: then it is tried again.
		for {
			if err := ctx.Err(); err != nil {
				return err
			}
			before, err := c.counts()
			if err != nil {
				return err
			}
			if err := c.look(index, key, f); err != nil {
				return err
			}
			after, err := c.counts()
			if err != nil || after.Flushed > before.Flushed || after.Revived == before.Revived {
				return err
			}
		}
	}
	var err error
	m := c.maps[index]
	if index == indexCT4TCP || index == indexCT4Any {
		err = eachEntry(ctx, m, &p, func(k ctmap.Key4, v ctmap.Entry) error {
			return remove(bytesOf(&k), connection(k.Tuple(), v, ""))
		})
	} else {
		err = eachEntry(ctx, m, &p, func(k ctmap.Key6, v ctmap.Entry) error {
			return remove(bytesOf(&k), connection(k.Tuple(), v, ""))
		})
	}
	p.Duration = time.Since(begun)
	err = errors.Join(err, c.fill(&p))
	p.Scanned = scanned
	return p, err
}

// byKey reads a map in batches, and has the program look at one entry after another.
func (c *Collector) byKey(ctx context.Context, index int, p *Pass, f Filter) error {
	m, look := c.maps[index], func(key []byte) error { return c.look(index, key, f) }
	switch index {
	case indexCT4TCP, indexCT4Any:
		return eachEntry(ctx, m, p, func(k ctmap.Key4, _ ctmap.Entry) error { return look(bytesOf(&k)) })
	case indexCT6TCP, indexCT6Any:
		return eachEntry(ctx, m, p, func(k ctmap.Key6, _ ctmap.Entry) error { return look(bytesOf(&k)) })
	case indexNAT4:
		return eachEntry(ctx, m, p, func(k natmap.Key4, _ natmap.Entry4) error { return look(bytesOf(&k)) })
	case indexShares:
		return eachEntry(ctx, m, p, func(k bpf.ShareKey, _ bpf.ShareValue) error { return look(bytesOf(&k)) })
	case indexPorts:
		return eachEntry(ctx, m, p, func(k bpf.PortKey, _ bpf.ShareValue) error { return look(bytesOf(&k)) })
	}
	return eachEntry(ctx, m, p, func(k natmap.Key6, _ natmap.Entry6) error { return look(bytesOf(&k)) })
}

// look has the program look at one entry.
func (c *Collector) look(index int, key []byte, f Filter) error {
	candidate := c.programs.Variables["candidate"]
	buffer := make([]byte, candidate.Size())
	copy(buffer, key)
	if err := candidate.Set(buffer); err != nil {
		return fmt.Errorf("set which entry of map %s to look at: %w", names[index], err)
	}
	program := c.programs.Programs[programName(keyPrefix, index)]
	if _, err := program.Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("look at an entry of map %s: %w", names[index], err)
	}
	return c.drain(f)
}

// bytesOf returns the memory of a struct without pointers.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// batch is how many entries are read at once: more than a bucket of the kernel's
// hash table ever has.
const batch = 1024

// eachEntry calls a function for all entries of a map.
func eachEntry[K, V any](ctx context.Context, m *ebpf.Map, p *Pass, do func(K, V) error) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		begun := time.Now()
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		p.LongestRun = max(p.LongestRun, time.Since(begun))
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if errors.Is(err, unix.ENOSPC) { // a bucket has more
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(values))
			continue
		}
		if err != nil && !last {
			return fmt.Errorf("read entries: %w", err)
		}
		for i := range n {
			if err := do(keys[i], values[i]); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
}
