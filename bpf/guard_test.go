// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
)

// Pins that something else removes or replaces, maps that it takes out of their slot, and what it
// writes to sluice_state, are put right, once.
func TestRestore(t *testing.T) {
	bpffs := testBPFFS(t)
	h := newTestHive(t, nil, "--bpffs="+bpffs)
	require.NoError(t, h.Start(h.log, context.Background()))
	defer func() { require.NoError(t, h.Stop(h.log, context.Background())) }()
	kernel := h.maps.Backend().(*Kernel)
	own, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	defer own.Close()
	programs := func(name string) *ebpf.Map { return map[string]*ebpf.Map{"sluice_ct4_tcp": own}[name] }
	restored := func() []Damage {
		t.Helper()
		damage, err := kernel.Restore(programs)
		require.NoError(t, err)
		return damage
	}

	was, err := h.maps.RestoreState()
	require.NoError(t, err)
	require.Empty(t, was, "before the flip it is the former agent's")
	require.NoError(t, h.maps.Flip())
	require.Equal(t, []Damage{{Map: "sluice_ct4_tcp"}}, restored(), "the test has not pinned it")
	require.Empty(t, restored())

	dir := MapsDir(bpffs)
	_, slot, err := h.maps.Slot()
	require.NoError(t, err)
	for _, path := range []string{
		"sluice_ct4_tcp", "sluice_config", filepath.Join(layoutDir, StateMap),
		filepath.Join(layoutDir, podsMap), slotPath(slot, podsMap),
	} {
		require.NoError(t, os.Remove(filepath.Join(dir, path)))
		require.Equal(t, []Damage{{Map: filepath.Base(path)}}, restored(), path)
		require.FileExists(t, filepath.Join(dir, path))
	}
	stray, err := own.Clone()
	require.NoError(t, err)
	defer stray.Close()
	require.NoError(t, os.Remove(filepath.Join(dir, "sluice_config")))
	require.NoError(t, stray.Pin(filepath.Join(dir, "sluice_config")))
	require.Equal(t, []Damage{{Map: "sluice_config", Replaced: true}}, restored())

	// Another map in the slot has what packets are judged by.
	_, err = h.maps.Subjects.Update([]SubjectKey{{1}}, []SubjectValue{{5}})
	require.NoError(t, err)
	other, err := ebpf.NewMap(kernelSpec[SubjectKey, SubjectValue](h.maps.Subjects.Spec()))
	require.NoError(t, err)
	defer other.Close()
	slots := h.maps.Kernel()["sluice_subjects"]
	require.NoError(t, slots.Put(slot, other))
	require.Equal(t, []Damage{{Map: "sluice_subjects", Replaced: true}}, restored())
	require.NoError(t, slots.Delete(slot))
	require.Equal(t, []Damage{{Map: "sluice_subjects", Replaced: true}}, restored())
	require.Empty(t, restored())

	before, err := h.maps.Generation()
	require.NoError(t, err)
	_, err = h.maps.State.Update(
		[]StateKey{{}}, []StateValue{{Slot: (slot + 1) % Slots, Generation: 7}})
	require.NoError(t, err)
	was, err = h.maps.RestoreState()
	require.NoError(t, err)
	require.Contains(t, was, "generation=7")
	active, err := h.maps.activeSlot()
	require.NoError(t, err)
	require.Equal(t, slot, active)
	after, err := h.maps.Generation()
	require.NoError(t, err)
	require.Equal(t, before+1, after, "what was judged meanwhile is judged again")
	was, err = h.maps.RestoreState()
	require.NoError(t, err)
	require.Empty(t, was)
}
