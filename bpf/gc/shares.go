// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf"
)

// Steps of a pass with the counts of what pods have (bpf/programs/gc.h).
const (
	stepNone = iota
	stepBegin
	stepCount
	stepEnd
)

// counts reports whether there are counts of what pods have.
func (c *Collector) counted() bool { return c.maps[indexShares] != nil && c.maps[indexPorts] != nil }

// counting returns the step of a pass through entries.
func (c *Collector) counting() uint32 {
	if c.counted() {
		return stepCount
	}
	return stepNone
}

// recount does a step with all counts.
func (c *Collector) recount(ctx context.Context, step uint32) error {
	if !c.counted() {
		return nil
	}
	n, err := c.Count() // which also says how many entries there are in all
	if err != nil {
		return err
	}
	if step == stepEnd {
		if err := c.programs.Variables["fullest"].Set([fullestCount]programsGcFullest{}); err != nil {
			return fmt.Errorf("forget which ports were used most: %w", err)
		}
	}
	for index, entries := range map[int]int{indexShares: n.shares, indexPorts: n.ports} {
		method := cmp.Or(c.always, choose(entries, c.maps[index].MaxEntries()))
		if _, err := c.pass(ctx, index, method, step, Filter{}); err != nil {
			return fmt.Errorf("count anew what pods have in map %s: %w", names[index], err)
		}
	}
	if step != stepEnd {
		return nil
	}
	var found [fullestCount]programsGcFullest
	if err := c.programs.Variables["fullest"].Get(&found); err != nil {
		return fmt.Errorf("read which ports are used most: %w", err)
	}
	c.fullest = nil
	for _, p := range found {
		if p.Room > 0 {
			c.fullest = append(c.fullest, portsFrom(p))
		}
	}
	slices.SortFunc(c.fullest, compareFill)
	return nil
}

// fullestCount is GC_FULLEST of bpf/programs/recount.h.
const fullestCount = 16

// Fullest returns the ports of egress addresses of which the last pass found the largest
// part to be used: [fullestCount] at most, the fullest first.
func (c *Collector) Fullest() []Ports { return slices.Clone(c.fullest) }

func portsFrom(p programsGcFullest) Ports {
	key := as[bpf.PortKey](bytesOf(&p.Key))
	return Ports{
		Egress:   key.Egress.Addr(),
		Remote:   netip.AddrPortFrom(key.Remote.Addr(), binary.BigEndian.Uint16(key.Port[:])),
		Protocol: key.Protocol,
		Used:     int(p.Used),
		Room:     int(p.Room),
	}
}

// compareFill orders by the part that is used, the largest first.
func compareFill(a, b Ports) int {
	return cmp.Or(
		cmp.Compare(b.Used*a.Room, a.Used*b.Room),
		a.Egress.Compare(b.Egress), a.Remote.Compare(b.Remote), cmp.Compare(a.Protocol, b.Protocol),
	)
}
