// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
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
		Source: netip.AddrPortFrom(
			netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
			40000,
		),
		Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 80),
		Protocol:    unix.IPPROTO_TCP,
	}
}

// gcEgress is what it leaves with.
func gcEgress(i int) netip.AddrPort {
	return netip.AddrPortFrom(
		netip.AddrFrom4([4]byte{198, 18, byte(i >> 22), byte(i >> 14)}), uint16(1024+i&(1<<14-1)),
	)
}

// gcReplies is the tuple of the replies to it.
func gcReplies(i int) ctmap.Tuple {
	t := gcFlow(i)
	return ctmap.Tuple{
		Source:      t.Destination,
		Destination: gcEgress(i),
		Protocol:    t.Protocol,
		Flags:       ctmap.In,
	}
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
	var flows, tuples []ctmap.Tuple
	var connections []ctmap.Entry
	var translations []natmap.Entry4
	used := m.now - gcEnded
	for i := range m.entries {
		if !chosen(i) {
			continue
		}
		e := ctmap.Entry{Lifetime: m.now + gcAlive, Packets: 10, Bytes: 1000, Created: m.now - gcEnded}
		if endedAt(i, m.percent) {
			e.Lifetime = m.now - gcEnded
		}
		flows, connections = append(flows, gcFlow(i)), append(connections, e)
		if m.NAT4 == nil {
			continue
		}
		tuples = append(tuples, gcFlow(i), gcReplies(i))
		for _, to := range []netip.AddrPort{gcEgress(i), gcFlow(i).Source} {
			translations = append(translations, natmap.Entry4{
				Created: uint64(used) * 1e9, NeedsCT: 1, Used: used, Addr: to.Addr().As4(),
				Port: ctmap.PortFrom(to.Port()),
			})
		}
	}
	return errors.Join(
		put(m.CT4TCP, flows, ctmap.NewKey4, connections),
		put(m.NAT4, tuples, natmap.NewKey4, translations),
	)
}

// put writes entries of a map at once.
func put[K, V any](m *ebpf.Map, tuples []ctmap.Tuple, keyOf func(ctmap.Tuple) K, values []V) error {
	if len(tuples) == 0 {
		return nil
	}
	keys := make([]K, len(tuples))
	for i, t := range tuples {
		keys[i] = keyOf(t)
	}
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("fill map: %w", err)
	}
	return nil
}

// age has so many in a hundred of the connections end, and all others be alive.
func (m *gcMaps) age(percent int) error {
	touched := max(m.percent, percent)
	m.percent = percent
	return m.fill(func(i int) bool { return endedAt(i, touched) })
}
