// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// FloatingMap is the name of the map of egress addresses that move between nodes.
const FloatingMap = "sluice_floating"

// FloatingEntries is how many such addresses one node may have.
const FloatingEntries = 1024

// FloatingValue is the value of sluice_floating, whose key is an [ExitKey]: the lease that this
// node has of an egress address. When it has run out the programs drop what asks for the
// address, goes to it, or leaves with it, until the entry is another one or gone.
type FloatingValue struct {
	Deadline   uint64 // nanoseconds of CLOCK_BOOTTIME; 0: this node has not the lease
	Generation uint32 // how often the lease has changed hands
	IfIndex    uint32 // device that has the address
}

func (v FloatingValue) String() string {
	return fmt.Sprintf("deadline=%d generation=%d ifindex=%d", v.Deadline, v.Generation, v.IfIndex)
}

// PinnedFloating returns the addresses of the entries that an agent has left in a BPF file
// system, none if there is no such map.
func PinnedFloating(bpffs string) (addrs []netip.Addr, err error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs, pinDir, FloatingMap), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", FloatingMap, err)
	}
	defer m.Close()
	var key ExitKey
	var value FloatingValue
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		addrs = append(addrs, key.Addr.Addr())
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", FloatingMap, err)
	}
	return addrs, nil
}
