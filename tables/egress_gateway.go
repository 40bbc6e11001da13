// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// EgressGateway is one bucket of a gateway group: the gateway of the sources
// whose address hashes into it. An entry of sluice_gateways.
type EgressGateway struct {
	bpf.GatewayKey `yaml:",inline"`

	Node string     `json:"node,omitempty"` // elected; empty: none, traffic is dropped
	Addr netip.Addr `json:"addr,omitzero"`  // of the node, towards which traffic is sent

	// What traffic leaves this node with, where it is a candidate for an item of the
	// group: in buckets of other nodes too, as those may be sent here by nodes
	// that have elected it instead. Traffic of a family without egress
	// address is dropped here.
	EgressIPv4 netip.Addr `json:"egressIPv4,omitzero"`
	EgressIPv6 netip.Addr `json:"egressIPv6,omitzero"`
	IfIndex    uint32     `json:"ifIndex,omitempty"`
	Device     string     `json:"device,omitempty"`

	Reason string `json:"reason,omitempty"` // why there is no gateway or no egress address

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (g *EgressGateway) Equal(o *EgressGateway) bool { return sameButStatus(g, o) }

// MapKey is the key in sluice_gateways.
func (g *EgressGateway) MapKey() bpf.GatewayKey { return g.GatewayKey }

// MapValue is the value in sluice_gateways.
func (g *EgressGateway) MapValue() bpf.GatewayValue {
	v := bpf.GatewayValue{Gateway: bpf.AddressFrom(g.Addr), IfIndex: g.IfIndex, Egress6: bpf.AddressFrom(g.EgressIPv6)}
	if g.EgressIPv4.IsValid() {
		v.Egress4 = g.EgressIPv4.As4()
	}
	return v
}

// TableHeader implements [statedb.TableWritable].
func (*EgressGateway) TableHeader() []string {
	return []string{"Group", "Bucket", "Node", "Gateway", "EgressIPv4", "EgressIPv6", "Device", "Reason", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (g *EgressGateway) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(g.Group), 10), strconv.FormatUint(uint64(g.Bucket), 10), orDash(g.Node), addrColumn(g.Addr),
		addrColumn(g.EgressIPv4), addrColumn(g.EgressIPv6), orDash(g.Device), orDash(g.Reason), g.Status.Kind.String(), orDash(g.Status.GetError()),
	}
}

// addrColumn renders an address, "-" if it is none.
func addrColumn(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

var (
	// With db/prefix: the buckets of a group.
	egressGatewayKeyIndex = UniqueIndex("key", KeysOf(gatewayKey, index.Uint32String),
		func(g *EgressGateway) bpf.GatewayKey { return g.GatewayKey })

	egressGatewayEgressIndex = IndexEach("egress", AddrKeys, func(g *EgressGateway) []netip.Addr {
		var addrs []netip.Addr
		for _, a := range []netip.Addr{g.EgressIPv4, g.EgressIPv6} {
			if a.IsValid() {
				addrs = append(addrs, a)
			}
		}
		return addrs
	})

	// EgressGatewayByKey queries a bucket of a group.
	EgressGatewayByKey = egressGatewayKeyIndex.Query

	// EgressGatewaysByEgress queries the buckets whose traffic leaves this node
	// with an address.
	EgressGatewaysByEgress = egressGatewayEgressIndex.Query
)

func gatewayKey(k bpf.GatewayKey) index.Key {
	return append(index.Uint32(k.Group), index.Uint32(k.Bucket)...)
}

// EgressGatewaysOfGroup queries, with Prefix, the buckets of a group.
func EgressGatewaysOfGroup(group uint32) statedb.Query[*EgressGateway] {
	return egressGatewayKeyIndex.QueryFromKey(index.Uint32(group))
}

// NewEgressGatewayTable creates the table of gateways by group and bucket.
var NewEgressGatewayTable = Declare(
	"egress-gateways", egressGatewayKeyIndex, egressGatewayEgressIndex,
)
