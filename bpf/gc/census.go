// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// census counts the entries of maps by the counters that the kernel keeps.
type census struct {
	*ebpf.Collection
	maps [mapCount]*ebpf.Map
}

func openCensus(maps [mapCount]*ebpf.Map) (*census, error) {
	c, err := loadFor(maps, func(name string) bool { return name == censusProgram })
	if err != nil {
		return nil, err
	}
	return &census{c, maps}, nil
}

func (c *census) count() (Counts, error) {
	if _, err := c.Programs[censusProgram].Run(&ebpf.RunOptions{}); err != nil {
		return Counts{}, fmt.Errorf("count entries: %w", err)
	}
	var found programsGcCensus
	if err := c.Variables["census"].Get(&found); err != nil {
		return Counts{}, fmt.Errorf("read how many entries there are: %w", err)
	}
	counts := Counts{Now: uint32(found.Time / uint64(time.Second)), Entries: map[string]int{}}
	for i, m := range c.maps {
		if m != nil {
			counts.Entries[names[i]] = int(found.Entries[i])
		}
	}
	return counts, nil
}

// countByReading counts the entries of all maps by reading them.
func countByReading(maps [mapCount]*ebpf.Map) (Counts, error) {
	now, err := Now()
	if err != nil {
		return Counts{}, err
	}
	counts := Counts{Now: now, Entries: map[string]int{}}
	for i, m := range maps {
		if m == nil {
			continue
		}
		var entries ctmap.Any
		if i < indexNAT4 {
			entries, err = ctmap.New(names[i], m)
		} else {
			entries, err = natmap.New(names[i], m)
		}
		if err == nil {
			counts.Entries[names[i]], err = entries.Count()
		}
		if err != nil {
			return Counts{}, fmt.Errorf("count entries of map %s: %w", names[i], err)
		}
	}
	return counts, nil
}

// clock is a program that returns the seconds of the clock that programs read.
var clock = sync.OnceValues(func() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sluice_clock",
		Type: ebpf.SocketFilter,
		Instructions: asm.Instructions{
			asm.FnKtimeGetNs.Call(),
			asm.Div.Imm(asm.R0, int32(time.Second)),
			asm.Return(),
		},
		License: "Dual BSD/GPL",
	})
})

// Now returns the seconds of the clock that lifetimes are of, as the kernel's
// programs read it: that of the process may be another, in a time namespace.
func Now() (uint32, error) {
	program, err := clock()
	if err != nil {
		return 0, fmt.Errorf("load a program that reads the clock: %w", err)
	}
	seconds, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64)}) // no program runs on an empty packet
	if err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return seconds, nil
}
