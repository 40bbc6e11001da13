// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-net/sluice/bpf"
)

// FirstPort is the first port of the first block: the ones below are those of services.
const FirstPort = bpf.BlockPortMin

// BlockRest is for how long a block of a node that is gone is given to no other: connections
// that have its ports have all ended after that.
const BlockRest = lifetimeTCP * time.Second

// PortBlocks returns how many blocks of so many ports a pool has, none of 0 ports.
func PortBlocks(portsPerBlock int) int {
	if portsPerBlock <= 0 {
		return 0
	}
	return (1<<16 - FirstPort) / portsPerBlock
}

// PortBlock is a block of ports of each address of a pool, that one node has.
type PortBlock struct {
	Index int    `json:"index"`
	Node  string `json:"node"`
	// Released is when the node was found to be gone, zero while it is there. Its ports rest
	// until connections that have them cannot be there any more.
	Released time.Time `json:"released,omitzero"`
	// Closed is when the operator took the block back, which the node does not need, zero while
	// the node has it for new connections. It is the node's until its connections have ended, as
	// the node's report says.
	Closed time.Time `json:"closed,omitzero"`
}

// IsOpen reports whether the node may begin connections with ports of the block.
func (b PortBlock) IsOpen() bool { return b.Released.IsZero() && b.Closed.IsZero() }

// Equal reports whether two blocks are the same.
func (b PortBlock) Equal(o PortBlock) bool {
	return b.Index == o.Index && b.Node == o.Node && b.Released.Equal(o.Released) &&
		b.Closed.Equal(o.Closed)
}

// PoolAllocation is an address that a pool has given to a policy.
type PoolAllocation struct {
	Addr   netip.Addr `json:"address"`
	Policy string     `json:"policy"` // name of a CiliumEgressGatewayPolicy
}

func (a PoolAllocation) String() string { return a.Addr.String() + " " + a.Policy }

// PoolAddresses counts the addresses of a pool that it gives to policies, or that these name.
type PoolAddresses struct {
	Total int64 `json:"total"` // math.MaxInt64 if there are more
	Used  int64 `json:"used"`  // that policies have, or name
}

// Types of conditions of pools, beside [ConditionAccepted].
const (
	ConditionBlocksAssigned    = "BlocksAssigned"    // each node has a block of ports
	ConditionAddressesAssigned = "AddressesAssigned" // each policy that names the pool has an address
	ConditionAddressesUsable   = "AddressesUsable"   // no fixed one is an internal one of a Node
)

// PoolCondition is a condition of a pool.
type PoolCondition struct {
	Condition `yaml:",inline"`
	// Since is when the condition began to have its status.
	Since time.Time `json:"lastTransitionTime"`
}

func (c PoolCondition) equal(o PoolCondition) bool {
	return c.Condition == o.Condition && c.Since.Equal(o.Since)
}

// PoolObject is what the operator knows of the object of a pool, to write its status.
type PoolObject struct {
	ResourceVersion string          `json:"resourceVersion"`
	Addresses       PoolAddresses   `json:"addresses"`
	Conditions      []PoolCondition `json:"conditions,omitempty"`
}

// PoolStatus is the status of an EgressIPPool, as it is in the object.
type PoolStatus struct {
	Addresses   PoolAddresses    `json:"addresses"`
	Blocks      []PortBlock      `json:"blocks"`
	Allocations []PoolAllocation `json:"allocations"`
	Conditions  []PoolCondition  `json:"conditions"`
}

// Equal reports whether two statuses say the same.
func (s *PoolStatus) Equal(o *PoolStatus) bool {
	return s.Addresses == o.Addresses && slices.EqualFunc(s.Blocks, o.Blocks, PortBlock.Equal) &&
		slices.Equal(s.Allocations, o.Allocations) &&
		slices.EqualFunc(s.Conditions, o.Conditions, PoolCondition.equal)
}

// EgressIPPoolStatus is what the status of an EgressIPPool shall say. There are rows only while
// this operator leads. A row is done when the object says so.
type EgressIPPoolStatus struct {
	Pool string `json:"pool"`
	UID  string `json:"uid,omitempty"`
	// ResourceVersion is that of the object that the status follows from. Only this version
	// may be replaced: another one may have given the same blocks to other nodes.
	ResourceVersion string `json:"resourceVersion"`

	PoolStatus `yaml:",inline"`

	// Problems are those of the conditions that the object does not have yet, for Events.
	Problems []Problem `json:"problems,omitempty"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *EgressIPPoolStatus) Equal(o *EgressIPPoolStatus) bool {
	return s.Pool == o.Pool && s.UID == o.UID && s.ResourceVersion == o.ResourceVersion &&
		s.PoolStatus.Equal(&o.PoolStatus) && slices.Equal(s.Problems, o.Problems)
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPPoolStatus) TableHeader() []string {
	return []string{
		"Pool", "Used", "Blocks", "Closed", "Released", "Allocations", "Conditions", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (s *EgressIPPoolStatus) TableRow() []string {
	closed, released := 0, 0
	for _, b := range s.Blocks {
		switch {
		case !b.Released.IsZero():
			released++
		case !b.Closed.IsZero():
			closed++
		}
	}
	return []string{
		s.Pool, fmt.Sprintf("%d/%d", s.Addresses.Used, s.Addresses.Total),
		fmt.Sprint(len(s.Blocks)), fmt.Sprint(closed), fmt.Sprint(released),
		listColumn(stringsOf(s.Allocations), ", "), listColumn(stringsOf(s.Conditions), ", "),
		s.Status.Kind.String(), orDash(s.Status.GetError()),
	}
}

var (
	egressIPPoolStatusIndex = UniqueIndex("pool", StringKeys,
		func(s *EgressIPPoolStatus) string { return s.Pool })

	// EgressIPPoolStatusByPool queries what the object of a pool shall say.
	EgressIPPoolStatusByPool = egressIPPoolStatusIndex.Query
)

// NewEgressIPPoolStatusTable creates the table of what the objects of pools shall say.
var NewEgressIPPoolStatusTable = Declare("egress-ip-pool-status", egressIPPoolStatusIndex)
