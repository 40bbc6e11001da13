// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTestNode returns a node with pins of these names, and no agent of Cilium.
func newTestNode(t *testing.T, pins ...string) *node {
	dir := t.TempDir()
	for _, name := range pins {
		path := filepath.Join(dir, pinDir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	return &node{bpffs: []string{dir, dir}, ciliumSocket: filepath.Join(dir, "cilium.sock")}
}

// serveCilium has an agent of Cilium answer for a node.
func serveCilium(t *testing.T, n *node, answer string) {
	listener, err := net.Listen("unix", n.ciliumSocket)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/healthz" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, answer)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
}

const (
	inBPF  = `{"cilium":{"state":"Ok"},"routing":{"inter-host-routing-mode":"Tunnel","intra-host-routing-mode":"BPF"}}`
	legacy = `{"routing":{"inter-host-routing-mode":"Native","intra-host-routing-mode":"Legacy"}}`
)

func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		pins     []string
		cilium   string // what its agent answers; there is none if empty
		refused  []string
		doubtful []string
	}{
		"nothing else":         {},
		"ours and others":      {pins: []string{"sluice_pods", "my_cilium_map", "calico_prefilter_v4", "calico_failsafe_ports"}},
		"calico in ebpf":       {pins: []string{"cali_v4_nat_fe3"}, refused: []string{"Calico's eBPF dataplane is on"}},
		"cilium through stack": {pins: []string{"cilium_lxc"}, cilium: legacy},
		"cilium host routing":  {pins: []string{"cilium_lxc"}, cilium: inBPF, refused: []string{"Cilium's host routing is on"}},
		"cilium egress gateway": {
			pins: []string{"cilium_egress_gw_policy_v4_v2", "cilium_lxc"}, cilium: legacy,
			refused: []string{"Cilium's egress gateway is on"},
		},
		"all of it": {
			pins: []string{"cali_state", "cilium_egress_gw_policy_v4", "cilium_egress_gw_policy_v6"}, cilium: inBPF,
			refused: []string{"egress gateway", "Calico's", "host routing"},
		},
		"cilium not running": {pins: []string{"cilium_lxc"}, doubtful: []string{"no such file"}},
		"cilium before 1.16": {
			pins: []string{"cilium_lxc"}, cilium: `{"host-routing":{"mode":"BPF"}}`,
			doubtful: []string{`host routing mode "", want BPF or Legacy`},
		},
		"cilium makes no sense": {pins: []string{"cilium_lxc"}, cilium: "hello", doubtful: []string{"parse its status (200 OK)"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t, tc.pins...)
			if tc.cilium != "" {
				serveCilium(t, n, tc.cilium)
			}
			v := n.judge(t.Context())
			requireContain(t, tc.refused, v.refused)
			requireContain(t, tc.doubtful, v.doubtful)
		})
	}
}

// requireContain requires as many texts as are wanted, each containing its own.
func requireContain(t *testing.T, want, got []string) {
	t.Helper()
	require.Len(t, got, len(want), "%q", got)
	for i := range want {
		require.Contains(t, got[i], want[i])
	}
}

func TestUnreadablePins(t *testing.T) {
	n := newTestNode(t)
	require.NoError(t, os.MkdirAll(filepath.Join(n.bpffs[0], filepath.Dir(pinDir)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(n.bpffs[0], pinDir), nil, 0o600))
	v := n.judge(t.Context())
	require.Empty(t, v.refused)
	requireContain(t, []string{"list pinned maps"}, v.doubtful)
}

// An agent that accepts but does not answer holds nothing up for long.
func TestSilentCilium(t *testing.T) {
	n := newTestNode(t, "cilium_lxc")
	listener, err := net.Listen("unix", n.ciliumSocket)
	require.NoError(t, err)
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	requireContain(t, []string{"deadline exceeded"}, n.judge(ctx).doubtful)
}

func TestPreflight(t *testing.T) {
	check := func(mode, bpffs string, pins ...string) error {
		cfg := bpf.DefaultConfig
		cfg.BPF, cfg.BPFFS = mode, bpffs
		return preflight(cfg, newTestNode(t, pins...)).Preflight.Check(t.Context())
	}
	const unusable = "/dev/null/bpffs" // kernel maps are not possible with it
	require.ErrorContains(t, check(bpf.ModeKernel, unusable, "cali_state"), "Calico's eBPF dataplane")
	require.ErrorContains(t, check(bpf.ModeKernel, unusable, "cali_state"), "--bpf=memory")
	require.NoError(t, check(bpf.ModeKernel, unusable))
	require.NoError(t, check(bpf.ModeKernel, unusable, "cilium_lxc"), "a doubt is no refusal")
	require.NoError(t, check(bpf.ModeMemory, unusable, "cali_state"), "nothing is enforced")
	require.NoError(t, check(bpf.ModeAuto, unusable, "cali_state"), "nothing is enforced")
}

// The same with a BPF file system and maps as they really are.
func TestPinnedMaps(t *testing.T) {
	bpffs := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(bpffs); err != nil {
		require.Empty(t, os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "kernel maps are not possible here: %v", err)
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(bpffs, unix.MNT_DETACH)) }()
	cfg := bpf.DefaultConfig
	cfg.BPFFS = bpffs
	check := func() error {
		n := newNode(cfg)
		require.Contains(t, n.bpffs, bpffs)
		n.bpffs = []string{bpffs} // not those of the machine
		return preflight(cfg, n).Preflight.Check(t.Context())
	}
	require.NoError(t, check())

	require.NoError(t, os.MkdirAll(filepath.Join(bpffs, pinDir), 0o755))
	const name = "cilium_egress_gw_policy_v4_v2"
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.LPMTrie, KeySize: 12, ValueSize: 12, MaxEntries: 16, Flags: unix.BPF_F_NO_PREALLOC,
	})
	require.NoError(t, err)
	defer m.Close()
	path := filepath.Join(bpffs, pinDir, name)
	require.NoError(t, m.Pin(path))
	require.ErrorContains(t, check(), "Cilium's egress gateway is on")
	require.ErrorContains(t, check(), path, "it can be found and removed")

	require.NoError(t, m.Unpin())
	require.NoError(t, check())
}

func TestWatch(t *testing.T) {
	db := statedb.New()
	devices, err := tables.NewDeviceTable(db)
	require.NoError(t, err)
	write := func(do func(wtxn statedb.WriteTxn)) {
		wtxn := db.WriteTxn(devices)
		defer wtxn.Abort()
		do(wtxn)
		wtxn.Commit()
	}
	add := func(index int, name, kind string) {
		write(func(wtxn statedb.WriteTxn) {
			_, _, err := devices.Insert(wtxn, &tables.Device{Index: index, Name: name, Type: kind})
			require.NoError(t, err)
		})
	}
	node := newTestNode(t, "cilium_lxc")
	serveCilium(t, node, legacy)
	_, health := cell.NewSimpleHealth()
	scope := health.NewScope("watch")
	w := &watcher{log: hivetest.Logger(t), db: db, devices: devices, node: node, interval: time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.run(ctx, scope) }()
	defer func() { stop(); require.NoError(t, <-done) }()

	eventually := func(level cell.Level, message string) {
		t.Helper()
		await.True(t, func() bool {
			h := health.GetChild("watch")
			if h == nil {
				return false
			}
			h.Lock()
			defer h.Unlock()
			return h.Level == level && h.Status == message
		})
	}
	const fine = "No other datapath bypasses the hooks"
	eventually(cell.StatusOK, fine)
	add(1, "eth0", "device")
	add(2, "veth0", "veth")
	add(3, "nk0", "netkit")
	const netkits = "Pods use netkit devices, which bypass the hooks: have the CNI make veths (found "
	eventually(cell.StatusDegraded, netkits+"nk0)")
	for i, name := range []string{"nk1", "nk2", "nk3", "nk4"} {
		add(4+i, name, "netkit")
	}
	eventually(cell.StatusDegraded, netkits+"nk0, nk1, nk2 and 2 more)")
	write(func(wtxn statedb.WriteTxn) { require.NoError(t, devices.DeleteAll(wtxn)) })
	eventually(cell.StatusOK, fine)

	// What is pinned later is found without any other event.
	pin := filepath.Join(node.bpffs[0], pinDir, "cali_state")
	require.NoError(t, os.WriteFile(pin, nil, 0o600))
	eventually(cell.StatusDegraded, incompatible[1].reason+" (found "+pin+")")
	require.NoError(t, os.Remove(pin))
	eventually(cell.StatusOK, fine)
}
