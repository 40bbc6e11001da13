// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
	"github.com/sluice-net/sluice/testdata/await"
)

// answering is an agent that answers some paths.
func answering(t *testing.T, answers map[string]any) string {
	mux := http.NewServeMux()
	for path, answer := range answers {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(answer) })
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func troubled() *api.Status {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &api.Status{
		Problems: []string{"health: bpfmap: map full", "not ready: table nodes: waits for nodes"},
		Node:     "node-1", Version: version.Info{Version: "v1", Go: "go1", Platform: "linux/amd64"},
		Started: now.Add(-26 * time.Hour), UptimeSeconds: 26 * 3600,
		Health: api.HealthStatus{Status: "degraded", Modules: 30},
		Tables: api.TablesStatus{
			Tables: 60, Rows: 50_000, Uninitialized: []api.PendingTable{{Name: "nodes"}},
			Statuses: []api.RowsStatus{{Name: "ipcache", Rows: 40_000, Counts: condition.Counts{Pending: 3, Errors: 2}, Error: "map full"}},
		},
		Sources: []*tables.ObjectSource{{Source: "pods", State: "synced"}, {Source: "nodes", State: "broken"}},
		Policies: api.PoliciesStatus{
			Egress: map[tables.EgressState]int{tables.EgressInForce: 2, tables.EgressInvalid: 1}, Network: map[tables.PolicyState]int{tables.PolicyPending: 1},
		},
		Report:  &api.ReportStatus{Policies: 5, Pending: 2, Error: "forbidden"},
		Leaders: []*tables.Leadership{{Lease: "sluice-system/sluice", Holder: "node-2", Error: "get lease: refused"}},
		Maps: []api.MapStatus{
			{BPFMap: &tables.BPFMap{Name: "sluice_nodes", Backend: "kernel", MaxEntries: 10}},
			{BPFMap: &tables.BPFMap{Name: "sluice_pods", Backend: "memory", MaxEntries: 100, Entries: 4}, PressurePercent: 4},
			{BPFMap: &tables.BPFMap{Name: "sluice_ipcache", Backend: "memory", MaxEntries: 100, Entries: 97, Failed: 2}, PressurePercent: 97},
		},
		Programs: []api.ProgramStatus{{Program: "from_pod", Running: 9, Devices: []string{"lxc1", "lxc2"}, Failed: 1, Error: "lxc3: gone"}},
		Tampered: []*tables.Tampering{
			{Object: "from_pod", Kind: "detached", Count: 2, Last: now.Add(-time.Minute), Example: "from_pod at lxc1"},
		},
		Overlay: &api.OverlayStatus{Keys: []string{"3f", "a0"}, Open: "a host can send"},
		GC: []api.GCStatus{{
			Set: "global", Reason: "interval", Started: now.Add(-90 * time.Second), Duration: 1234 * time.Microsecond,
			Scanned: 100, Removed: 7, IntervalSeconds: 300,
		}},
		Drops: api.DropsStatus{Packets: 12, Others: 1, Reasons: []api.DropStatus{
			{Reason: "no egress gateway", Packets: 11, Pods: 2, Last: now.Add(-time.Minute), Packet: "a -> b"},
		}},
	}
}

const troubledScreen = `Node       node-1, sluice v1 go1 linux/amd64, up 1d2h
Health     degraded, 30 modules
Ready      no
Problems   health: bpfmap: map full
           not ready: table nodes: waits for nodes
Sources    1 broken, 1 synced
Tables     60, 50000 rows, 1 not initialized, 3 pending, 2 failed
           ipcache: 3 of 40000 rows pending, 2 failed: map full
Policies   egress: 2 in force, 1 invalid
           network: 1 pending
Report     of 5 policies to the operator, 2 not written: forbidden
Leader     node-2 leads; get lease: refused
Maps       1 in kernel, 2 in memory; these are in use:
           Map              Pressure                Entries   Size   Pending   Waiting   Failed
           sluice_ipcache   97.0%      ██████████   97        100    0         0         2
           sluice_pods      4.0%       ░░░░░░░░░░   4         100    0         0         0
Programs   from_pod: 9 running at lxc1, lxc2 and 7 more; 1 failed: lxc3: gone
Tampered   from_pod: 2 detached, the last 1m0s ago: from_pod at lxc1
Overlay    sends with key 3f, accepts a0 too
           open: a host can send
GC         global: 1m30s ago (interval), 7 of 100 entries removed in 1.23ms, interval 5m0s
Drops      12 packets since the start, for 1 more reasons
           Packets   Reason              Pods   Last       Packet
           11        no egress gateway   2      1m0s ago   a -> b
`

func TestStatusOfTrouble(t *testing.T) {
	server := answering(t, map[string]any{"/version": nil, "/status": troubled()})
	r := sluice(t, "status", "--server="+server)
	require.Equal(t, exitError, r.code)
	require.Equal(t, "sluice: the agent is unhealthy\n", r.stderr)
	require.Equal(t, troubledScreen, r.stdout)

	colored := sluice(t, "status", "--color=always", "--server="+server).stdout
	require.Contains(t, colored, "\x1b[31mhealth: bpfmap: map full\x1b[0m")
	require.Contains(t, colored, "\x1b[31m97.0%\x1b[0m")
	require.Equal(t, troubledScreen, regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(colored, ""))

	for _, format := range []string{"json", "yaml"} {
		r := sluice(t, "status", "-o", format, "--color=always", "--server="+server)
		require.Equal(t, exitError, r.code)
		require.NotContains(t, r.stdout, "\x1b")
		var status api.Status
		require.NoError(t, yaml.Unmarshal([]byte(r.stdout), &status))
		require.Equal(t, troubled().Problems, status.Problems)
	}
}

// A real agent becomes well. The demo has a policy that is invalid, which is told.
func TestStatusOfAgent(t *testing.T) {
	manifests := t.TempDir()
	require.NoError(t, os.CopyFS(manifests, os.DirFS("../../testdata/demo")))
	policies := filepath.Join(manifests, "5-egress-policies.yaml")
	before, err := os.ReadFile(policies)
	require.NoError(t, err)
	startAgent(t, "--manifests="+manifests)
	var r result
	await.True(t, func() bool {
		r = sluice(t, "status")
		return strings.Contains(r.stdout, "egress-policies have errors: partner: spec.destinationCIDRs[1]") &&
			strings.Contains(r.stdout, "egress: 1 conflicted, 1 in force, 1 no gateway\n")
	})
	require.Equal(t, exitError, r.code)
	require.Equal(t, "sluice: the agent is unhealthy\n", r.stderr)

	valid, _, found := strings.Cut(string(before), "# An invalid")
	require.True(t, found)
	require.NoError(t, os.WriteFile(policies, []byte(valid), 0o600))
	await.True(t, func() bool {
		r = sluice(t, "status")
		return r.code == exitOK && strings.Contains(r.stdout, "none pending or failed")
	})
	require.Empty(t, r.stderr)
	require.Regexp(t, `(?m)^Node +node-1, sluice \S+`, r.stdout)
	require.Regexp(t, `(?m)^Ready +yes$`, r.stdout)
	require.Regexp(t, `(?m)^ +sluice_ipcache +0\.\d% +░+ +\d+ +524288 `, r.stdout)
}

func TestStatusWithoutAgent(t *testing.T) {
	noAgent(t)
	require.Equal(t, exitNoAgent, sluice(t, "status").code)
}

// An agent that is older than the command says so, and not "404 Not Found".
func TestOldAgent(t *testing.T) {
	r := sluice(t, "status", "--server="+answering(t, map[string]any{"/version": nil}))
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "the agent does not know /status: it is of another version than this command")
}

// Who may not use the socket is told how to.
func TestSocketOfSomebodyElse(t *testing.T) {
	a := &attempts{}
	a.add("unix:///run/sluice/sluice.sock", &os.PathError{Op: "connect", Err: os.ErrPermission})
	require.ErrorContains(t, a.err(), "try sudo")
	require.NotContains(t, a.err().Error(), "sluice agent")

	if os.Geteuid() == 0 {
		return // may use any socket
	}
	dir := tempDir(t)
	socket := filepath.Join(dir, "closed", "sluice.sock")
	require.NoError(t, os.MkdirAll(filepath.Dir(socket), 0o000))
	r := sluice(t, "tables", "--server="+socket)
	require.Equal(t, exitNoAgent, r.code)
	require.Contains(t, r.stderr, "try sudo")
}
