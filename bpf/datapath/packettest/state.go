// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// Tuple is a key of the connection tracking and NAT maps.
type Tuple struct {
	Daddr, Saddr netip.Addr
	Dport, Sport uint16
	Protocol     uint8
	Flags        uint8
}

// Flags of a [Tuple].
const (
	Out            uint8 = 0
	In             uint8 = 1
	Related        uint8 = 2
	ThroughService uint8 = 4 // to what a service has led to
)

func (t Tuple) key() []byte {
	b := append(t.Daddr.AsSlice(), t.Saddr.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, t.Dport)
	b = binary.BigEndian.AppendUint16(b, t.Sport)
	return append(b, t.Protocol, t.Flags)
}

func tupleFrom(b []byte) Tuple {
	n := (len(b) - 6) / 2
	var t Tuple
	t.Daddr, _ = netip.AddrFromSlice(b[:n])
	t.Saddr, _ = netip.AddrFromSlice(b[n : 2*n])
	b = b[2*n:]
	t.Dport, t.Sport, t.Protocol, t.Flags = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[4], b[5]
	return t
}

// Connection is the value of a connection tracking map.
type Connection struct {
	Gateway          bpf.Address
	Packets, Bytes   uint64
	Lifetime         uint32 // seconds of the monotonic clock
	Flags            uint16
	ReverseNATIndex  [2]byte
	IfIndex          uint16
	TxSeen, RxSeen   uint8
	SourceSecurityID uint32
	LastTx, LastRx   uint32
	Generation       uint32
	Cookie           uint32
	Created          uint32
	Reserved         uint32
}

// Flags of a [Connection].
const (
	RxClosing  uint16 = 1 << 0
	TxClosing  uint16 = 1 << 1
	SeenNonSYN uint16 = 1 << 4
)

// Translation is the value of a NAT map.
type Translation struct {
	Created uint64 // nanoseconds
	NeedsCT uint32 // 1 or 0
	Used    uint32 // seconds
	Tunnel  netip.Addr
	Addr    netip.Addr
	Port    uint16
	Counter uint16 // of its traffic
}

func (t Translation) value() []byte {
	b := binary.NativeEndian.AppendUint64(nil, t.Created)
	b = binary.NativeEndian.AppendUint32(b, t.NeedsCT)
	b = binary.NativeEndian.AppendUint32(b, t.Used)
	tunnel := bpf.AddressFrom(t.Tunnel)
	b = append(b, tunnel[:]...)
	b = append(b, t.Addr.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, t.Port)
	b = binary.NativeEndian.AppendUint16(b, t.Counter)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

func translationFrom(b []byte) Translation {
	t := Translation{
		Created: binary.NativeEndian.Uint64(b), NeedsCT: binary.NativeEndian.Uint32(b[8:]),
		Used: binary.NativeEndian.Uint32(b[12:]), Tunnel: bpf.Address(b[16:32]).Addr(),
	}
	n := 4
	if len(b) > 40 {
		n = 16
	}
	t.Addr, _ = netip.AddrFromSlice(b[32 : 32+n])
	t.Port = binary.BigEndian.Uint16(b[32+n:])
	t.Counter = binary.NativeEndian.Uint16(b[34+n:])
	return t
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

func (n *Node) ctMap(t Tuple) *ebpf.Map {
	kind := "any"
	if t.Protocol == TCPProtocol {
		kind = "tcp"
	}
	return n.Map("sluice_ct" + family(t.Daddr) + "_" + kind)
}

// Connection returns an entry of connection tracking, nil if there is none.
func (n *Node) Connection(t Tuple) (*Connection, error) {
	var c Connection
	err := n.ctMap(t).Lookup(t.key(), &c)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	return &c, err
}

// SetConnection writes an entry of connection tracking.
func (n *Node) SetConnection(t Tuple, c Connection) error { return n.ctMap(t).Put(t.key(), &c) }

// Connections returns all entries of connection tracking.
func (n *Node) Connections() (map[Tuple]Connection, error) {
	all := map[Tuple]Connection{}
	for _, name := range []string{"ct4_tcp", "ct4_any", "ct6_tcp", "ct6_any"} {
		m := n.Map("sluice_" + name)
		var (
			key = make([]byte, m.KeySize())
			c   Connection
		)
		entries := m.Iterate()
		for entries.Next(&key, &c) {
			all[tupleFrom(key)] = c
		}
		if err := entries.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return all, nil
}

// Translation returns an entry of a NAT map, nil if there is none.
func (n *Node) Translation(t Tuple) (*Translation, error) {
	m := n.Map("sluice_nat" + family(t.Daddr))
	value, err := m.LookupBytes(t.key())
	if err != nil || value == nil {
		return nil, err
	}
	found := translationFrom(value)
	return &found, nil
}

// SetTranslation writes an entry of a NAT map.
func (n *Node) SetTranslation(t Tuple, to Translation) error {
	return n.Map("sluice_nat"+family(t.Daddr)).Put(t.key(), to.value())
}

// SetTranslations writes entries of one family, in one batch.
func (n *Node) SetTranslations(tuples []Tuple, to []Translation) error {
	if len(tuples) == 0 {
		return nil
	}
	m := n.Map("sluice_nat" + family(tuples[0].Daddr))
	for i := range tuples {
		if err := m.Put(tuples[i].key(), to[i].value()); err != nil {
			return err
		}
	}
	return nil
}

// Translations returns all entries of the NAT maps.
func (n *Node) Translations() (map[Tuple]Translation, error) {
	all := map[Tuple]Translation{}
	for _, name := range []string{"sluice_nat4", "sluice_nat6"} {
		m := n.Map(name)
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		entries := m.Iterate()
		for entries.Next(&key, &value) {
			all[tupleFrom(key)] = translationFrom(value)
		}
		if err := entries.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return all, nil
}

// DeleteTranslation removes an entry of a NAT map.
func (n *Node) DeleteTranslation(t Tuple) error {
	return n.Map("sluice_nat" + family(t.Daddr)).Delete(t.key())
}
