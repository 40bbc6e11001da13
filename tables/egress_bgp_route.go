// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
)

// EgressBGPRoute is the route of an egress address that moves and that this node has or still
// holds: it is announced to the routers, or withdrawn from them when Announce is false and the
// status is done.
type EgressBGPRoute struct {
	Addr       netip.Addr `json:"addr"`
	Announce   bool       `json:"announce"`
	Generation uint32     `json:"generation"` // of egress-ip-leases, see [EgressBGPRoute.Metric]

	Reconciled `yaml:",inline"`
}

// Metric is the MULTI_EXIT_DISC of the route, of which routers prefer the least: a later owner of
// the address wins over a former one whose route they still have.
func (r *EgressBGPRoute) Metric() uint32 { return ^r.Generation }

// Prefix is the destination of the route: the address alone.
func (r *EgressBGPRoute) Prefix() netip.Prefix { return netip.PrefixFrom(r.Addr, r.Addr.BitLen()) }

// Equal reports whether two rows want the same, whatever their status.
func (r *EgressBGPRoute) Equal(o *EgressBGPRoute) bool {
	return r.Addr == o.Addr && r.Announce == o.Announce && r.Generation == o.Generation
}

// TableHeader implements [statedb.TableWritable].
func (*EgressBGPRoute) TableHeader() []string {
	return []string{"Address", "Announce", "Metric", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (r *EgressBGPRoute) TableRow() []string {
	return []string{
		r.Addr.String(), strconv.FormatBool(r.Announce),
		strconv.FormatUint(uint64(r.Metric()), 10),
		r.Status.Kind.String(), orDash(r.Status.GetError()),
	}
}

var (
	egressBGPRouteAddrIndex = UniqueIndex("addr", AddrKeys,
		func(r *EgressBGPRoute) netip.Addr { return r.Addr })

	// EgressBGPRouteByAddr queries the route of an address.
	EgressBGPRouteByAddr = egressBGPRouteAddrIndex.Query
)

// NewEgressBGPRouteTable creates the table of routes of egress addresses that move.
var NewEgressBGPRouteTable = Declare("egress-bgp-routes", egressBGPRouteAddrIndex)
