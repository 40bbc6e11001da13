// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// Seconds from now, or since: long enough for a run of the benchmark.
const (
	gcAlive = 1 << 20
	gcEnded = 100
)

// gcFlow is one of 16 million TCP connections.
func gcFlow(i int) ctmap.Tuple {
	return ctmap.Tuple{
		Source:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 40000),
		Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 80),
		Protocol:    unix.IPPROTO_TCP,
	}
}

// gcEgress is what it leaves with.
func gcEgress(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 22), byte(i >> 14)}), uint16(1024+i&(1<<14-1)))
}

// gcReplies is the tuple of the replies to it.
func gcReplies(i int) ctmap.Tuple {
	t := gcFlow(i)
	return ctmap.Tuple{Source: t.Destination, Destination: gcEgress(i), Protocol: t.Protocol, Flags: ctmap.In}
}

// gcMaps are maps of connections, and of their translations where they have any.
type gcMaps struct {
	gc.Maps
	entries int
	percent int // of them that have ended
	now     uint32
}

// newGCMaps makes maps and fills them.
func newGCMaps(c gcCase) (*gcMaps, error) {
	m := &gcMaps{entries: c.entries}
	ct, err := ctmap.Create(ctmap.CT4TCP, uint32(c.room))
	if err != nil {
		return nil, err
	}
	m.CT4TCP = ct.Kernel()
	if c.pairs {
		nat, err := natmap.Create(natmap.Name4, uint32(2*c.room))
		if err != nil {
			m.close()
			return nil, err
		}
		m.NAT4 = nat.Kernel()
	}
	if m.now, err = gc.Now(); err == nil {
		err = m.fill(func(int) bool { return true })
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *gcMaps) close() {
	m.CT4TCP.Close()
	m.NAT4.Close()
}

// endedAt reports whether a connection is one of so many in a hundred, in no order.
func endedAt(i, percent int) bool { return int(uint64(i)*7919%100) < percent }

// expired is how many have.
func (m *gcMaps) expired() (n int) {
	for i := range m.entries {
		if endedAt(i, m.percent) {
			n++
		}
	}
	return n
}

// fill writes the connections that are chosen.
func (m *gcMaps) fill(chosen func(i int) bool) error {
	connections := newBatch[ctmap.Key4, ctmap.Entry](m.CT4TCP)
	translations := newBatch[natmap.Key4, natmap.Entry4](m.NAT4)
	used := m.now - gcEnded
	for i := range m.entries {
		if !chosen(i) {
			continue
		}
		flow := gcFlow(i)
		e := ctmap.Entry{Lifetime: m.now + gcAlive, Packets: 10, Bytes: 1000, Created: m.now - gcEnded}
		if endedAt(i, m.percent) {
			e.Lifetime = m.now - gcEnded
		}
		if err := connections.put(ctmap.NewKey4(flow), e); err != nil {
			return err
		}
		if m.NAT4 == nil {
			continue
		}
		for _, t := range []struct {
			ctmap.Tuple
			to netip.AddrPort
		}{{flow, gcEgress(i)}, {gcReplies(i), flow.Source}} {
			n := natmap.Entry4{Created: uint64(used) * 1e9, NeedsCT: 1, Used: used, Addr: t.to.Addr().As4(), Port: ctmap.PortFrom(t.to.Port())}
			if err := translations.put(natmap.NewKey4(t.Tuple), n); err != nil {
				return err
			}
		}
	}
	if err := connections.flush(); err != nil || m.NAT4 == nil {
		return err
	}
	return translations.flush()
}

// age has so many in a hundred of the connections end, and all others be alive.
func (m *gcMaps) age(percent int) error {
	touched := max(m.percent, percent)
	m.percent = percent
	return m.fill(func(i int) bool { return endedAt(i, touched) })
}

// batch writes entries of a map, many at once.
type batch[K, V any] struct {
	m      *ebpf.Map
	keys   []K
	values []V
}

func newBatch[K, V any](m *ebpf.Map) *batch[K, V] {
	const size = 16 << 10
	return &batch[K, V]{m, make([]K, 0, size), make([]V, 0, size)}
}

func (b *batch[K, V]) put(k K, v V) error {
	b.keys, b.values = append(b.keys, k), append(b.values, v)
	if len(b.keys) < cap(b.keys) {
		return nil
	}
	return b.flush()
}

func (b *batch[K, V]) flush() error {
	if len(b.keys) == 0 {
		return nil
	}
	if _, err := b.m.BatchUpdate(b.keys, b.values, nil); err != nil {
		return fmt.Errorf("fill map: %w", err)
	}
	b.keys, b.values = b.keys[:0], b.values[:0]
	return nil
}
