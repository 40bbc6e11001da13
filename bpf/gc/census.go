// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Count returns how many entries maps have, by the counters that the kernel keeps.
func Count(maps Maps) (Counts, error) {
	all := maps.list(Shares{})
	programs, err := load(all, nil, map[string]bool{censusProgram: true})
	if err != nil {
		return Counts{}, err
	}
	defer programs.Close()
	return count(programs, all)
}

func count(programs *ebpf.Collection, maps [allCount]*ebpf.Map) (Counts, error) {
	if _, err := programs.Programs[censusProgram].Run(&ebpf.RunOptions{}); err != nil {
		return Counts{}, fmt.Errorf("count entries: %w", err)
	}
	var found programsGcCensus
	if err := programs.Variables["census"].Get(&found); err != nil {
		return Counts{}, fmt.Errorf("read how many entries there are: %w", err)
	}
	counts := Counts{Now: uint32(found.Time / uint64(time.Second)), Entries: map[string]int{}}
	for i, m := range maps[:mapCount] {
		if m != nil {
			counts.Entries[names[i]] = int(found.Entries[i])
		}
	}
	counts.shares, counts.ports = int(found.Shares), int(found.Ports)
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
