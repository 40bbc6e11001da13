// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Names of the maps that count what pods have (programs/shares.h).
const (
	SharesMap = "sluice_shares" // entries of the maps of connections and translations
	PortsMap  = "sluice_ports"  // ports of egress addresses
)

// The numbers of the maps in a [ShareKey], as the garbage collection counts them.
const (
	LimitedCT4TCP = iota
	LimitedCT4Any
	LimitedCT6TCP
	LimitedCT6Any
	LimitedNAT4
	LimitedNAT6
	LimitedMaps
)

// ShareKey is the key of sluice_shares.
type ShareKey struct {
	Pod     Address // none: all entries
	Map     uint32  // LimitedCT4TCP and so on
	Reached uint32  // 1: of connections to the pod, which others began
}

// PortKey is the key of sluice_ports: the ports of an egress address towards a destination.
type PortKey struct {
	Egress   Address
	Remote   Address
	Pod      Address // none: all pods
	Port     [2]byte // of the remote side, network order
	Protocol uint8
	Pad      [5]byte
}

func (k PortKey) String() string {
	return fmt.Sprintf("egress=%s remote=%s port=%d protocol=%d pod=%s",
		k.Egress, k.Remote, binary.BigEndian.Uint16(k.Port[:]), k.Protocol, k.Pod)
}

// ShareValue is the value of both.
type ShareValue struct {
	Used  uint32 // programs add what they create, and take nothing away
	Room  uint32 // of all: how many there may be
	Found uint32 // by the garbage collection's pass
	Begun uint32 // Used, when that pass began
}

// SetRooms says in sluice_shares how many entries each map may have. A map without is not
// limited.
func SetRooms(shares *ebpf.Map, rooms [LimitedMaps]uint32) error {
	for i, room := range rooms {
		key, value := ShareKey{Map: uint32(i)}, ShareValue{}
		if err := shares.Lookup(key, &value); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read the count of all entries of map %d: %w", i, err)
		}
		value.Room = room
		if err := shares.Put(key, value); err != nil {
			return fmt.Errorf("write the room of map %d: %w", i, err)
		}
	}
	return nil
}
