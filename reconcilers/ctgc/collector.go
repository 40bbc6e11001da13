// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/tables"
)

// Collector is a [*gc.Collector].
type Collector interface {
	Run(ctx context.Context, f gc.Filter) ([]gc.Pass, error)
	Flush(ctx context.Context, chosen func(gc.Entry) bool, removed func(gc.Entry)) ([]gc.Pass, error)
	Count() (gc.Counts, error)
	Fullest() []gc.Ports
	Close() error
}

// Datapath has the maps that the programs use, once it has started.
type Datapath interface {
	// Loaded reports whether there are programs.
	Loaded() bool
	// Map returns a map by its name, nil if there is none.
	Map(name string) *ebpf.Map
	// Metrics returns the array of [bpf.Metric] per CPU, which counts packets.
	Metrics() *ebpf.Map
	// Ledger returns the maps of the ledger, nil if there is none.
	Ledger() *bpf.Ledger
}

// globalSet is the name of the set that the programs use.
const globalSet = "global"

// set is a set of maps that a pass goes through, and when.
type set struct {
	name      string
	names     map[string]string // of the maps, where they are not those of the global ones
	sizes     map[string]uint32 // room of the maps, by the names that gc has for them
	collector Collector
	schedule  schedule

	// Of clusters: the kernel's numbers of the maps, and what closes them.
	ids     map[string]ebpf.MapID
	release func() error

	failure, uncounted error // of the last pass, and count
	short              error // of what there is little room left
}

// nameOf returns the name of a map for the world.
func (s *set) nameOf(name string) string {
	if own, ok := s.names[name]; ok {
		return own
	}
	return name
}

func (s *set) close() error {
	err := s.collector.Close()
	if s.release != nil {
		err = errors.Join(err, s.release())
	}
	return err
}

// opener opens sets of maps.
type opener struct {
	datapath Datapath
	config   Config
}

// global opens the set that the programs use.
func (o *opener) global() (*set, error) {
	d := o.datapath
	extras := gc.Extras{
		Shares: gc.Shares{Entries: d.Map(bpf.SharesMap), Ports: d.Map(bpf.PortsMap)},
		Ledger: d.Ledger(),
	}
	return o.open(globalSet, extras, gc.Maps{
		CT4TCP: d.Map(ctmap.CT4TCP), CT4Any: d.Map(ctmap.CT4Any),
		CT6TCP: d.Map(ctmap.CT6TCP), CT6Any: d.Map(ctmap.CT6Any),
		NAT4: d.Map(natmap.Name4), NAT6: d.Map(natmap.Name6),
	})
}

func (o *opener) open(name string, extras gc.Extras, m gc.Maps) (*set, error) {
	c, err := gc.OpenWith(m, extras)
	if err != nil {
		return nil, err
	}
	s := &set{
		name: name, sizes: map[string]uint32{}, collector: c,
		schedule: newSchedule(o.config.CTGCInterval, o.config.CTGCMaxInterval),
	}
	for name, m := range map[string]*ebpf.Map{
		ctmap.CT4TCP: m.CT4TCP, ctmap.CT4Any: m.CT4Any, ctmap.CT6TCP: m.CT6TCP, ctmap.CT6Any: m.CT6Any,
		natmap.Name4: m.NAT4, natmap.Name6: m.NAT6,
	} {
		if m != nil {
			s.sizes[name] = m.MaxEntries()
		}
	}
	return s, nil
}

// fragments says how full the maps of fragments are. Their entries are counted by
// reading them: the kernel's counters are read for the others only.
func fragments(d Datapath) (rows []tables.BPFMap, err error) {
	for name, count := range map[string]func(*ebpf.Map) (int, error){
		ctmap.Frag4: countFragments[ctmap.FragKey4], ctmap.Frag6: countFragments[ctmap.FragKey6],
	} {
		m := d.Map(name)
		if m == nil {
			continue
		}
		n, err := count(m)
		if err != nil {
			return nil, fmt.Errorf("count entries of map %s: %w", name, err)
		}
		rows = append(rows, mapRow(name, n, m.MaxEntries()))
	}
	return rows, nil
}

func countFragments[K comparable](m *ebpf.Map) (int, error) {
	all, err := bpf.DumpKernel[K, ctmap.FragValue](m)
	return len(all), err
}

// packets returns how many packets the programs have counted, whatever became of
// them. If they cannot be read they are taken to have changed.
func packets(d Datapath) func() uint64 {
	var unknown uint64
	return func() (sum uint64) {
		m := d.Metrics()
		if m == nil {
			return 0
		}
		var perCPU []bpf.Metric
		for i := range m.MaxEntries() {
			if err := m.Lookup(i, &perCPU); err != nil {
				unknown--
				return unknown
			}
			for _, c := range perCPU {
				sum += c.Packets
			}
		}
		return sum
	}
}
