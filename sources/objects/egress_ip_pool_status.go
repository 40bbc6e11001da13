// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// Bounds of spec.portsPerBlock, and its default.
const (
	minPortsPerBlock     = 64
	maxPortsPerBlock     = 4096
	defaultPortsPerBlock = 256

	maxPoolBlocks = (1<<16 - tables.FirstPort) / minPortsPerBlock
)

// portsPerBlock returns the size of blocks, 0 if it is wrong: then there are none.
func portsPerBlock(field string, value *int64, errs *fieldErrors) int {
	if value == nil && len(errs.of(field)) == 0 {
		return defaultPortsPerBlock
	}
	if value == nil {
		return 0
	}
	n := *value
	if n < minPortsPerBlock || n > maxPortsPerBlock || n&(n-1) != 0 {
		errs.add(field, fmt.Sprintf("%d is no power of two from %d to %d",
			n, minPortsPerBlock, maxPortsPerBlock))
		return 0
	}
	return int(n)
}

// poolStatus is the status of an EgressIPPool. An item that does not parse is left out.
type poolStatus struct {
	Addresses struct {
		Total int64 `json:"total"`
		Used  int64 `json:"used"`
	} `json:"addresses"`
	Blocks []struct {
		Index    *int64 `json:"index"`
		Node     string `json:"node"`
		Released string `json:"released"`
		Closed   string `json:"closed"`
	} `json:"blocks"`
	Allocations []struct {
		Address string `json:"address"`
		Policy  string `json:"policy"`
	} `json:"allocations"`
	Conditions []struct {
		Type    string `json:"type"`
		Status  string `json:"status"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Since   string `json:"lastTransitionTime"`
	} `json:"conditions"`
}

// blocks returns the blocks in the order of their indexes, which are below a number. Of two
// with one index the first counts.
func (s *poolStatus) blocks(below int, errs *fieldErrors) (blocks []tables.PortBlock) {
	seen := map[int]bool{}
	for i, item := range s.Blocks {
		field := indexed("status.blocks", i)
		wrong := func(at, reason string) { errs.note(field+at, reason) }
		released, err := optionalTime(item.Released)
		closed, closedErr := optionalTime(item.Closed)
		switch {
		case len(errs.of(field)) > 0: // a value of it is of another type
		case item.Index == nil:
			wrong(".index", "required")
		case *item.Index < 0 || *item.Index >= int64(below):
			wrong(".index", fmt.Sprintf("%d is out of bounds: there are %d blocks", *item.Index, below))
		case checkName(field+".node", item.Node) != nil:
			wrong(".node", strconv.Quote(item.Node)+" is no name of a node")
		case err != nil:
			wrong(".released", err.Error())
		case closedErr != nil:
			wrong(".closed", closedErr.Error())
		case seen[int(*item.Index)]:
			wrong(".index", fmt.Sprintf("%d is that of an item before", *item.Index))
		default:
			seen[int(*item.Index)] = true
			blocks = append(blocks, tables.PortBlock{
				Index: int(*item.Index), Node: internString(item.Node), Released: released,
				Closed: closed,
			})
		}
	}
	slices.SortFunc(blocks, func(a, b tables.PortBlock) int { return cmp.Compare(a.Index, b.Index) })
	return blocks
}

// allocations returns the addresses of policies, in order. Of two of an address or a policy the
// first counts.
func (s *poolStatus) allocations(errs *fieldErrors) (allocations []tables.PoolAllocation) {
	seen := map[string]bool{}
	for i, item := range s.Allocations {
		field := indexed("status.allocations", i)
		addr, err := parseAddr(item.Address)
		switch {
		case len(errs.of(field)) > 0:
		case err != nil:
			errs.note(field+".address", err.Error())
		case checkName(field+".policy", item.Policy) != nil:
			errs.note(field+".policy", strconv.Quote(item.Policy)+" is no name of a policy")
		case seen["/"+addr.String()], seen[item.Policy]:
			errs.note(field, "its address or policy is that of an item before")
		default:
			seen["/"+addr.String()], seen[item.Policy] = true, true // no name has a slash
			allocations = append(allocations, tables.PoolAllocation{Addr: addr, Policy: item.Policy})
		}
	}
	slices.SortFunc(allocations,
		func(a, b tables.PoolAllocation) int { return a.Addr.Compare(b.Addr) })
	return allocations
}

// object returns what is for the operator alone. A condition whose time does not parse has none.
func (s *poolStatus) object(version string) *tables.PoolObject {
	o := &tables.PoolObject{
		ResourceVersion: version,
		Addresses:       tables.PoolAddresses{Total: s.Addresses.Total, Used: s.Addresses.Used},
	}
	for _, item := range s.Conditions {
		since, _ := optionalTime(item.Since)
		o.Conditions = append(o.Conditions, tables.PoolCondition{
			Condition: tables.Condition{
				Type: item.Type, Status: tables.ConditionStatus(item.Status),
				Reason: item.Reason, Message: item.Message,
			},
			Since: since,
		})
	}
	return o
}

// optionalTime parses a time of an object, in UTC; zero for no text.
func optionalTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, quoted(text, "is no time as in 2006-01-02T15:04:05Z")
	}
	return t.UTC(), nil
}
