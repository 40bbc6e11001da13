// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// PortOwner is the node that has a block of ports of an egress address of a pool: replies to them
// go there. An entry of sluice_owners.
type PortOwner struct {
	bpf.OwnerKey `yaml:",inline"`

	Node string     `json:"node"`
	Addr netip.Addr `json:"addr"` // underlay address of the node

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (o *PortOwner) Equal(p *PortOwner) bool {
	return o.OwnerKey == p.OwnerKey && o.Node == p.Node && o.Addr == p.Addr
}

// MapKey is the key in sluice_owners.
func (o *PortOwner) MapKey() bpf.OwnerKey { return o.OwnerKey }

// MapValue is the value in sluice_owners.
func (o *PortOwner) MapValue() bpf.OwnerValue {
	return bpf.OwnerValue{Node: bpf.AddressFrom(o.Addr)}
}

// TableHeader implements [statedb.TableWritable].
func (*PortOwner) TableHeader() []string {
	return []string{"Address", "Block", "Node", "NodeAddress", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (o *PortOwner) TableRow() []string {
	return []string{
		o.Egress.String(), strconv.FormatUint(uint64(o.Block), 10), o.Node, o.Addr.String(),
		o.Status.Kind.String(), orDash(o.Status.GetError()),
	}
}

var (
	portOwnerKeyIndex = UniqueIndex("key", KeysOf(ownerKey, parseOwnerKey),
		func(o *PortOwner) bpf.OwnerKey { return o.OwnerKey })

	// PortOwnerByKey queries the node that has a block of an address.
	PortOwnerByKey = portOwnerKeyIndex.Query
)

// PortOwnersOfAddr queries, with Prefix, the nodes of the blocks of an address.
func PortOwnersOfAddr(addr netip.Addr) statedb.Query[*PortOwner] {
	return portOwnerKeyIndex.QueryFromKey(index.NetIPAddr(addr))
}

func ownerKey(k bpf.OwnerKey) index.Key {
	return append(index.NetIPAddr(k.Egress.Addr()), index.Uint32(k.Block)...)
}

// parseOwnerKey parses "ADDRESS BLOCK", or the address alone for all of its blocks.
func parseOwnerKey(s string) (index.Key, error) {
	text, block, hasBlock := strings.Cut(s, " ")
	key, err := index.NetIPAddrString(text)
	if err != nil || !hasBlock {
		return key, err
	}
	number, err := index.Uint32String(block)
	return append(key, number...), err
}

// NewPortOwnerTable creates the table of the nodes of blocks of ports.
var NewPortOwnerTable = Declare("port-owners", portOwnerKeyIndex)
