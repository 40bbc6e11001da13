// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// FloatingMap is the name of the map of egress addresses that move between nodes.
const FloatingMap = "sluice_floating"

// FloatingEntries is how many such addresses one node may have.
const FloatingEntries = 1024

// FloatingValue is the value of sluice_floating, whose key is an [ExitKey]: the lease that this
// node has of an egress address. When it has run out the programs drop what asks for the
// address, goes to it, or leaves with it, until the entry is another one or gone.
type FloatingValue struct {
	Deadline   uint64 // nanoseconds of CLOCK_BOOTTIME; 0: this node has not the lease
	Generation uint32 // how often the lease has changed hands
	IfIndex    uint32 // device that has the address
}

func (v FloatingValue) String() string {
	return fmt.Sprintf("deadline=%d generation=%d ifindex=%d", v.Deadline, v.Generation, v.IfIndex)
}
