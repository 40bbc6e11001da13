// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/version"
)

const aloneNote = "sluice: no agent answers: this command works on the maps itself\n"

func TestCTGC(t *testing.T) {
	n := newTracked(t)
	n.fill()
	anyAgent(t)
	r := n.run("ct", "gc")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, aloneNote, r.stderr)
	require.Equal(t, "Map | Method | Scanned | Expired | Translations | Orphans | Kept | Revived | Deferred | Failed | Duration | LongestRun\n"+
		"sluice_ct4_tcp | iterator | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | D | D\n"+
		"sluice_ct4_any | iterator | 2 | 1 | 0 | 0 | 1 | 0 | 0 | 0 | D | D\n"+
		"sluice_ct6_tcp | iterator | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | D | D\n"+
		"sluice_ct6_any | - | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | - | -\n"+
		"sluice_nat4 | iterator | 4 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | D | D\n"+
		"sluice_nat6 | iterator | 2 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | D | D\n", masked(r.stdout))
	connections, translations := n.left()
	require.Equal(t, 3, connections)
	require.Equal(t, 6, translations)

	// Through the agent: the grace of the UDP connection is not waited for.
	requests := fakeAgent(n)
	r = n.run("ct", "gc", "--all-expired", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Empty(t, r.stderr)
	var passes []gc.Pass
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &passes))
	require.Len(t, passes, 6)
	require.EqualValues(t, 1, passes[1].Expired)
	require.EqualValues(t, 2, passes[1].Translations)
	connections, translations = n.left()
	require.Equal(t, 2, connections)
	require.Equal(t, 4, translations)
	require.Equal(t, []api.GCRequest{{Reason: "sluice ct gc", Expired: true, Orphans: true, ReplyGraceSeconds: new(uint32), BPFFS: n.bpffs}}, *requests)
}

func TestCTFlush(t *testing.T) {
	n := newTracked(t)
	n.fill()
	anyAgent(t)
	r := n.run("ct", "flush", "--pod=10.1.0.5", "--protocol=tcp")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, aloneNote, r.stderr)
	require.Equal(t, "removed 1 connections and 2 entries of translations\n", r.stdout)
	connections, translations := n.left()
	require.Equal(t, 4, connections)
	require.Equal(t, 4, translations)

	requests := fakeAgent(n)
	r = n.run("ct", "flush", "--pod=shop/web-1", "--ip=198.51.100.53")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Empty(t, r.stderr)
	require.Equal(t, "removed 1 connections and 2 entries of translations\n", r.stdout)
	require.Equal(t, []api.GCRequest{{Reason: "sluice ct flush", BPFFS: n.bpffs, Match: &api.CTMatch{
		Pods: []string{"10.1.0.5", "fd00::5"}, IPs: []string{"198.51.100.53"},
	}}}, *requests)

	r = n.run("ct", "flush", "--pod=nobody")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "find pod nobody: the agent knows none of that name")
	require.Len(t, *requests, 1)

	r = n.run("ct", "flush", "--all", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	connections, translations = n.left()
	require.Zero(t, connections+translations)
	var passes []gc.Pass
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &passes))
	var removed uint64
	for _, p := range passes {
		removed += p.Removed()
	}
	require.EqualValues(t, 3+2, removed)
	r = n.run("ct", "flush", "--all")
	require.Equal(t, "removed 0 connections and 0 entries of translations\n", r.stdout, r.stderr)
}

// Who holds the lock and does not answer is not worked around.
func TestCTGCWhileLocked(t *testing.T) {
	n := newTracked(t)
	n.fill()
	anyAgent(t)
	kernel, err := bpf.OpenKernel(n.bpffs, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, args := range [][]string{{"ct", "gc"}, {"ct", "flush", "--all"}} {
		r := n.run(args...)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, "in use by another agent, but none answers: ")
		require.Contains(t, r.stderr, "name its socket by --server")
	}
	connections, _ := n.left()
	require.Equal(t, 5, connections)
	require.Equal(t, exitOK, n.run("ct", "list").code, "who only reads needs no lock")

	require.NoError(t, kernel.Close())
	r := n.run("ct", "gc", "--server=/nowhere/s.sock")
	require.Equal(t, exitNoAgent, r.code, "a certain agent was to do it: %s", r.stderr)
	t.Setenv("SLUICE_SERVER", "/nowhere/s.sock")
	for _, args := range [][]string{{"ct", "gc"}, {"ct", "flush", "--all"}} {
		r = n.run(args...)
		require.Equal(t, exitNoAgent, r.code, "the environment says so too: %s", r.stderr)
	}
	connections, _ = n.left()
	require.Equal(t, 5, connections)
	t.Setenv("SLUICE_SERVER", "")
	require.Equal(t, exitOK, n.run("ct", "gc").code)
}

// The agent is told which maps are meant if the command line says which, and only then.
func TestCTGCOfWhichMaps(t *testing.T) {
	n := newTracked(t)
	requests := fakeAgent(n)
	relative := "./" + filepath.Base(n.bpffs)
	for _, tc := range []struct {
		environment string
		flags       []string
		want        string
	}{
		{"", nil, ""},
		{"/mnt/bpf", nil, "/mnt/bpf"},
		{"/mnt/bpf", []string{"--bpffs=/mnt/other"}, "/mnt/other"},
		{"", []string{"--bpffs=/sys/fs/bpf"}, "/sys/fs/bpf"},
		{"", []string{"--bpffs=" + relative}, n.bpffs},
	} {
		t.Chdir(filepath.Dir(n.bpffs))
		t.Setenv("SLUICE_BPFFS", tc.environment)
		r := sluice(t, append([]string{"ct", "gc"}, tc.flags...)...)
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Equal(t, tc.want, (*requests)[len(*requests)-1].BPFFS)
	}
	t.Setenv("SLUICE_BPFFS", n.bpffs)
	require.Equal(t, exitOK, sluice(t, "ct", "list").code, "it says where to read too")
}

func TestRound(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "-", 7: "7ns", 999: "999ns", 1234: "1.23µs", 947947: "948µs", 999999: "1ms", 12345678: "12.3ms",
		999999999: "1s", 83456 * time.Millisecond: "1m23.5s",
	} {
		require.Equal(t, want, round(d))
	}
}

// What an agent says of a request is shown.
func TestCTGCRefused(t *testing.T) {
	socket := filepath.Join(tempDir(t), "s.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			json.NewEncoder(w).Encode(version.Get())
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		json.NewEncoder(w).Encode(api.GCAnswer{Err: "this agent has no kernel maps"})
	})}
	done := make(chan struct{})
	go func() { server.Serve(l); close(done) }()
	t.Cleanup(func() { server.Close(); <-done })
	t.Setenv("SLUICE_SERVER", socket)
	r := sluice(t, "ct", "gc")
	require.Equal(t, exitError, r.code)
	require.Equal(t, "sluice: this agent has no kernel maps\n", r.stderr)
	r = sluice(t, "ct", "flush", "--pod=web")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "ask for pods: this agent has no kernel maps")
}

func TestMapsError(t *testing.T) {
	require.ErrorIs(t, mapsError(fs.ErrPermission), fs.ErrPermission)
	require.NoError(t, mapsError(nil))
}
