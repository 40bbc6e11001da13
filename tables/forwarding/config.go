// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"math/bits"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
)

// Values of --source-check.
const (
	sourceCheckStrict = "strict"
	sourceCheckLoose  = "loose"
)

// Values of --allow-localhost.
const (
	allowLocalhostAlways = "always"
	allowLocalhostPolicy = "policy"
)

// Config has the flags of the programs.
type Config struct {
	OverlayPort    uint16
	OverlayVNI     uint32
	OverlayMTU     int
	SourceCheck    string
	Backstop       bool
	AllowLocalhost string
	SharedPorts    string
	MarkMask       string

	ConnectionShare uint16
	PortShare       uint16

	TrustExternalIPs bool
}

// DefaultConfig is the configuration without flags.
var DefaultConfig = Config{
	OverlayPort:    8474, // neither 8472 nor 4789, which are other overlays'
	OverlayVNI:     7,
	SourceCheck:    sourceCheckStrict,
	Backstop:       true,
	AllowLocalhost: allowLocalhostAlways,
	SharedPorts:    sharedPortsAuto,
	MarkMask:       "0x3000",

	ConnectionShare: 100,
	PortShare:       100,
}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Uint16("overlay-port", c.OverlayPort, "UDP port of the overlay, the same on all nodes")
	flags.Uint32("overlay-vni", c.OverlayVNI, "VXLAN network identifier of the overlay, the same on all nodes")
	flags.Int("overlay-mtu", c.OverlayMTU, "MTU of packets in the overlay; 0 is what the device below has room for")
	flags.String("source-check", c.SourceCheck, "What becomes of packets that a pod sends from an address that is not its own: strict (dropped) or loose")
	flags.Bool("backstop", c.Backstop,
		"Drop what policies may concern while the pod's device has no program yet")
	flags.String("allow-localhost", c.AllowLocalhost, "Whether this node reaches its own pods: always, or if a network policy allows it: policy")
	flags.String("shared-ports", c.SharedPorts, "Ports given to pods of egress addresses that the node itself uses, as FIRST-LAST,...; auto leaves out those of the node and of NodePorts")
	flags.Uint16("connection-share", c.ConnectionShare, "Connections that a pod may have in a map, in percent of what is free there; 0: no limit")
	flags.Uint16("port-share", c.PortShare, "Ports of an egress address towards a destination that a pod may have, in percent of what is free; 0: no limit")
	flags.Bool("trust-external-ips", c.TrustExternalIPs, "Let external IPs of services lead pods of all namespaces past egress policies, not only those of the service's own")
	flags.String("mark-mask", c.MarkMask, "Bits of the packet mark that are the programs', at least two in a row")
}

// overlayMTUMin is what IPv6 asks of any link.
const overlayMTUMin = 1280

func (c Config) validate() error {
	switch {
	case c.OverlayPort == 0:
		return fmt.Errorf("--overlay-port 0 is no port: want 1 to 65535")
	case c.OverlayVNI == 0 || c.OverlayVNI >= 1<<24:
		return fmt.Errorf("--overlay-vni %d is out of bounds: want 1 to %d", c.OverlayVNI, 1<<24-1)
	case c.OverlayMTU != 0 && (c.OverlayMTU < overlayMTUMin || c.OverlayMTU > 65535):
		return fmt.Errorf("--overlay-mtu %d is out of bounds: want %d to 65535, or 0", c.OverlayMTU, overlayMTUMin)
	case c.SourceCheck != sourceCheckStrict && c.SourceCheck != sourceCheckLoose:
		return fmt.Errorf("unknown value %q of --source-check: want one of %s, %s", c.SourceCheck, sourceCheckStrict, sourceCheckLoose)
	case c.AllowLocalhost != allowLocalhostAlways && c.AllowLocalhost != allowLocalhostPolicy:
		return fmt.Errorf("unknown value %q of --allow-localhost: want one of %s, %s", c.AllowLocalhost, allowLocalhostAlways, allowLocalhostPolicy)
	}
	return nil
}

// parseMark parses --mark-mask.
func parseMark(text string) (mask uint32, err error) {
	wide, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("--mark-mask %q is no number of 32 bits, such as 0x3000", text)
	}
	mask = uint32(wide)
	run := mask >> bits.TrailingZeros32(mask)
	if bits.OnesCount32(mask) < 2 || run&(run+1) != 0 {
		return 0, fmt.Errorf("--mark-mask %s: want at least two bits, in a row", text)
	}
	return mask, nil
}

// Procfs is where procfs is mounted.
type Procfs string

// settings is the configuration, checked.
type settings struct {
	Config
	markMask    uint32
	flags       bpf.ConfigFlags
	sharedPorts [bpf.SharedPortRanges]bpf.PortRange
	reason      string // what is not as it should be
}

func newSettings(c Config, procfs Procfs) (s settings, err error) {
	if err := c.validate(); err != nil {
		return s, err
	}
	s.Config = c
	if s.markMask, err = parseMark(c.MarkMask); err != nil {
		return s, err
	}
	if s.sharedPorts, s.reason, err = sharedPorts(c.SharedPorts, procfs); err != nil {
		return s, err
	}
	if c.SourceCheck == sourceCheckStrict {
		s.flags |= bpf.ConfigStrictSource
	}
	if c.Backstop {
		s.flags |= bpf.ConfigBackstop
	}
	if c.AllowLocalhost == allowLocalhostAlways {
		s.flags |= bpf.ConfigAllowLocalhost
	}
	return s, nil
}
