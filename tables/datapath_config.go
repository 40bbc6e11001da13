// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
)

// OverlayDeviceName is the name of the device by which packets reach other nodes.
const OverlayDeviceName = "sluice_vxlan"

// Lifetimes of connections and how often their use is noted, in seconds.
const (
	lifetimeTCP     = 8000
	lifetimeAny     = 60
	lifetimeSYN     = 60
	lifetimeClosing = 10
	reportInterval  = 5
)

// DatapathConfig is what the programs have to know of this node: the one entry
// of sluice_config.
type DatapathConfig struct {
	Underlay       netip.Addr      `json:"underlay,omitzero"` // of this node; invalid while not known, and then nothing is written
	OverlayIfIndex uint32          `json:"overlayIfIndex"`    // 0 while there is no overlay device
	OverlayPort    uint16          `json:"overlayPort"`
	VNI            uint32          `json:"vni"`
	Flags          bpf.ConfigFlags `json:"flags"`
	MarkMask       uint32          `json:"markMask"`

	// SharedPorts are given to pods of addresses that the host itself uses.
	SharedPorts [bpf.SharedPortRanges]bpf.PortRange `json:"sharedPorts"`

	// Shares of pods, in percent of what is free; 0: no limit.
	ConnectionShare uint16 `json:"connectionShare"`
	PortShare       uint16 `json:"portShare"`

	Reason string `json:"reason,omitempty"` // what of it is not as it should be

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *DatapathConfig) Equal(o *DatapathConfig) bool { return sameButStatus(c, o) }

// MapKey is the key in sluice_config.
func (c *DatapathConfig) MapKey() bpf.ConfigKey { return bpf.ConfigKey{} }

// MapValue is the value in sluice_config.
func (c *DatapathConfig) MapValue() bpf.ConfigValue {
	return bpf.ConfigValue{
		Underlay:        bpf.AddressFrom(c.Underlay),
		OverlayIfIndex:  c.OverlayIfIndex,
		VNI:             c.VNI,
		Flags:           c.Flags,
		MarkMask:        c.MarkMask,
		MarkShift:       uint32(bits.TrailingZeros32(c.MarkMask)),
		OverlayPort:     c.OverlayPort,
		LifetimeTCP:     lifetimeTCP,
		LifetimeAny:     lifetimeAny,
		LifetimeSYN:     lifetimeSYN,
		LifetimeClosing: lifetimeClosing,
		ReportInterval:  reportInterval,
		SharedPorts:     c.SharedPorts,
		ConnectionShare: c.ConnectionShare,
		PortShare:       c.PortShare,
	}
}

// TableHeader implements [statedb.TableWritable].
func (*DatapathConfig) TableHeader() []string {
	return []string{"Underlay", "Overlay", "Port", "VNI", "Flags", "MarkMask", "SharedPorts", "Shares", "Reason", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *DatapathConfig) TableRow() []string {
	return []string{
		addrColumn(c.Underlay), indexColumn(int(c.OverlayIfIndex)), strconv.Itoa(int(c.OverlayPort)), strconv.FormatUint(uint64(c.VNI), 10),
		c.Flags.String(), fmt.Sprintf("%#x", c.MarkMask), portsColumn(c.SharedPorts[:]),
		fmt.Sprintf("%d%%,%d%%", c.ConnectionShare, c.PortShare), orDash(c.Reason),
		c.Status.Kind.String(), orDash(c.Status.GetError()),
	}
}

// portsColumn renders ranges of ports, as --shared-ports has them.
func portsColumn(ranges []bpf.PortRange) string {
	var texts []string
	for _, r := range ranges {
		if r.Last != 0 {
			texts = append(texts, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	return orDash(strings.Join(texts, ","))
}

var (
	datapathConfigIndex = UniqueIndex("index", Uint32Keys,
		func(c *DatapathConfig) uint32 { return c.MapKey().Index })

	// DatapathConfigByIndex queries the configuration: there is but that with index 0.
	DatapathConfigByIndex = datapathConfigIndex.Query
)

// NewDatapathConfigTable creates the table of what the programs have to know of this node.
var NewDatapathConfigTable = Declare("datapath-config", datapathConfigIndex)

// OverlayOf returns the overlay as the programs have it; found is false while there is none.
func OverlayOf(
	txn statedb.ReadTxn, configs statedb.Table[*DatapathConfig],
) (o frames.Overlay, found bool) {
	c, _, found := configs.Get(txn, DatapathConfigByIndex(0))
	if !found || !c.Underlay.IsValid() || c.OverlayIfIndex == 0 {
		return o, false
	}
	return frames.Overlay{Underlay: c.Underlay, Port: c.OverlayPort, VNI: c.VNI}, true
}
