// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// found waits until more tampering of a kind was found than before, and put right.
func (a *agent) found(ifIndex int, p bpf.Program, kind string, do func()) {
	a.t.Helper()
	count := func() uint64 {
		row, _, found := a.tampered.Get(a.db.ReadTxn(),
			tables.TamperingByID(tables.TamperingID{Object: p.String(), Kind: kind}))
		if !found {
			return 0
		}
		return row.Count
	}
	before := count()
	do()
	await.True(a.t, func() bool { return count() > before }, "%s: %s", p, kind)
	a.await(ifIndex, p, func(row *tables.Attachment) bool {
		return row.Status.Kind == reconciler.StatusKindDone
	})
}

// What other tools do to links and pins is noticed and put right.
func TestGuard(t *testing.T) {
	n, bpffs := newNetwork(t), testBPFFS(t)
	s := &setup{network: n} // to attach programs of others
	index := n.addVeth("pod0", "eth0", 0)
	a := startAgent(t, n.ns, "--bpffs="+bpffs)
	defer a.stop()
	a.initialized()
	a.attach(index, bpf.ProgramFromPod, bpf.ProgramToPod)
	a.attach(0, bpf.ProgramBackstop)
	dir := bpf.LinksDir(bpffs)
	pinned := func(name string) link.Link {
		l, err := link.LoadPinnedLink(filepath.Join(dir, name), nil)
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	ours := programID(t, a.datapath.Program(bpf.ProgramFromPod))
	name := pinName(index, bpf.ProgramFromPod)

	a.found(index, bpf.ProgramFromPod, tables.TamperedDetached, func() {
		require.NoError(t, pinned(name).Detach())
	})
	require.Equal(t, []ebpf.ProgramID{ours}, n.running(index, ebpf.AttachTCXIngress))

	a.found(index, bpf.ProgramFromPod, tables.TamperedUnpinned, func() {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	})
	require.Equal(t, ours, n.running(index, ebpf.AttachTCXIngress)[0])
	require.FileExists(t, filepath.Join(dir, name))

	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	require.NoError(t, err)
	defer foreign.Close()
	a.found(index, bpf.ProgramFromPod, tables.TamperedReplaced, func() {
		require.NoError(t, pinned(name).Update(foreign))
	})
	require.Equal(t, ours, n.running(index, ebpf.AttachTCXIngress)[0])

	// Another program behind ours is nothing to tell; one before it is told, and stays.
	s.others(index)
	var first link.Link
	a.found(index, bpf.ProgramFromPod, tables.TamperedBehind, func() {
		n.do(func() {
			first, err = link.AttachTCX(link.TCXOptions{
				Interface: index, Program: foreign, Attach: ebpf.AttachTCXIngress,
				Anchor: link.Head(),
			})
			require.NoError(t, err)
		})
	})
	a.await(index, bpf.ProgramFromPod, func(row *tables.Attachment) bool {
		return row.Behind == uint32(programID(t, foreign))
	})
	require.NoError(t, first.Close())
	a.await(index, bpf.ProgramFromPod, func(row *tables.Attachment) bool { return row.Behind == 0 })

	// The kernel does not say of a link of netfilter that it was detached.
	for _, h := range hooks {
		a.found(0, bpf.ProgramBackstop, tables.TamperedDetached, func() {
			require.NoError(t, pinned(a.backstopPin(dir, h)).Detach())
		})
		a.found(0, bpf.ProgramBackstop, tables.TamperedUnpinned, func() {
			require.NoError(t, os.Remove(filepath.Join(dir, a.backstopPin(dir, h))))
		})
		require.NotEmpty(t, a.backstopPin(dir, h))
	}
	l := links{dir: dir, ns: namespace(n.ns)}
	for _, h := range hooks {
		priority, _ := h.priority(a.backstopPin(dir, h))
		require.True(t, l.isTaken(h, priority, a.datapath.Program(bpf.ProgramBackstop)), h.name)
	}
}

func (a *agent) backstopPin(dir string, h hook) string {
	a.t.Helper()
	pins, err := bpf.PinnedLinks(dir)
	require.NoError(a.t, err)
	for _, pin := range pins {
		if strings.HasPrefix(pin, h.name+"_") {
			return pin
		}
	}
	return ""
}
