// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb"
)

// CiliumEndpoint is an endpoint as a CiliumEndpoint or a CiliumEndpointSlice describes it: its
// labels are those of its identity. With --endpoint-source=cilium the endpoints are derived from
// these rows and the identities.
type CiliumEndpoint struct {
	Name `yaml:",inline"`

	// Slice is the CiliumEndpointSlice that the row is from, empty for a
	// CiliumEndpoint. An endpoint may be in two slices while it moves.
	Slice string `json:"slice,omitempty"`

	UID        string       `json:"uid,omitempty"`
	Identity   uint32       `json:"identity"`
	NodeIP     netip.Addr   `json:"nodeIP"` // address of the node that it is on
	Addrs      []netip.Addr `json:"addrs"`
	NamedPorts []NamedPort  `json:"namedPorts,omitempty"`
	Created    time.Time    `json:"created"` // zero if from a slice, which does not have it
	Errors     []FieldError `json:"errors,omitempty"`
}

// ciliumEndpointKey is the primary key: the endpoint's name, then the slice.
func ciliumEndpointKey(name Name, slice string) string { return name.String() + "/" + slice }

// TableHeader implements [statedb.TableWritable].
func (*CiliumEndpoint) TableHeader() []string {
	return []string{"Name", "Slice", "Identity", "NodeIP", "Addresses", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (e *CiliumEndpoint) TableRow() []string {
	return []string{
		e.Name.String(), orDash(e.Slice), strconv.FormatUint(uint64(e.Identity), 10), e.NodeIP.String(),
		listColumn(stringsOf(e.Addrs), ", "), errorColumn(e.Errors),
	}
}

var (
	ciliumEndpointKeyIndex = UniqueIndex("key", StringKeys,
		func(e *CiliumEndpoint) string { return ciliumEndpointKey(e.Name, e.Slice) })

	ciliumEndpointNameIndex = Index("name", NameKeys,
		func(e *CiliumEndpoint) Name { return e.Name })

	ciliumEndpointSliceIndex = Index("slice", StringKeys,
		func(e *CiliumEndpoint) string { return e.Slice })

	ciliumEndpointIdentityIndex = Index("identity", Uint32Keys,
		func(e *CiliumEndpoint) uint32 { return e.Identity })

	ciliumEndpointNodeIndex = Index("node-ip", AddrKeys,
		func(e *CiliumEndpoint) netip.Addr { return e.NodeIP })

	// CiliumEndpointsByName queries all rows of an endpoint.
	CiliumEndpointsByName = ciliumEndpointNameIndex.Query

	// CiliumEndpointsBySlice queries the endpoints of a CiliumEndpointSlice.
	CiliumEndpointsBySlice = ciliumEndpointSliceIndex.Query

	// CiliumEndpointsByIdentity queries the endpoints that have an identity.
	CiliumEndpointsByIdentity = ciliumEndpointIdentityIndex.Query

	// CiliumEndpointsByNodeIP queries the endpoints on the node with an address.
	CiliumEndpointsByNodeIP = ciliumEndpointNodeIndex.Query
)

// CiliumEndpointByName queries an endpoint in one slice, or with no slice its CiliumEndpoint.
func CiliumEndpointByName(name Name, slice string) statedb.Query[*CiliumEndpoint] {
	return ciliumEndpointKeyIndex.Query(ciliumEndpointKey(name, slice))
}

// NewCiliumEndpointTable creates the table of Cilium's endpoints.
var NewCiliumEndpointTable = Declare(
	"cilium-endpoints", ciliumEndpointKeyIndex, ciliumEndpointNameIndex, ciliumEndpointSliceIndex,
	ciliumEndpointIdentityIndex, ciliumEndpointNodeIndex,
)
