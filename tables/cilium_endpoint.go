// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// CiliumEndpoint is an endpoint as a CiliumEndpoint or a CiliumEndpointSlice
// tells it: its labels are those of its identity. With
// --endpoint-source=cilium the endpoints are derived from these rows and the
// identities.
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
	Created    time.Time    `json:"created"` // zero if told by a slice, which does not know
	Errors     []FieldError `json:"errors,omitempty"`
}

// Key is the primary key: the endpoint's name, then the slice.
func (e *CiliumEndpoint) Key() index.Key { return ciliumEndpointKey(e.Name, e.Slice) }

func ciliumEndpointKey(name Name, slice string) index.Key {
	return index.String(name.String() + "/" + slice)
}

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
	ciliumEndpointKeyIndex = statedb.Index[*CiliumEndpoint, string]{
		Name:       "key",
		FromObject: func(e *CiliumEndpoint) index.KeySet { return index.NewKeySet(e.Key()) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}

	ciliumEndpointNameIndex = statedb.Index[*CiliumEndpoint, Name]{
		Name:       "name",
		FromObject: func(e *CiliumEndpoint) index.KeySet { return index.NewKeySet(e.Name.Key()) },
		FromKey:    Name.Key,
		FromString: index.FromString,
	}

	ciliumEndpointSliceIndex = statedb.Index[*CiliumEndpoint, string]{
		Name:       "slice",
		FromObject: func(e *CiliumEndpoint) index.KeySet { return index.NewKeySet(index.String(e.Slice)) },
		FromKey:    index.String,
		FromString: index.FromString,
	}

	ciliumEndpointIdentityIndex = statedb.Index[*CiliumEndpoint, uint32]{
		Name:       "identity",
		FromObject: func(e *CiliumEndpoint) index.KeySet { return index.NewKeySet(index.Uint32(e.Identity)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	ciliumEndpointNodeIndex = statedb.Index[*CiliumEndpoint, netip.Addr]{
		Name:       "node-ip",
		FromObject: func(e *CiliumEndpoint) index.KeySet { return index.NewKeySet(index.NetIPAddr(e.NodeIP)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
	}

	// CiliumEndpointsByName queries what is said about an endpoint.
	CiliumEndpointsByName = ciliumEndpointNameIndex.Query

	// CiliumEndpointsBySlice queries the endpoints of a CiliumEndpointSlice.
	CiliumEndpointsBySlice = ciliumEndpointSliceIndex.Query

	// CiliumEndpointsByIdentity queries the endpoints that have an identity.
	CiliumEndpointsByIdentity = ciliumEndpointIdentityIndex.Query

	// CiliumEndpointsByNodeIP queries the endpoints on the node with an address.
	CiliumEndpointsByNodeIP = ciliumEndpointNodeIndex.Query
)

// CiliumEndpointByName queries what one slice tells about an endpoint, or with
// no slice its CiliumEndpoint.
func CiliumEndpointByName(name Name, slice string) statedb.Query[*CiliumEndpoint] {
	return ciliumEndpointKeyIndex.QueryFromKey(ciliumEndpointKey(name, slice))
}

// NewCiliumEndpointTable creates the table of endpoints as Cilium tells them.
func NewCiliumEndpointTable(db *statedb.DB) (statedb.RWTable[*CiliumEndpoint], error) {
	return statedb.NewTable(db, "cilium-endpoints", ciliumEndpointKeyIndex, ciliumEndpointNameIndex,
		ciliumEndpointSliceIndex, ciliumEndpointIdentityIndex, ciliumEndpointNodeIndex)
}
