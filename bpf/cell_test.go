// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/script"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// testHive is an agent of nothing but maps.
type testHive struct {
	*hive.Hive
	t      *testing.T
	maps   *Maps
	logged *bytes.Buffer
	log    *slog.Logger
}

func newTestHive(t *testing.T, backend Backend, args ...string) *testHive {
	h := &testHive{t: t, logged: &bytes.Buffer{}}
	h.log = slog.New(slog.NewTextHandler(h.logged, nil))
	cells := []cell.Cell{Cell, cell.Invoke(func(m *Maps) { h.maps = m })}
	if backend != nil {
		cells = append(cells, cell.Provide(func() Backend { return backend }))
	}
	h.Hive = hive.New(cells...)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	return h
}

func (h *testHive) script(line string) (string, error) {
	cmds, err := h.ScriptCommands(h.log)
	require.NoError(h.t, err)
	args := strings.Fields(line)
	state, err := script.NewState(h.t.Context(), h.t.TempDir(), nil)
	require.NoError(h.t, err)
	wait, err := cmds[args[0]].Run(state, args[1:]...)
	if err != nil || wait == nil {
		return "", err
	}
	stdout, _, err := wait(state)
	return stdout, err
}

func (h *testHive) must(line string) string {
	h.t.Helper()
	out, err := h.script(line)
	require.NoError(h.t, err, line)
	return out
}

func TestScriptCommands(t *testing.T) {
	memory := NewMemory()
	var observed []string
	memory.OnWrite(func(w Write, r Reader) {
		if w.Map != "sluice_sources" {
			return
		}
		v, found := Get[SourceKey, SourceValue](r, w.Map, w.Key.(SourceKey))
		observed = append(observed, strings.TrimSpace(v.String()+map[bool]string{false: " absent"}[found]))
	})
	h := newTestHive(t, memory)
	h.must("map/fail sluice_sources update full 1") // before the start
	h.must("map/size sluice_sources 2")
	require.NoError(t, h.Start(h.log, context.Background()))
	require.NoError(t, h.maps.Flip())

	keys := []SourceKey{{Address{15: 1}}, {Address{15: 2}}, {Address{15: 3}}}
	values := []SourceValue{{1}, {2}, {3}}
	done, err := h.maps.Sources.Update(keys, values)
	require.Zero(t, done)
	require.ErrorIs(t, err, ErrMapFull)
	done, err = h.maps.Sources.Update(keys, values)
	require.Equal(t, 2, done)
	require.ErrorIs(t, err, ErrMapFull)
	h.must("map/fail sluice_sources delete eperm -1")
	_, err = h.maps.Sources.Delete(keys[:1])
	require.ErrorIs(t, err, unix.EPERM)
	_, err = h.maps.Sources.Delete(keys[:1])
	require.ErrorIs(t, err, unix.EPERM)
	h.must("map/fail sluice_sources any eperm 0")
	_, err = h.maps.Sources.Delete(keys[:1])
	require.NoError(t, err)

	require.Equal(t, "::2 -> class=2\n", h.must("map/dump sluice_sources"))
	require.Empty(t, h.must("map/dump sluice_pods"))
	want := `sluice_sources update ::1 -> class=1 (argument list too long)
sluice_sources update ::1 -> class=1
sluice_sources update ::2 -> class=2
sluice_sources update ::3 -> class=3 (argument list too long)
sluice_sources delete ::1 (operation not permitted)
sluice_sources delete ::1 (operation not permitted)
sluice_sources delete ::1
`
	require.Equal(t, want, h.must("map/log sluice_sources"))
	require.Empty(t, h.must("map/log"))
	require.Equal(t, []string{
		"class=0 absent", "class=1", "class=2", "class=0 absent", "class=1", "class=1", "class=0 absent",
	}, observed)

	require.Equal(t, "wrote ::2 -> class=253\n", h.must("map/corrupt sluice_sources change"))
	require.Equal(t, "removed ::2\n", h.must("map/corrupt sluice_sources remove"))
	h.must("map/corrupt sluice_egress add")
	require.Contains(t, h.must("map/dump sluice_egress"), "class=4008636142")
	require.Empty(t, h.must("map/log"), "nobody saw that")

	for line, want := range map[string]string{
		"map/dump nosuch":                  `no map "nosuch": the maps are [sluice_pods `,
		"map/fail sluice_pods write full":  `unknown operation "write"`,
		"map/fail sluice_pods any bad":     `unknown error "bad": want one of ebusy, `,
		"map/fail sluice_pods any full -2": `parse count "-2"`,
		"map/corrupt sluice_pods remove":   "has no entry to remove",
		"map/corrupt sluice_pods mend":     "has no entry to mend",
		"map/size sluice_pods many":        "parse size",
		"map/corrupt sluice_egress mend":   `unknown way "mend"`,
		"map/log nosuch":                   `no map "nosuch"`,
	} {
		_, err := h.script(line)
		require.ErrorContains(t, err, want, line)
	}
	_, err = h.maps.Sources.Update(keys[:1], values[:1])
	require.NoError(t, err)
	require.NoError(t, h.Stop(h.log, context.Background()))

	// What packets meet, the sizes of maps and what was shown survive the agent. The next
	// one fills maps of its own, and packets meet these after the flip.
	again := newTestHive(t, memory)
	require.NoError(t, again.Start(again.log, context.Background()))
	require.EqualValues(t, 2, again.maps.Sources.Spec().MaxEntries)
	require.Empty(t, again.must("map/dump sluice_sources"))
	inForce := func() (class uint32) {
		memory.Read(func(r Reader) {
			v, _ := Get[SourceKey, SourceValue](r, "sluice_sources", keys[0])
			class = v.Class
		})
		return class
	}
	_, err = again.maps.Sources.Update(keys[:1], values[1:2])
	require.NoError(t, err)
	require.EqualValues(t, 1, inForce())
	require.NoError(t, again.maps.Flip())
	require.EqualValues(t, 2, inForce())
	require.NoError(t, again.maps.Release())
	require.EqualValues(t, 2, inForce())
	require.Equal(t, "sluice_sources update ::1 -> class=1\nsluice_sources update ::1 -> class=2\nsluice_state update 0 -> 0\n", again.must("map/log"))
	again.must("map/reset-log")
	require.NoError(t, again.Stop(again.log, context.Background()))
}

func TestModes(t *testing.T) {
	h := newTestHive(t, nil, "--bpf=memory")
	require.NoError(t, h.Start(h.log, context.Background()))
	require.Equal(t, "memory", h.maps.Backend().Name())
	require.Contains(t, h.logged.String(), "no packet is touched")
	require.NoError(t, h.Stop(h.log, context.Background()))
	require.Nil(t, h.maps.Backend())

	// A file is where the BPF file system should be.
	file := filepath.Join("/proc/self/status", "bpf")
	h = newTestHive(t, nil, "--bpf=kernel", "--bpffs="+file)
	require.ErrorContains(t, h.Start(h.log, context.Background()), "--bpf=kernel is not possible: ")
	h = newTestHive(t, nil, "--bpffs="+file)
	require.NoError(t, h.Start(h.log, context.Background()))
	require.Equal(t, "memory", h.maps.Backend().Name())
	require.Contains(t, h.logged.String(), "reason=")
	require.NoError(t, h.Stop(h.log, context.Background()))

	for _, args := range []string{"--bpf=fast", "--bpffs=sys/fs/bpf", "--map-size-pods=0"} {
		require.Error(t, newTestHive(t, nil, args).Populate(hivetest.Logger(t)), args)
	}
}

func TestKernelMode(t *testing.T) {
	bpffs := testBPFFS(t)
	run := func(check func(h *testHive)) {
		h := newTestHive(t, nil, "--bpffs="+bpffs)
		require.NoError(t, h.Start(h.log, context.Background()))
		require.Equal(t, "kernel", h.maps.Backend().Name())
		check(h)
		require.NoError(t, h.Stop(h.log, context.Background()))
	}
	run(func(h *testHive) {
		require.Contains(t, h.logged.String(), "Maps are kept in the kernel")
		_, err := h.maps.Sources.Update([]SourceKey{{Address{15: 1}}}, []SourceValue{{5}})
		require.NoError(t, err)
		_, err = h.script("map/log")
		require.ErrorContains(t, err, "not in memory")
		require.Equal(t, "wrote ::1 -> class=250\n", h.must("map/corrupt sluice_sources change"))
		require.NoError(t, h.maps.Flip())

		second := newTestHive(t, nil, "--bpffs="+bpffs)
		require.ErrorIs(t, second.Start(second.log, context.Background()), ErrInUse)
	})
	sources := func(h *testHive) string {
		m, err := OpenInForce(MapsDir(bpffs), "sluice_sources")
		require.NoError(t, err)
		defer m.Close()
		entries, err := DumpKernel[SourceKey, SourceValue](m)
		require.NoError(t, err)
		return strings.Join(Lines(entries), "\n")
	}
	// An agent that fills its slot is killed, again and again. What was in force stays, until
	// one flips.
	for run := range 3 {
		h := newTestHive(t, nil, "--bpffs="+bpffs)
		require.NoError(t, h.Start(h.log, context.Background()))
		inForce, own, err := h.maps.Slot()
		require.NoError(t, err)
		require.Equal(t, []uint32{1, 0}, []uint32{inForce, own}, "run %d", run)
		require.Empty(t, h.must("map/dump sluice_sources"))
		_, err = h.maps.Sources.Update([]SourceKey{{Address{15: 2}}}, []SourceValue{{6}})
		require.NoError(t, err)
		require.Equal(t, "::1 -> class=250", sources(h))
		if run == 2 {
			require.NoError(t, h.maps.Flip())
			require.Equal(t, "::2 -> class=6", sources(h))
			require.NoError(t, h.maps.Release())
			require.NoDirExists(t, filepath.Join(MapsDir(bpffs), slotPath(1, "")))
		}
		require.NoError(t, h.Stop(h.log, context.Background()))
	}
}

// The maps of another version stay until nothing uses them, and then go; the last epoch
// and the addresses of its pods are known.
func TestFormerLayout(t *testing.T) {
	bpffs := testBPFFS(t)
	k := testKernel(t, bpffs)
	former, err := Open[PodKey, PodValue](k, Spec{"sluice_pods", TypeHash, 16})
	require.NoError(t, err)
	_, err = former.Update([]PodKey{{Address{15: 1}}, {Address{15: 2}}}, []PodValue{{Epoch: 7}, {Epoch: 5}})
	require.NoError(t, err)
	sources, err := Open[SourceKey, SourceValue](k, Spec{"sluice_sources", TypeHash, 16})
	require.NoError(t, err)
	_, err = sources.Update([]SourceKey{{Address{15: 3}}}, []SourceValue{{1}})
	require.NoError(t, err)
	_, err = Open[ClassKey, ClassValue](k, Spec{"sluice_classes", TypeHash, 16})
	require.NoError(t, err)
	require.NoError(t, k.Close())

	h := newTestHive(t, nil, "--bpffs="+bpffs, "--map-size-classes=100")
	require.NoError(t, h.Start(h.log, context.Background()))
	require.Contains(t, h.logged.String(), "A flag is ignored")
	require.EqualValues(t, 7, h.maps.Former().Epoch)
	var addrs []string
	for _, a := range h.maps.Former().Addrs {
		addrs = append(addrs, a.String())
	}
	require.ElementsMatch(t, []string{"::1", "::2", "::3"}, addrs)
	require.Empty(t, h.must("map/dump sluice_pods"))
	require.FileExists(t, filepath.Join(MapsDir(bpffs), "sluice_pods"))
	require.NoError(t, h.maps.Flip())
	require.NoError(t, h.maps.Release())
	removed, err := h.maps.Sweep()
	require.NoError(t, err)
	require.Equal(t, []string{"sluice_classes", "sluice_pods", "sluice_sources"}, removed)
	require.FileExists(t, filepath.Join(MapsDir(bpffs), slotPath(1, "sluice_pods")))
	require.NoError(t, h.Stop(h.log, context.Background()))
}

// Writes are remembered in a bounded number.
func TestMemoryForgets(t *testing.T) {
	memory := NewMemory()
	m, err := Open[SourceKey, SourceValue](memory, Spec{"sources", TypeHash, 1})
	require.NoError(t, err)
	for range 5 * recordedWrites / 2 {
		_, err := m.Update([]SourceKey{{}}, []SourceValue{{}})
		require.NoError(t, err)
	}
	writes, lost := memory.Writes(10)
	require.EqualValues(t, 5*recordedWrites/2-10, lost+uint64(len(writes)))
	require.GreaterOrEqual(t, len(writes), recordedWrites)
	require.EqualValues(t, 5*recordedWrites/2, writes[len(writes)-1].Sequence)
}
