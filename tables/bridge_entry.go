// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/statedb/index"
)

// BridgeEntry is an entry of a bridge's forwarding table: behind which port a
// link-layer address is.
type BridgeEntry struct {
	BridgeIndex int    `json:"bridgeIndex"`
	MAC         string `json:"mac"`         // lower-case hex with colons
	VLAN        int    `json:"vlan"`        // 0 where the bridge does not tell VLANs apart
	DeviceIndex int    `json:"deviceIndex"` // the port, or the bridge itself
	Local       bool   `json:"local"`       // an address of this node: the port's or the bridge's own
	Static      bool   `json:"static"`      // configured, not learned
}

// BridgeEntryID is the primary key of a [BridgeEntry]. The port is not part of
// it, as an address that moves to another port changes its entry.
type BridgeEntryID struct {
	BridgeIndex int
	MAC         string
	VLAN        int
}

// Key is the index key of the identifier. A MAC has no slash in it, so none is
// the beginning of another.
func (id BridgeEntryID) Key() index.Key {
	key := append(index.Int(id.BridgeIndex), id.MAC...)
	key = append(key, '/')
	return append(key, index.Int(id.VLAN)...)
}

// ID returns the primary key of the entry.
func (e *BridgeEntry) ID() BridgeEntryID {
	return BridgeEntryID{BridgeIndex: e.BridgeIndex, MAC: e.MAC, VLAN: e.VLAN}
}

// TableHeader implements [statedb.TableWritable].
func (*BridgeEntry) TableHeader() []string {
	return []string{"Bridge", "MAC", "VLAN", "Device", "Local", "Static"}
}

// TableRow implements [statedb.TableWritable].
func (e *BridgeEntry) TableRow() []string {
	return []string{
		strconv.Itoa(e.BridgeIndex), orDash(e.MAC), strconv.Itoa(e.VLAN), strconv.Itoa(e.DeviceIndex),
		strconv.FormatBool(e.Local), strconv.FormatBool(e.Static),
	}
}

var (
	bridgeEntryIDIndex = UniqueIndex("id", KeysOf(BridgeEntryID.Key, bridgeEntryIDString),
		(*BridgeEntry).ID)

	bridgeEntryMACIndex = Index("mac", StringKeys, func(e *BridgeEntry) string { return e.MAC })

	bridgeEntryDeviceIndex = IndexEach("device", IntKeys, func(e *BridgeEntry) []int {
		if e.DeviceIndex == e.BridgeIndex {
			return []int{e.BridgeIndex}
		}
		return []int{e.DeviceIndex, e.BridgeIndex}
	})

	// BridgeEntryByID queries an entry by its bridge, address and VLAN.
	BridgeEntryByID = bridgeEntryIDIndex.Query

	// BridgeEntriesByMAC queries behind which ports a link-layer address is.
	BridgeEntriesByMAC = bridgeEntryMACIndex.Query

	// BridgeEntriesByDevice queries the entries of a port, or of a bridge, by
	// its interface index.
	BridgeEntriesByDevice = bridgeEntryDeviceIndex.Query
)

// bridgeEntryIDString parses "BRIDGE MAC VLAN". Fewer words make a key for
// prefix queries.
func bridgeEntryIDString(s string) (index.Key, error) {
	fields := strings.Fields(s)
	if len(fields) == 0 || len(fields) > 3 {
		return nil, fmt.Errorf("parse bridge entry %q: want BRIDGE [MAC [VLAN]]", s)
	}
	key, err := index.IntString(fields[0])
	if err != nil {
		return nil, fmt.Errorf("parse bridge entry %q: %w", s, err)
	}
	if len(fields) > 1 {
		key = append(append(key, strings.ToLower(fields[1])...), '/')
	}
	if len(fields) > 2 {
		vlan, err := index.IntString(fields[2])
		if err != nil {
			return nil, fmt.Errorf("parse bridge entry %q: %w", s, err)
		}
		key = append(key, vlan...)
	}
	return key, nil
}

// NewBridgeEntryTable creates the table of bridge forwarding entries.
var NewBridgeEntryTable = Declare(
	"bridge-entries", bridgeEntryIDIndex, bridgeEntryMACIndex, bridgeEntryDeviceIndex,
)
