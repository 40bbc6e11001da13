// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// What others may change is counted from zero: the alert sees the first change by a rise.
func TestTamperingIsCountedFromZero(t *testing.T) {
	p, _ := populate(t)
	families, err := p.Registry.Gather()
	require.NoError(t, err)
	counted := map[tables.TamperingID]bool{}
	for _, family := range families {
		if family.GetName() != "sluice_tampering_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			counted[tables.TamperingID{Object: labels["object"], Kind: labels["kind"]}] = true
			require.Zero(t, metric.GetCounter().GetValue())
		}
	}
	for _, id := range []tables.TamperingID{
		{Object: bpf.ProgramFromPod.String(), Kind: tables.TamperedDetached},
		{Object: bpf.ProgramToNetdev.String(), Kind: tables.TamperedReplaced},
		{Object: bpf.ProgramBackstop.String(), Kind: tables.TamperedUnpinned},
		{Object: bpf.ProgramFromPod.String(), Kind: tables.TamperedBehind},
		{Object: "sluice_pods", Kind: tables.TamperedMissing},
		{Object: "sluice_pods", Kind: tables.TamperedUnpinned},
		{Object: "sluice_nat4", Kind: tables.TamperedReplaced},
		{Object: bpf.StateMap, Kind: tables.TamperedChanged},
	} {
		require.True(t, counted[id], "%s", id)
	}
}
