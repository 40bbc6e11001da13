// SPDX-License-Identifier: Apache-2.0

package percluster

import (
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
)

// What the program returns.
const (
	wrote  = 1
	absent = 2
	failed = 3
)

// writer returns a program that looks up the IPv4 map of cluster 7 and writes an
// entry to it, whose key is zero.
func writer(t *testing.T, array *ebpf.Map) *ebpf.Program {
	const key, value, index = -16, -88, -96 // on the stack: 14 bytes, 72 and 4
	code := asm.Instructions{asm.Mov.Imm(asm.R2, 0)}
	for at := int16(index); at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, asm.R2, asm.DWord))
	}
	code = append(code,
		asm.StoreImm(asm.RFP, index, 7, asm.Word),
		asm.LoadMapPtr(asm.R1, array.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, index),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "there"),
		asm.Mov.Imm(asm.R0, absent), asm.Return(),
		asm.Mov.Reg(asm.R1, asm.R0).WithSymbol("there"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, value),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "failed"),
		asm.Mov.Imm(asm.R0, wrote), asm.Return(),
		asm.Mov.Imm(asm.R0, failed).WithSymbol("failed"), asm.Return(),
	)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "writer", Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// Maps of a cluster come, get another size and go while a program writes to them.
// It sees them or not, and when they have been deleted it does not any more.
func TestProgramsSeeMapsComeAndGo(t *testing.T) {
	t.Parallel()
	m := openOrCreate(t, mapsDir(t))
	program := writer(t, m.arrays[0])
	run := func() (uint32, error) { return program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 100}) }
	var (
		stop    atomic.Bool
		results [4]atomic.Int64
		done    = make(chan error)
	)
	go func() {
		for !stop.Load() {
			result, err := run()
			if err != nil {
				done <- err
				return
			}
			results[result].Add(1)
		}
		done <- nil
	}()
	for round := range uint32(6) {
		require.NoError(t, m.Create(7, Sizes{CTTCP: 100 + round%2, CTAny: 10, NAT: 10}))
		require.NoError(t, m.Create(7, Sizes{CTTCP: 200 + round%2, CTAny: 10, NAT: 10}))
		result, err := run()
		require.NoError(t, err)
		require.EqualValues(t, wrote, result)
		c, err := m.Get(7)
		require.NoError(t, err)
		require.NoError(t, m.Delete(7))
		result, err = run()
		require.NoError(t, err)
		require.EqualValues(t, absent, result)
		// Nothing writes to it any more: what is deleted from it stays away.
		require.NoError(t, c.set.CT4TCP.Delete(make([]byte, 14)))
		result, err = run()
		require.NoError(t, err)
		require.EqualValues(t, absent, result)
		requireFilled(t, c, 0)
		require.NoError(t, c.Close())
	}
	stop.Store(true)
	require.NoError(t, <-done)
	require.Zero(t, results[failed].Load())
	require.Positive(t, results[wrote].Load())
	require.Positive(t, results[absent].Load())
}
