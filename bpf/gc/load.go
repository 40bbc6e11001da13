// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// Names of the programs: behind the prefix comes the map's, without "sluice_".
const (
	iteratorPrefix = "gc_"
	keyPrefix      = "one_"
	censusProgram  = "count_entries"
	releasedMap    = "sluice_released"
	eventsMap      = "sluice_gc"
	suspectsMap    = "sluice_suspects"
)

func programName(prefix string, index int) string {
	return prefix + strings.TrimPrefix(names[index], "sluice_")
}

// load loads the wanted programs for the maps of a set. In the place of those that do
// not exist are empty ones.
func load(
	maps [allCount]*ebpf.Map, ledger *bpf.Ledger, wanted map[string]bool,
) (*ebpf.Collection, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	for name := range spec.Programs {
		if !wanted[name] {
			delete(spec.Programs, name)
		}
	}
	replacements := map[string]*ebpf.Map{}
	used := map[string]bool{
		releasedMap: true, eventsMap: true, suspectsMap: true, bpf.LedgerMap: true, bpf.MissingMap: true,
	}
	if err := spec.Variables[bpf.LedgerOn].Set(ledger != nil); err != nil {
		return nil, fmt.Errorf("set %s: %w", bpf.LedgerOn, err)
	}
	if ledger != nil {
		replacements[bpf.LedgerMap], replacements[bpf.MissingMap] = ledger.Records, ledger.Missing
		spec.Maps[bpf.LedgerMap].MaxEntries = ledger.Records.MaxEntries()
	}
	for i, m := range maps {
		used[names[i]] = true
		if m != nil {
			replacements[names[i]] = m
			spec.Maps[names[i]].MaxEntries = m.MaxEntries()
		}
	}
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if !used[name] && !strings.HasPrefix(name, ".") {
			delete(spec.Maps, name)
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return c, nil
}
