// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func rowsOf[Row any](rows ...Row) iter.Seq2[Row, statedb.Revision] {
	return func(yield func(Row, statedb.Revision) bool) {
		for _, row := range rows {
			if !yield(row, 1) {
				return
			}
		}
	}
}

// others attaches a program that is not an agent's, and returns its number.
func (s *setup) others(ifIndex int) ebpf.ProgramID {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	require.NoError(s.t, err)
	s.do(func() {
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifIndex, Program: p, Attach: ebpf.AttachTCXIngress})
		require.NoError(s.t, err)
		s.t.Cleanup(func() { l.Close(); p.Close() })
	})
	return programID(s.t, p)
}

func TestAttachBeforeOthersAndDetach(t *testing.T) {
	s := newSetup(t)
	index := s.addVeth("pod0", "eth0", 0)
	other := s.others(index)
	row := s.mustAttach(index, bpf.ProgramFromPod)
	s.mustAttach(index, bpf.ProgramToPod)
	require.Equal(t, []ebpf.ProgramID{programID(t, s.programs(bpf.ProgramFromPod)), other}, s.running(index, ebpf.AttachTCXIngress))
	require.Equal(t, []ebpf.ProgramID{programID(t, s.programs(bpf.ProgramToPod))}, s.running(index, ebpf.AttachTCXEgress))
	require.Equal(t, 1, s.seeded)

	again := s.mustAttach(index, bpf.ProgramFromPod)
	require.Equal(t, row.LinkID, again.LinkID)
	require.Equal(t, 1, s.seeded, "nothing new is attached")

	require.NoError(t, s.Delete(t.Context(), nil, 0, row))
	require.NoError(t, s.Delete(t.Context(), nil, 0, row), "there is nothing to delete")
	require.Equal(t, []ebpf.ProgramID{other}, s.running(index, ebpf.AttachTCXIngress))
	require.Len(t, s.running(index, ebpf.AttachTCXEgress), 1)
}

func TestToPodComesFirst(t *testing.T) {
	s := newSetup(t)
	index := s.addVeth("pod0", "eth0", 0)
	table := s.table.(statedb.RWTable[*tables.Attachment])
	wtxn := s.db.WriteTxn(table)
	_, _, err := table.Insert(wtxn, &tables.Attachment{IfIndex: index, Program: bpf.ProgramToPod})
	require.NoError(t, err)
	wtxn.Commit()
	s.seed = func(int) { require.Len(t, s.running(index, ebpf.AttachTCXEgress), 1) }
	s.mustAttach(index, bpf.ProgramFromPod)
	require.Len(t, s.running(index, ebpf.AttachTCXIngress), 1)
}

// The next agent replaces the program in its link: there is never a packet that
// no program sees.
func TestRestartReplacesPrograms(t *testing.T) {
	s := newSetup(t)
	index := s.addVeth("pod0", "eth0", 0)
	other := s.others(index)
	before := s.mustAttach(index, bpf.ProgramFromPod)
	old := s.running(index, ebpf.AttachTCXIngress)

	s.restart()
	after := s.mustAttach(index, bpf.ProgramFromPod)
	require.Equal(t, before.LinkID, after.LinkID)
	now := s.running(index, ebpf.AttachTCXIngress)
	require.Equal(t, []ebpf.ProgramID{programID(t, s.programs(bpf.ProgramFromPod)), other}, now)
	require.NotEqual(t, old, now)
	require.Equal(t, 1, s.seeded, "the pod's connections are known")
}

func TestDeviceIsReplaced(t *testing.T) {
	s := newSetup(t)
	index := s.addVeth("pod0", "eth0", 0)
	before := s.mustAttach(index, bpf.ProgramFromPod)

	s.removeDevice("pod0")
	_, err := s.attach(index, bpf.ProgramFromPod)
	require.ErrorIs(t, err, ErrDeviceGone)

	require.Equal(t, index, s.addVeth("pod0", "eth0", index), "the new device has the index of the old one")
	after := s.mustAttach(index, bpf.ProgramFromPod)
	require.NotEqual(t, before.LinkID, after.LinkID)
	require.Len(t, s.running(index, ebpf.AttachTCXIngress), 1)
	require.Equal(t, []string{pinName(index, bpf.ProgramFromPod)}, s.pins())

	s.removeDevice("pod0")
	require.NoError(t, s.Delete(t.Context(), nil, 0, after))
	require.Empty(t, s.pins())
}

func TestPrune(t *testing.T) {
	s := newSetup(t)
	require.NoError(t, s.Prune(t.Context(), nil, rowsOf[*tables.Attachment]()), "there is no directory yet")
	first, second := s.addVeth("pod0", "eth0", 0), s.addVeth("pod1", "eth1", 0)
	wanted := s.mustAttach(first, bpf.ProgramFromPod)
	s.mustAttach(second, bpf.ProgramFromPod)
	s.mustAttach(second, bpf.ProgramToPod)
	backstop := s.mustAttach(0, bpf.ProgramBackstop)

	s.restart()
	require.NoError(t, s.Prune(t.Context(), nil, rowsOf(wanted, backstop)))
	require.Equal(t, append(backstopPins(-170), pinName(first, bpf.ProgramFromPod)), s.pins())
	require.Len(t, s.running(first, ebpf.AttachTCXIngress), 1)
	require.Empty(t, s.running(second, ebpf.AttachTCXIngress))
	require.Empty(t, s.running(second, ebpf.AttachTCXEgress))

	// The CNI plugin may have attached what no row wants yet.
	s.reported = map[int]time.Time{first: time.Now()}
	require.NoError(t, s.Prune(t.Context(), nil, rowsOf[*tables.Attachment]()))
	require.Equal(t, []string{pinName(first, bpf.ProgramFromPod)}, s.pins())
	s.reported = nil
	require.NoError(t, s.Prune(t.Context(), nil, rowsOf[*tables.Attachment]()))
	require.Empty(t, s.pins())
}

// backstopPins are the names of the backstop's pins, as they are sorted.
func backstopPins(priority int32) (names []string) {
	for _, name := range []string{"backstop4", "backstop4in", "backstop6", "backstop6in"} {
		names = append(names, fmt.Sprintf("%s_%d", name, priority))
	}
	slices.Sort(names)
	return names
}

func TestBackstopIsReplaced(t *testing.T) {
	s := newSetup(t)
	row := s.mustAttach(0, bpf.ProgramBackstop)
	again := s.mustAttach(0, bpf.ProgramBackstop)
	require.Equal(t, row.LinkID, again.LinkID)
	require.Equal(t, backstopPins(-170), s.pins())

	// The kernel cannot replace it: another takes the next priority before it goes.
	s.restart()
	replaced := s.mustAttach(0, bpf.ProgramBackstop)
	require.NotEqual(t, row.LinkID, replaced.LinkID)
	require.Equal(t, backstopPins(-169), s.pins())
	for _, pin := range s.pins() {
		a, err := s.links().load(pin)
		require.NoError(t, err)
		require.Equal(t, programID(t, s.programs(bpf.ProgramBackstop)), a.Info.Program)
		a.Close()
	}
	s.restart()
	s.mustAttach(0, bpf.ProgramBackstop)
	require.Equal(t, backstopPins(-170), s.pins())

	require.NoError(t, s.Delete(t.Context(), nil, 0, row))
	require.Empty(t, s.pins())
}

// Programs for pods' devices are pinned when they hold pods, and an agent puts its own in
// the place of those of another.
func TestProgramsArePinned(t *testing.T) {
	bpffs := testBPFFS(t)
	n := newNetwork(t)
	dir := bpf.ProgramsDir(bpffs)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.Pin(filepath.Join(dir, "from_pod"))) // no program, and replaced
	for range 2 {
		a := startAgent(t, n.ns, "--bpffs="+bpffs)
		a.policies.Put(&tables.NetworkPolicy{})
		a.initialized()
		a.attach(0, bpf.ProgramBackstop)
		a.config.Put(&tables.ConfigMirror{})
		require.False(t, a.pinned(dir, bpf.ProgramFromPod), "pods are not held by policies yet")
		a.config.Put(&tables.ConfigMirror{Value: bpf.ConfigValue{Flags: bpf.ConfigNetworkPolicies}})
		for _, p := range bpf.PinnedPrograms {
			await.True(t, func() bool { return a.pinned(dir, p) })
		}
		a.stop()
	}
	removed, err := bpf.CleanupPrograms(bpffs)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"from_pod", "to_pod"}, removed)
	require.NoDirExists(t, dir)
	removed, err = bpf.CleanupPrograms(bpffs)
	require.NoError(t, err)
	require.Empty(t, removed)
}

// pinned reports whether a program of this agent's is pinned.
func (a *agent) pinned(dir string, p bpf.Program) bool {
	pinned, err := ebpf.LoadPinnedProgram(filepath.Join(dir, p.String()), nil)
	if err != nil {
		return false
	}
	defer pinned.Close()
	return programID(a.t, a.datapath.Program(p)) == programID(a.t, pinned)
}

// An agent and the CNI plugin attach programs to a device at the same time: both have
// found no link. The first link stays, and runs the agent's program in the end.
func TestAttachedByBoth(t *testing.T) {
	for _, agentFirst := range []bool{true, false} {
		s := newSetup(t)
		index := s.addVeth("pod0", "eth0", 0)
		former := loadPrograms(t).Program(bpf.ProgramFromPod)
		plugin := func() (err error) {
			s.do(func() { _, err = bpf.AttachDevice(s.dir, index, bpf.ProgramFromPod, former) })
			return err
		}
		if !agentFirst {
			require.NoError(t, plugin())
		}
		_, err := s.links().attach(index, bpf.ProgramFromPod, s.programs(bpf.ProgramFromPod))
		require.NoError(t, err)
		before, err := s.links().loadTCX(index, bpf.ProgramFromPod)
		require.NoError(t, err)
		require.ErrorIs(t, plugin(), bpf.ErrAttached)
		after, err := s.links().loadTCX(index, bpf.ProgramFromPod)
		require.NoError(t, err)
		require.Equal(t, before.Info.ID, after.Info.ID)
		before.Close()
		after.Close()
		require.Equal(t, []ebpf.ProgramID{programID(t, s.programs(bpf.ProgramFromPod))}, s.running(index, ebpf.AttachTCXIngress))
	}
}

func TestWhatCannotBeAttached(t *testing.T) {
	s := newSetup(t)
	tunnel := &vn.Tuntap{LinkAttrs: vn.LinkAttrs{Name: "tunnel"}, Mode: vn.TUNTAP_MODE_TUN}
	s.do(func() { require.NoError(t, s.LinkAdd(tunnel)) })
	_, err := s.attach(s.link("tunnel").Attrs().Index, bpf.ProgramToNetdev)
	require.ErrorContains(t, err, "device tunnel has no Ethernet header, which the programs need: its link type is none")
	_, err = s.attach(0, bpf.ProgramToNetdev)
	require.ErrorContains(t, err, "attach to_netdev: not to device 0")
	_, err = s.attach(1, bpf.ProgramBackstop)
	require.ErrorContains(t, err, "not to device 1")
	_, err = s.attach(1, bpf.Program(77))
	require.ErrorContains(t, err, "no such program")

	// A pin that is no link is replaced.
	index := s.addVeth("pod0", "eth0", 0)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, os.MkdirAll(s.dir, 0o700))
	require.NoError(t, m.Pin(s.links().path(pinName(index, bpf.ProgramFromPod))))
	s.mustAttach(index, bpf.ProgramFromPod)
}

// What agents left is removed without one.
func TestCleanupLinks(t *testing.T) {
	s := newSetup(t)
	bpffs := s.dir[:len(s.dir)-len("/sluice/links")]
	index, gone := s.addVeth("pod0", "eth0", 0), s.addVeth("pod1", "eth1", 0)
	s.mustAttach(index, bpf.ProgramFromPod)
	s.mustAttach(gone, bpf.ProgramFromPod)
	s.mustAttach(0, bpf.ProgramBackstop)
	s.removeDevice("pod1")

	removed, err := bpf.CleanupLinks(bpffs)
	require.NoError(t, err)
	require.ElementsMatch(t, append(backstopPins(-170),
		pinName(index, bpf.ProgramFromPod), pinName(gone, bpf.ProgramFromPod),
	), removed)
	require.Empty(t, s.running(index, ebpf.AttachTCXIngress))
	require.NoDirExists(t, s.dir)
	removed, err = bpf.CleanupLinks(bpffs)
	require.NoError(t, err)
	require.Empty(t, removed)
}
