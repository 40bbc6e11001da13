// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"strings"
)

// ConfigKey is the key of sluice_config, whose only entry has index 0.
type ConfigKey struct{ Index uint32 }

func (k ConfigKey) String() string { return fmt.Sprint(k.Index) }

// ConfigFlags are the flags of a [ConfigValue].
type ConfigFlags uint32

const (
	// ConfigStrictSource has packets dropped that a pod sends from an address that is not its own.
	ConfigStrictSource ConfigFlags = 1 << iota
	// ConfigBackstop has the backstop drop what it is there to drop.
	ConfigBackstop
	// ConfigFlowEvents has new flows reported as events.
	ConfigFlowEvents
	// ConfigAllowLocalhost has this host reach its pods whatever network policies say.
	ConfigAllowLocalhost
	// ConfigNetworkPolicies says that there are network policies: pods are held while it
	// is not known what they say of them.
	ConfigNetworkPolicies

	// ConfigFloating says that sluice_votes may have entries.
	ConfigFloating
	// ConfigEgressIPs says that there may be egress addresses that move.
	ConfigEgressIPs
	// ConfigLimits says that sluice_limits has entries.
	ConfigLimits
	// ConfigPaced says that the devices by which pods' packets leave this node wait for the time at
	// which a packet is to depart.
	ConfigPaced
)

var configFlagNames = []string{
	"strict-source", "backstop", "flow-events", "allow-localhost", "network-policies", "floating",
	"egress-ips", "limits", "paced",
}

func (f ConfigFlags) String() string { return flagsString(uint32(f), configFlagNames) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (f ConfigFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *ConfigFlags) UnmarshalText(text []byte) error {
	flags, err := parseFlags(string(text), configFlagNames)
	*f = ConfigFlags(flags)
	return err
}

// PortRange is a range of ports with both ends; the zero value is none.
type PortRange struct{ First, Last uint16 }

// SharedPortRanges is how many ranges a [ConfigValue] has room for.
const SharedPortRanges = 4

// ConfigValue is the value of sluice_config: what the programs have to know of
// the node. Lifetimes and intervals are in seconds.
type ConfigValue struct {
	Underlay        Address // of this node, from which overlay packets are sent
	OverlayIfIndex  uint32
	VNI             uint32
	Flags           ConfigFlags
	MarkMask        uint32 // bits of the packet mark that are the programs'
	MarkShift       uint32 // of the lowest of them
	OverlayPort     uint16
	Pad             uint16
	LifetimeTCP     uint32
	LifetimeAny     uint32 // of what is not TCP
	LifetimeSYN     uint32
	LifetimeClosing uint32
	ReportInterval  uint32
	SharedPorts     [SharedPortRanges]PortRange // given to pods of addresses that the host itself uses
	ConnectionShare uint16                      // that a pod may have, in percent of what is free; 0: no limit
	PortShare       uint16                      // the same, of the ports of an egress address towards a destination
}

func (v ConfigValue) String() string {
	var ports []string
	for _, r := range v.SharedPorts {
		if r.Last != 0 {
			ports = append(ports, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	return fmt.Sprintf("underlay=%s overlay=%d vni=%d port=%d flags=%s mark=%#x lifetimes=%d/%d/%d/%d shared-ports=%s shares=%d%%/%d%%",
		v.Underlay, v.OverlayIfIndex, v.VNI, v.OverlayPort, v.Flags, v.MarkMask,
		v.LifetimeTCP, v.LifetimeAny, v.LifetimeSYN, v.LifetimeClosing, strings.Join(ports, ","),
		v.ConnectionShare, v.PortShare)
}
