// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-net/sluice/bpf"
)

// MaxNodeBlocks is how many blocks of a pool a node has at most: an entry of sluice_blocks has
// room for so many ranges.
const MaxNodeBlocks = bpf.SharedPortRanges

// PoolPorts is what a node reports about its blocks of a pool.
type PoolPorts struct {
	Pool string `json:"pool"`
	// Blocks is how many the node wants for new connections, from 1 to MaxNodeBlocks.
	Blocks int `json:"blocks"`
	// Drained are blocks that the operator has closed, and whose connections have all ended.
	Drained []DrainedBlock `json:"drained,omitempty"`
}

// DrainedBlock is a closed block without connections. The time tells one closing from the next, so
// that an old report does not release a block that the node uses again.
type DrainedBlock struct {
	Index  int       `json:"index"`
	Closed time.Time `json:"closed"` // as the pool has it
}

// Equal reports whether two reports say the same.
func (p PoolPorts) Equal(o PoolPorts) bool {
	return p.Pool == o.Pool && p.Blocks == o.Blocks && slices.EqualFunc(p.Drained, o.Drained,
		func(a, b DrainedBlock) bool { return a.Index == b.Index && a.Closed.Equal(b.Closed) })
}

// HasDrained reports whether the node says that a closed block has no connections any more.
func (p PoolPorts) HasDrained(b PortBlock) bool {
	return !b.Closed.IsZero() && slices.ContainsFunc(p.Drained, func(d DrainedBlock) bool {
		return d.Index == b.Index && d.Closed.Equal(b.Closed)
	})
}

func (p PoolPorts) String() string {
	text := p.Pool + " " + strconv.Itoa(p.Blocks)
	if len(p.Drained) > 0 {
		text += " drained " + listColumn(stringsOf(p.Drained), " ")
	}
	return text
}

func (d DrainedBlock) String() string { return strconv.Itoa(d.Index) }

// EgressPortDemand is how many ports of a pool this node uses, and what it reports of that.
type EgressPortDemand struct {
	PoolPorts `yaml:",inline"`

	Has   int `json:"has"`   // blocks for new connections
	Ports int `json:"ports"` // of these blocks, of one address
	// Used is how many pods use of an address towards a destination, where these are most. It
	// includes ports of closed blocks.
	Used int `json:"used"`
	// Peak is the most of Used within the last hour.
	Peak int `json:"peak"`
}

// Equal reports whether two rows are the same.
func (d *EgressPortDemand) Equal(o *EgressPortDemand) bool {
	return d.PoolPorts.Equal(o.PoolPorts) && d.Has == o.Has && d.Ports == o.Ports &&
		d.Used == o.Used && d.Peak == o.Peak
}

// TableHeader implements [statedb.TableWritable].
func (*EgressPortDemand) TableHeader() []string {
	return []string{"Pool", "Used", "Peak", "Ports", "Has", "Wants", "Drained"}
}

// TableRow implements [statedb.TableWritable].
func (d *EgressPortDemand) TableRow() []string {
	return []string{
		d.Pool, fmt.Sprint(d.Used), fmt.Sprint(d.Peak), fmt.Sprint(d.Ports), fmt.Sprint(d.Has),
		fmt.Sprint(d.Blocks), listColumn(stringsOf(d.Drained), ", "),
	}
}

var egressPortDemandPoolIndex = UniqueIndex("pool", StringKeys,
	func(d *EgressPortDemand) string { return d.Pool })

// EgressPortDemandByPool queries what this node needs of a pool.
var EgressPortDemandByPool = egressPortDemandPoolIndex.Query

// NewEgressPortDemandTable creates the table of how many ports of pools this node uses and wants.
var NewEgressPortDemandTable = Declare("egress-port-demand", egressPortDemandPoolIndex)
