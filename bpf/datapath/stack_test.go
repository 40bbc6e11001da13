// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
)

// Kernels before 6.9 count the stack of each function in steps of 32 bytes, later ones
// in steps of 16: a program that is accepted here may be refused there.
const (
	stackLimit = 512
	stackStep  = 32
)

// frame is what a function has on the stack, and which functions it calls.
type frame struct {
	bytes int
	calls map[string]struct{}
}

// TestStackOfOlderKernels: the programs have not too much on the stack for any kernel.
func TestStackOfOlderKernels(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	for name, program := range spec.Programs {
		frames := framesOf(program.Instructions)
		require.Contains(t, frames, name)
		bytes, path := deepest(frames, name)
		require.LessOrEqual(t, bytes, stackLimit, "%v", path)
	}
}

// framesOf finds what is read and written at the frame pointer, and what gets an
// address there.
func framesOf(program asm.Instructions) map[string]*frame {
	frames := map[string]*frame{}
	var f *frame
	pointers := map[asm.Register]bool{}
	for _, ins := range program {
		if name := ins.Symbol(); name != "" {
			f = &frame{calls: map[string]struct{}{}}
			frames[name] = f
		}
		class := ins.OpCode.Class()
		switch {
		case ins.IsFunctionCall():
			f.calls[ins.Reference()] = struct{}{}
		case class.IsStore() && ins.Dst == asm.RFP, class.IsLoad() && ins.Src == asm.RFP:
			f.bytes = max(f.bytes, -int(ins.Offset))
		case class.IsALU() && ins.OpCode.ALUOp() == asm.Mov:
			pointers[ins.Dst] = ins.OpCode.Source() == asm.RegSource && ins.Src == asm.RFP
		case class.IsALU() && ins.OpCode.ALUOp() == asm.Add && pointers[ins.Dst]:
			f.bytes = max(f.bytes, -int(ins.Constant))
			pointers[ins.Dst] = false
		}
	}
	return frames
}

// deepest returns the most that a function and those that it calls have on the stack,
// and by which calls.
func deepest(frames map[string]*frame, name string) (bytes int, path []string) {
	for called := range frames[name].calls {
		if b, p := deepest(frames, called); b > bytes {
			bytes, path = b, p
		}
	}
	own := (max(frames[name].bytes, 1) + stackStep - 1) / stackStep * stackStep
	return own + bytes, append([]string{name}, path...)
}
