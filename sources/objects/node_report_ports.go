// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-net/sluice/tables"
)

// reportedPorts is what a node reports about its blocks of a pool.
type reportedPorts struct {
	Pool    string `json:"pool"`
	Blocks  int64  `json:"blocks"`
	Drained []struct {
		Index  *int64 `json:"index"`
		Closed string `json:"closed"`
	} `json:"drained"`
}

// poolPorts returns what a node reports about pools, in the order of their names. An item that does
// not parse is left out: the node keeps the blocks that it has. Of two of a pool the first counts.
func (e *fieldErrors) poolPorts(field string, items []reportedPorts) (ports []tables.PoolPorts) {
	seen := map[string]bool{}
	for i, item := range items {
		field := indexed(field, i)
		switch {
		case len(e.of(field)) > 0: // a value of it is of another type
			continue
		case checkName(field+".pool", item.Pool) != nil:
			e.note(field+".pool", strconv.Quote(item.Pool)+" is no name of a pool")
			continue
		case item.Blocks < 1 || item.Blocks > tables.MaxNodeBlocks:
			e.note(field+".blocks",
				fmt.Sprintf("%d is not from 1 to %d", item.Blocks, tables.MaxNodeBlocks))
			continue
		case seen[item.Pool]:
			e.note(field+".pool", strconv.Quote(item.Pool)+" is that of an item before")
			continue
		}
		seen[item.Pool] = true
		ports = append(ports, tables.PoolPorts{
			Pool: internString(item.Pool), Blocks: int(item.Blocks), Drained: e.drained(field, item),
		})
	}
	slices.SortFunc(ports, func(a, b tables.PoolPorts) int { return cmp.Compare(a.Pool, b.Pool) })
	return ports
}

// drained returns the blocks without connections that an item names.
func (e *fieldErrors) drained(field string, item reportedPorts) (drained []tables.DrainedBlock) {
	for i, d := range item.Drained {
		field := indexed(field+".drained", i)
		closed, err := optionalTime(d.Closed)
		switch {
		case d.Index == nil || *d.Index < 0 || *d.Index >= maxPoolBlocks:
			e.note(field+".index", fmt.Sprintf("want one from 0 to %d", maxPoolBlocks-1))
		case err != nil:
			e.note(field+".closed", err.Error())
		case closed.IsZero():
			e.note(field+".closed", "required")
		case i >= tables.MaxNodeBlocks:
			e.note(field, fmt.Sprintf("a node has %d blocks at most", tables.MaxNodeBlocks))
		default:
			drained = append(drained, tables.DrainedBlock{Index: int(*d.Index), Closed: closed})
		}
	}
	return drained
}
