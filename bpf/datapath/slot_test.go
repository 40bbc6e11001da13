// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// Packets are decided about by the active slot, and by nothing that is in the other one.
func TestActiveSlot(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.remote(second()))
		send := func(port uint16) *packettest.Result {
			return f.fromPod(packettest.IP(f.Pod, f.Server), packettest.UDP{Src: port, Dst: 53})
		}
		f.toGateway(send(1000), second())

		// The same pod in the other slot: no policy selects it, and what goes is judged anew.
		require.NoError(t, f.UseSlot(1))
		f.dropped(send(2000), bpf.ReasonUnknownSource) // nothing is in it
		require.NoError(t, f.FillSlot(f.Addresses))
		f.checked(send(3000))

		require.NoError(t, f.UseSlot(0))
		f.toGateway(send(4000), second())
	})
}

// A packet does not mix slots: each program reads once which one is active, where it
// begins, and hands that to all that look something up.
func TestStateIsReadOnce(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	for name, program := range spec.Programs {
		function, key := "", int64(-1)
		constants := map[asm.Register]int64{}
		var reads []int64
		for _, ins := range program.Instructions {
			if symbol := ins.Symbol(); symbol != "" {
				function = symbol
			}
			class := ins.OpCode.Class()
			switch {
			case ins.Reference() == bpf.StateMap:
				reads = append(reads, key)
				require.Equal(t, name, function, "where %s reads the state", name)
			case class.IsALU() && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.ImmSource:
				constants[ins.Dst] = ins.Constant
			case class.IsStore() && ins.OpCode.Size() == asm.Word && ins.Dst == asm.RFP:
				key = constants[ins.Src]
			}
		}
		require.Equal(t, []int64{0}, reads, "what %s reads", name)
	}
}
