// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// Packets are decided about by the slot in force, and by nothing that is in the other one.
func TestSlotInForce(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.remote(second()))
		send := func(port uint16) *packettest.Result {
			return f.fromPod(packettest.IP(f.Pod, f.Server), packettest.UDP{Src: port, Dst: 53})
		}
		f.toGateway(send(1000), second())

		// The same pod in the other slot: no policy chooses it, and what goes is judged anew.
		require.NoError(t, f.UseSlot(1))
		f.dropped(send(2000), bpf.ReasonUnknownSource) // nothing is in it
		require.NoError(t, f.FillSlot(f.Addresses))
		f.checked(send(3000))

		require.NoError(t, f.UseSlot(0))
		f.toGateway(send(4000), second())
	})
}

// A packet does not mix slots: each program reads once which one is in force, where it
// begins, and hands that to all that look something up.
func TestSlotIsReadOnce(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	for name, program := range spec.Programs {
		function, reads := "", 0
		for _, ins := range program.Instructions {
			if symbol := ins.Symbol(); symbol != "" {
				function = symbol
			}
			if ins.Reference() == bpf.StateMap {
				reads++
				require.Equal(t, name, function, "where %s reads the slot", name)
			}
		}
		require.Equal(t, 1, reads, "%s reads the slot", name)
	}
}
