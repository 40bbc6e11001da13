// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
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
	cells := []cell.Cell{Cell, FaultCell, cell.Invoke(func(m *Maps) { h.maps = m })}
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
		if w.Map != "sluice_subjects" {
			return
		}
		v, found := Get[SubjectKey, SubjectValue](r, w.Map, w.Key.(SubjectKey))
		observed = append(observed, strings.TrimSpace(v.String()+map[bool]string{false: " absent"}[found]))
	})
	h := newTestHive(t, memory)
	h.must("map/fail sluice_subjects update full 1") // before the start
	h.must("map/size sluice_subjects 2")
	require.NoError(t, h.Start(h.log, context.Background()))
	require.NoError(t, h.maps.Flip())

	keys := []SubjectKey{{1}, {2}, {3}}
	values := []SubjectValue{{1}, {2}, {3}}
	done, err := h.maps.Subjects.Update(keys, values)
	require.Zero(t, done)
	require.ErrorIs(t, err, ErrMapFull)
	done, err = h.maps.Subjects.Update(keys, values)
	require.Equal(t, 2, done)
	require.ErrorIs(t, err, ErrMapFull)
	h.must("map/fail sluice_subjects delete eperm -1")
	_, err = h.maps.Subjects.Delete(keys[:1])
	require.ErrorIs(t, err, unix.EPERM)
	_, err = h.maps.Subjects.Delete(keys[:1])
	require.ErrorIs(t, err, unix.EPERM)
	h.must("map/fail sluice_subjects any eperm 0")
	_, err = h.maps.Subjects.Delete(keys[:1])
	require.NoError(t, err)

	require.Equal(t, "subject=2 -> ruleset=2\n", h.must("map/dump sluice_subjects"))
	require.Empty(t, h.must("map/dump sluice_pods"))
	want := `sluice_subjects update subject=1 -> ruleset=1 (argument list too long)
sluice_subjects update subject=1 -> ruleset=1
sluice_subjects update subject=2 -> ruleset=2
sluice_subjects update subject=3 -> ruleset=3 (argument list too long)
sluice_subjects delete subject=1 (operation not permitted)
sluice_subjects delete subject=1 (operation not permitted)
sluice_subjects delete subject=1
`
	require.Equal(t, want, h.must("map/log sluice_subjects"))
	require.Empty(t, h.must("map/log"))
	require.Equal(t, []string{
		"ruleset=0 absent", "ruleset=1", "ruleset=2", "ruleset=0 absent", "ruleset=1", "ruleset=1",
		"ruleset=0 absent",
	}, observed)

	require.Equal(
		t, "wrote subject=2 -> ruleset=253\n", h.must("map/corrupt sluice_subjects change"),
	)
	require.Equal(t, "removed subject=2\n", h.must("map/corrupt sluice_subjects remove"))
	h.must("map/corrupt sluice_egress add")
	require.Contains(t, h.must("map/dump sluice_egress"), "ruleset=4008636142")
	require.Empty(t, h.must("map/log"), "the log does not have it")

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
	_, err = h.maps.Subjects.Update(keys[:1], values[:1])
	require.NoError(t, err)
	require.NoError(t, h.Stop(h.log, context.Background()))

	// What packets use, the sizes of maps and what was shown survive the agent. The next
	// one fills maps of its own, and packets use these after the flip.
	again := newTestHive(t, memory)
	require.NoError(t, again.Start(again.log, context.Background()))
	require.EqualValues(t, 2, again.maps.Subjects.Spec().MaxEntries)
	require.Empty(t, again.must("map/dump sluice_subjects"))
	active := func() (ruleset uint32) {
		memory.Read(func(r Reader) {
			v, _ := Get[SubjectKey, SubjectValue](r, "sluice_subjects", keys[0])
			ruleset = v.Ruleset
		})
		return ruleset
	}
	_, err = again.maps.Subjects.Update(keys[:1], values[1:2])
	require.NoError(t, err)
	require.EqualValues(t, 1, active())
	require.NoError(t, again.maps.Flip())
	require.EqualValues(t, 2, active())
	require.NoError(t, again.maps.Release())
	require.EqualValues(t, 2, active())
	require.Regexp(t, `^sluice_subjects update subject=1 -> ruleset=1
sluice_subjects update subject=1 -> ruleset=2
sluice_state update 0 -> slot=0 generation=\d+
$`, again.must("map/log"))
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
		_, err := h.maps.Subjects.Update([]SubjectKey{{1}}, []SubjectValue{{5}})
		require.NoError(t, err)
		_, err = h.script("map/log")
		require.ErrorContains(t, err, "not in memory")
		require.Equal(
			t, "wrote subject=1 -> ruleset=250\n", h.must("map/corrupt sluice_subjects change"),
		)
		require.NoError(t, h.maps.Flip())

		second := newTestHive(t, nil, "--bpffs="+bpffs)
		require.ErrorIs(t, second.Start(second.log, context.Background()), ErrInUse)
	})
	sources := func(h *testHive) string {
		m, err := OpenActive(MapsDir(bpffs), "sluice_subjects")
		require.NoError(t, err)
		defer m.Close()
		entries, err := DumpKernel[SubjectKey, SubjectValue](m)
		require.NoError(t, err)
		return strings.Join(Lines(entries), "\n")
	}
	// An agent that fills its slot is killed, again and again. What was active stays, until
	// one flips.
	for run := range 3 {
		h := newTestHive(t, nil, "--bpffs="+bpffs)
		require.NoError(t, h.Start(h.log, context.Background()))
		active, own, err := h.maps.Slot()
		require.NoError(t, err)
		require.Equal(t, []uint32{1, 0}, []uint32{active, own}, "run %d", run)
		require.Empty(t, h.must("map/dump sluice_subjects"))
		_, err = h.maps.Subjects.Update([]SubjectKey{{2}}, []SubjectValue{{6}})
		require.NoError(t, err)
		require.Equal(t, "subject=1 -> ruleset=250", sources(h))
		if run == 2 {
			require.NoError(t, h.maps.Flip())
			require.Equal(t, "subject=2 -> ruleset=6", sources(h))
			require.NoError(t, h.maps.Release())
			require.NoDirExists(t, filepath.Join(MapsDir(bpffs), slotPath(1, "")))
		}
		require.NoError(t, h.Stop(h.log, context.Background()))
	}
}

// The maps of another version stay until nothing uses them, and then go; the addresses of
// its pods are known.
func TestFormerLayout(t *testing.T) {
	type (
		formerPod    struct{ Fields [7]uint32 }
		formerSource struct{ Class uint32 }
	)
	bpffs := testBPFFS(t)
	k := testKernel(t, bpffs)
	former, err := Open[PodKey, formerPod](k, Spec{"sluice_pods", TypeHash, 16})
	require.NoError(t, err)
	_, err = former.Update([]PodKey{{Address{15: 1}}, {Address{15: 2}}}, make([]formerPod, 2))
	require.NoError(t, err)
	sources, err := Open[PodKey, formerSource](k, Spec{"sluice_sources", TypeHash, 16})
	require.NoError(t, err)
	_, err = sources.Update([]PodKey{{Address{15: 2}}, {Address{15: 3}}}, make([]formerSource, 2))
	require.NoError(t, err)
	exits, err := Open[ExitKey, ExitValue](k, Spec{"sluice_exits", TypeHash, 16})
	require.NoError(t, err)
	_, err = exits.Update([]ExitKey{{Address{15: 5}}}, []ExitValue{{IfIndex: 7}})
	require.NoError(t, err)
	for _, name := range []string{"sluice_classes", "sluice_slots", "sluice_decided"} {
		_, err = Open[PodKey, formerSource](k, Spec{name, TypeHash, 16})
		require.NoError(t, err)
	}
	require.NoError(t, k.Close())

	h := newTestHive(t, nil, "--bpffs="+bpffs, "--map-size-classes=100", "--map-size-sources=7")
	require.NoError(t, h.Start(h.log, context.Background()))
	require.Equal(t, 2, strings.Count(h.logged.String(), "A flag is ignored"))
	require.Equal(t, []string{"::1", "::2", "::3"}, textsOf(h.maps.FormerPods()))
	require.Empty(t, h.must("map/dump sluice_pods"))
	require.FileExists(t, filepath.Join(MapsDir(bpffs), "sluice_pods"))
	_, err = h.maps.Exits.Update([]ExitKey{{Address{15: 6}}}, []ExitValue{{IfIndex: 8}})
	require.NoError(t, err)
	_, err = h.maps.Pods.Update([]PodKey{{Address{15: 4}}}, []PodValue{{Flags: PodLocal}})
	require.NoError(t, err)
	require.NoError(t, h.maps.Flip())
	require.NoError(t, h.maps.Release())
	removed, err := h.maps.Sweep()
	require.NoError(t, err)
	require.Equal(
		t,
		[]string{
			"sluice_classes", "sluice_decided", "sluice_pods", "sluice_slots", "sluice_sources",
		},
		removed,
	)
	require.FileExists(t, filepath.Join(MapsDir(bpffs), slotPath(1, "sluice_pods")))
	require.NoError(t, h.Stop(h.log, context.Background()))

	// From then on the slot decides.
	h = newTestHive(t, nil, "--bpffs="+bpffs)
	require.NoError(t, h.Start(h.log, context.Background()))
	require.Equal(t, []string{"::4"}, textsOf(h.maps.FormerPods()))
	require.NoError(t, h.Stop(h.log, context.Background()))
}

func textsOf(pods []netip.Addr) (addrs []string) {
	for _, a := range pods {
		addrs = append(addrs, a.String())
	}
	slices.Sort(addrs)
	return addrs
}

// Each flip and each raise begins a generation. It is never one that the version
// before could have had for an epoch, nor 0. Where the map that has it is removed, as that
// version does, it does not begin as before.
func TestGenerations(t *testing.T) {
	for _, mode := range []string{ModeMemory, ModeKernel} {
		t.Run(mode, func(t *testing.T) {
			var backend Backend = NewMemory()
			if mode == ModeKernel {
				k := testKernel(t, testBPFFS(t))
				defer k.Close()
				backend = k
			}
			maps := newMaps(DefaultConfig)
			require.ErrorIs(t, maps.Raise(), ErrNotOpen)
			require.NoError(t, maps.open(backend))
			require.NoError(t, maps.Flip())
			generation := func() uint32 {
				g, err := maps.Generation()
				require.NoError(t, err)
				require.NotZero(t, g&firstGeneration)
				return g
			}
			first := generation()
			require.NoError(t, maps.Raise())
			require.Equal(t, first+1, generation())
			maps.close()
			require.NoError(t, maps.open(backend))
			require.NoError(t, maps.Raise())
			require.Equal(t, first+1, generation(), "packets look into the other slot")
			require.NoError(t, maps.Flip())
			require.Equal(t, first+2, generation())

			_, own, err := maps.Slot()
			require.NoError(t, err)
			last := StateValue{Slot: own, Generation: math.MaxUint32}
			_, err = maps.State.Update([]StateKey{{}}, []StateValue{last})
			require.NoError(t, err)
			require.NoError(t, maps.Raise())
			require.EqualValues(t, firstGeneration, generation())

			maps.close()
			_, err = backend.Sweep()
			require.NoError(t, err)
			require.NoError(t, maps.open(backend))
			require.NoError(t, maps.Flip())
			require.NotEqual(t, first, generation())
		})
	}
}

// Writes are remembered in a bounded number.
func TestMemoryForgets(t *testing.T) {
	memory := NewMemory()
	m, err := Open[SubjectKey, SubjectValue](memory, Spec{"sources", TypeHash, 1})
	require.NoError(t, err)
	for range 5 * recordedWrites / 2 {
		_, err := m.Update([]SubjectKey{{}}, []SubjectValue{{}})
		require.NoError(t, err)
	}
	writes, lost := memory.Writes(10)
	require.EqualValues(t, 5*recordedWrites/2-10, lost+uint64(len(writes)))
	require.GreaterOrEqual(t, len(writes), recordedWrites)
	require.EqualValues(t, 5*recordedWrites/2, writes[len(writes)-1].Sequence)
}
