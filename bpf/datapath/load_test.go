// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// testBPFFS returns the path of a BPF file system of the test's own, or skips.
func testBPFFS(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("kernel maps are not possible here: %v", err)
		}
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return path
}

type testHive struct {
	*hive.Hive
	datapath *Datapath
	maps     *bpf.Maps
	log      *slog.Logger
	logged   bytes.Buffer
}

func newTestHive(t *testing.T, args ...string) *testHive {
	h := &testHive{}
	h.log = slog.New(slog.NewTextHandler(&h.logged, nil))
	h.Hive = hive.New(bpf.Cell, Cell, cell.Invoke(func(d *Datapath, m *bpf.Maps) { h.datapath, h.maps = d, m }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	return h
}

func (h *testHive) run(t *testing.T, check func()) {
	require.NoError(t, h.Start(h.log, t.Context()))
	if kernel, ok := h.maps.Backend().(*bpf.Kernel); ok {
		damage, err := kernel.Restore(h.datapath.Pinned)
		require.NoError(t, err)
		require.Empty(t, damage, "a start is no tampering")
	}
	check()
	require.NoError(t, h.Stop(h.log, t.Context()))
	require.False(t, h.datapath.Loaded())
}

func TestMemoryModeLoadsNothing(t *testing.T) {
	h := newTestHive(t, "--bpf=memory")
	h.run(t, func() {
		require.False(t, h.datapath.Loaded())
		require.Nil(t, h.datapath.Program(bpf.ProgramFromPod))
		require.Nil(t, h.datapath.Events())
	})
}

func TestFlagsAreChecked(t *testing.T) {
	for _, arg := range []string{
		"--map-size-ct-tcp=0", "--map-size-ct-any=0", "--map-size-nat=67108865", "--map-size-fragments=0",
		"--events-buffer=1000", "--events-buffer=1024", "--events-buffer=1048577",
	} {
		h := newTestHive(t, "--bpf=memory", arg)
		flag, _, _ := strings.Cut(arg, "=")
		err := h.Populate(h.log)
		require.ErrorContains(t, err, flag, arg)
	}
}

// sizes of the tests are small ones.
var testSizes = []string{
	"--map-size-ct-tcp=100", "--map-size-ct-any=101", "--map-size-nat=102", "--map-size-fragments=103", "--events-buffer=8192",
}

func TestMapsOutliveTheAgent(t *testing.T) {
	bpffs := testBPFFS(t)
	args := append([]string{"--bpffs=" + bpffs}, testSizes...)
	tuple := ctmap.NewKey4(ctmap.Tuple{Protocol: unix.IPPROTO_TCP,
		Source: addrPort("10.0.0.1:1000"), Destination: addrPort("192.0.2.1:80")})

	h := newTestHive(t, args...)
	h.run(t, func() {
		require.True(t, h.datapath.Loaded())
		for name, size := range map[string]uint32{
			ctmap.CT4TCP: 100, ctmap.CT6TCP: 100, ctmap.CT4Any: 101, ctmap.CT6Any: 101,
			natmap.Name4: 102, natmap.Name6: 102, ctmap.Frag4: 103, ctmap.Frag6: 103, EventsMap: 8192,
		} {
			require.Equal(t, size, h.datapath.Map(name).MaxEntries(), name)
			require.FileExists(t, filepath.Join(bpffs, "sluice", name))
		}
		require.NoError(t, h.datapath.Map(ctmap.CT4TCP).Put(tuple, ctmap.Entry{Packets: 7}))
		// The programs see the agent's maps, not others of the name: what it writes is in
		// force when the slot is.
		_, err := h.maps.Pods.Update(
			[]bpf.PodKey{{Addr: bpf.Address{1}}}, []bpf.PodValue{{Subject: 3}},
		)
		require.NoError(t, err)
		require.NoError(t, h.maps.Flip())
		pods, err := bpf.OpenActive(bpf.MapsDir(bpffs), "sluice_pods")
		require.NoError(t, err)
		defer pods.Close()
		var value bpf.PodValue
		require.NoError(t, pods.Lookup(bpf.PodKey{Addr: bpf.Address{1}}, &value))
		require.EqualValues(t, 3, value.Subject)
		var state bpf.StateValue
		require.NoError(t, h.datapath.Map(bpf.StateMap).Lookup(bpf.StateKey{}, &state))
		var inSlot, id ebpf.MapID
		require.NoError(t, h.datapath.Map("sluice_pods").Lookup(state.Slot, &inSlot))
		info, err := pods.Info()
		require.NoError(t, err)
		id, _ = info.ID()
		require.Equal(t, id, inSlot)
	})

	again := newTestHive(t, args...)
	again.run(t, func() {
		requirePackets(t, again.datapath, tuple, 7)
		require.NotContains(t, again.logged.String(), "Removed pins", "the sweep of the agent's maps leaves them alone")
		require.NotContains(t, again.logged.String(), "Replaced")
	})

	resized := newTestHive(t, append(args, "--map-size-ct-tcp=200", "--events-buffer=4096")...)
	resized.run(t, func() {
		require.EqualValues(t, 200, resized.datapath.Map(ctmap.CT4TCP).MaxEntries())
		require.EqualValues(t, 4096, resized.datapath.Events().MaxEntries())
		requirePackets(t, resized.datapath, tuple, 7)
		require.Contains(t, resized.logged.String(), "map=sluice_ct4_tcp old-max-entries=100 max-entries=200 kept=1 lost=0")
	})
}

func TestMapOfAnotherLayoutIsReplaced(t *testing.T) {
	bpffs := testBPFFS(t)
	dir := filepath.Join(bpffs, "sluice")
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: natmap.Name4, Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.Pin(filepath.Join(dir, natmap.Name4)))
	h := newTestHive(t, append(testSizes, "--bpffs="+bpffs)...)
	h.run(t, func() {
		require.Equal(t, ebpf.LRUHash, h.datapath.Map(natmap.Name4).Type())
		require.Contains(t, h.logged.String(), "Replaced a map of another layout by an empty one")
	})
}

// Without the agent, as benchmarks and tests of packets have it.
func TestLoadAlone(t *testing.T) {
	testBPFFS(t)
	d, err := Load(Options{Sizes: Sizes{CTTCP: 1000}})
	require.NoError(t, err)
	for p := bpf.ProgramFromPod; p <= bpf.ProgramBackstop; p++ {
		require.NotNil(t, d.Program(p), p)
	}
	require.EqualValues(t, 1000, d.Map(ctmap.CT6TCP).MaxEntries())
	require.NotNil(t, d.Metrics())
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
}

// The pins that the agent's maps leave alone are those of the programs' maps.
func TestOwnMapsAreKnown(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	fixed := []string{MetricsMap, bpf.RulesMap, bpf.RuleSlotsMap, bpf.DecidedMap,
		bpf.TrafficMap, bpf.TrafficOwnersMap, bpf.TrafficCountsMap, bpf.BucketsMap}
	for name, m := range spec.Maps {
		if m.Pinning == ebpf.PinByName && !slices.Contains(fixed, name) {
			require.Contains(t, Sizes{}.byName(), name)
		}
	}
	for name := range copiers {
		require.Contains(t, spec.Maps, name)
		if !slices.Contains([]string{
			bpf.SharesMap, bpf.PortsMap, bpf.PathsMap, bpf.VotesMap, bpf.VotersMap,
			bpf.ToldMap,
		}, name) {
			require.Equal(t, ebpf.LRUHash, spec.Maps[name].Type)
		}
	}
}

func TestVerifierErrorIsReadable(t *testing.T) {
	testBPFFS(t)
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bad", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 4000, asm.Word), asm.Return()},
	})
	require.Error(t, err)
	require.Regexp(t, `(?s)verifier refuses one: .*invalid bpf_context access.*\n\t`, loadError(err).Error())
}

// The Go structs have the layouts of the C ones, field by field.
func TestLayouts(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	for name, pair := range map[string][2]any{
		ctmap.CT4TCP:      {ctmap.Key4{}, ctmap.Entry{}},
		ctmap.CT4Any:      {ctmap.Key4{}, ctmap.Entry{}},
		ctmap.CT6TCP:      {ctmap.Key6{}, ctmap.Entry{}},
		ctmap.CT6Any:      {ctmap.Key6{}, ctmap.Entry{}},
		natmap.Name4:      {natmap.Key4{}, natmap.Entry4{}},
		natmap.Name6:      {natmap.Key6{}, natmap.Entry6{}},
		ctmap.Frag4:       {ctmap.FragKey4{}, ctmap.FragValue{}},
		ctmap.Frag6:       {ctmap.FragKey6{}, ctmap.FragValue{}},
		MetricsMap:        {uint32(0), bpf.Metric{}},
		"sluice_pods":     {bpf.PodKey{}, bpf.PodValue{}},
		"sluice_ipcache":  {bpf.IPCacheKey{}, bpf.IPCacheValue{}},
		"sluice_subjects": {bpf.SubjectKey{}, bpf.SubjectValue{}},
		"sluice_egress":   {bpf.EgressKey{}, bpf.EgressValue{}},
		"sluice_gateways": {bpf.GatewayKey{}, bpf.GatewayValue{}},
		"sluice_exits":    {bpf.ExitKey{}, bpf.ExitValue{}},
		bpf.VotesMap:      {bpf.ExitKey{}, bpf.VotesValue{}},
		bpf.VotersMap:     {uint32(0), bpf.VotersValue{}},
		bpf.ToldMap:       {bpf.ExitKey{}, bpf.ToldValue{}},
		bpf.LimitsMap:     {bpf.LimitKey{}, bpf.LimitValue{}},
		"sluice_covered":  {bpf.CoveredKey{}, bpf.CoveredValue{}},
		"sluice_nodes":    {bpf.NodeKey{}, bpf.NodeValue{}},
		"sluice_devices":  {bpf.DeviceKey{}, bpf.DeviceValue{}},
		"sluice_config":   {uint32(0), bpf.ConfigValue{}},
		"sluice_keys":     {uint32(0), bpf.OverlayKeysValue{}},
	} {
		m := spec.Maps[name]
		require.NotNil(t, m, name)
		if m.InnerMap != nil {
			continue // it has no types: see TestLayoutsOfBothSides
		}
		require.EqualValues(t, m.KeySize, reflect.TypeOf(pair[0]).Size(), "key of %s", name)
		require.EqualValues(t, m.ValueSize, reflect.TypeOf(pair[1]).Size(), "value of %s", name)
		require.Equal(t, fieldsOfC(t, m.Key), fieldsOfGo(reflect.TypeOf(pair[0])), "key of %s", name)
		require.Equal(t, fieldsOfC(t, m.Value), fieldsOfGo(reflect.TypeOf(pair[1])), "value of %s", name)
	}
}

// field is a field of a struct.
type field struct{ offset, size int }

func fieldsOfC(t *testing.T, typ btf.Type) (fields []field) {
	s, ok := btf.UnderlyingType(typ).(*btf.Struct)
	if !ok {
		return nil
	}
	for _, m := range s.Members {
		size, err := btf.Sizeof(m.Type)
		require.NoError(t, err)
		fields = append(fields, field{int(m.Offset.Bytes()), size})
	}
	return fields
}

func fieldsOfGo(typ reflect.Type) (fields []field) {
	if typ.Kind() != reflect.Struct {
		return nil
	}
	for f := range typ.Fields() {
		fields = append(fields, field{int(f.Offset), int(f.Type.Size())})
	}
	return fields
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func requirePackets(t *testing.T, d *Datapath, key ctmap.Key4, packets uint64) {
	t.Helper()
	entries, err := bpf.DumpKernel[ctmap.Key4, ctmap.Entry](d.Map(ctmap.CT4TCP))
	require.NoError(t, err)
	require.Equal(t, []bpf.Entry[ctmap.Key4, ctmap.Entry]{{Key: key, Value: ctmap.Entry{Packets: packets}}}, entries)
}
