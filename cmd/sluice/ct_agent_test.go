// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/testdata/await"
)

// A real agent with maps in the kernel does what is asked for, and tells of it.
// When it is gone the commands work on what it has left.
func TestCTOfAgent(t *testing.T) {
	n := &tracked{t: t, bpffs: newBPFFS(t), ct: map[string]ctmap.Map{}, nat: map[string]natmap.Map{}}
	p := startAgent(t, "--bpf=kernel", "--bpffs="+n.bpffs, "--map-size-ct-tcp=4096", "--map-size-ct-any=4096", "--map-size-nat=4096")
	require.Equal(t, netnsOf(t, "thread-self"), netnsOf(t, strconv.Itoa(p.cmd.Process.Pid)), "it is kept away from the host's network")
	ct, err := ctmap.OpenAll(bpf.MapsDir(n.bpffs))
	require.NoError(t, err)
	for _, m := range ct {
		defer m.Close()
		n.ct[m.Name()] = m
	}
	nat, err := natmap.OpenAll(bpf.MapsDir(n.bpffs))
	require.NoError(t, err)
	for _, m := range nat {
		defer m.Close()
		n.nat[m.Name()] = m
	}
	n.now, err = gc.Now()
	require.NoError(t, err)

	n.track(17, "10.1.0.5:5353", "198.51.100.53:53", 0, -30, "203.0.113.102:5353") // before the agent can have a look
	r := n.run("ct", "gc", "--all-expired", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Empty(t, r.stderr)
	var passes []gc.Pass
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &passes))
	require.Len(t, passes, 6, r.stdout)

	n.track(6, "10.1.0.5:40000", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "203.0.113.102:40000")
	n.track(6, "10.1.0.5:40001", "198.51.100.10:80", ctmap.SeenNonSYN, 9000, "203.0.113.102:40001")
	connections, translations := n.left()
	require.Equal(t, 2, connections, "the expired one is gone")
	require.Equal(t, 4, translations)
	r = n.run("ct", "flush", "--port=443")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, "removed 1 connections and 2 entries of translations\n", r.stdout)
	r = n.run("ct", "list")
	require.Regexp(t, `(?m)^tcp +10\.1\.0\.5:40001 +198\.51\.100\.10:80 +out +established `, r.stdout)
	require.Empty(t, r.stderr, "the agent was asked for names")

	r = sluice(t, "get", "ct-gc-runs", "-o", "json")
	require.Equal(t, exitOK, r.code, r.stderr)
	var rows []struct{ Map, Reason string }
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &rows))
	require.Contains(t, rows, struct{ Map, Reason string }{ctmap.CT4Any, "sluice ct gc"})
	require.Contains(t, rows, struct{ Map, Reason string }{ctmap.CT4TCP, "sluice ct flush"})

	other := newTracked(t)
	other.fill()
	for _, args := range [][]string{{"ct", "gc"}, {"ct", "flush", "--all"}} {
		r = other.run(args...)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, "the maps of this agent are in "+bpf.MapsDir(n.bpffs)+", not in "+bpf.MapsDir(other.bpffs))
	}
	r = sluice(t, "ct", "gc")
	require.Equal(t, exitOK, r.code, r.stderr)

	p.stop(t, syscall.SIGKILL)
	anyAgent(t)
	r = n.run("ct", "flush", "--all")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, aloneNote, r.stderr)
	connections, translations = n.left()
	require.Zero(t, connections+translations)
}

// ownActive matches the table slots when what the agent has written is in force.
var ownActive = regexp.MustCompile(`(?m)^\d +in force +true `)

// A pod that went while no agent ran leaves no connections to who gets its address.
func TestCTOfFormerPod(t *testing.T) {
	n := newTracked(t)
	manifests := t.TempDir()
	require.NoError(t, os.CopyFS(manifests, os.DirFS("../../testdata/demo")))
	flags := []string{
		"--bpf=kernel", "--bpffs=" + n.bpffs, "--manifests=" + manifests,
		"--map-size-ct-tcp=1000", "--map-size-ct-any=1000", "--map-size-nat=500",
	}
	p := startAgent(t, flags...)
	await.True(t, func() bool {
		return strings.Contains(sluice(t, "get", "map-pods").stdout, "10.1.1.11") &&
			ownActive.MatchString(sluice(t, "get", "slots").stdout)
	}, "the pod is in the map in force")
	p.stop(t, syscall.SIGKILL)
	n.track(unix.IPPROTO_TCP, "10.1.1.10:40000", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "")
	n.track(unix.IPPROTO_TCP, "10.1.1.11:40001", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "203.0.113.102:40001")

	pods := filepath.Join(manifests, "3-pods.yaml")
	before, err := os.ReadFile(pods)
	require.NoError(t, err)
	after := strings.Replace(string(before), "[{ip: 10.1.1.11}]", "[{ip: 10.1.1.99}]", 1)
	require.NotEqual(t, string(before), after)
	require.NoError(t, os.WriteFile(pods, []byte(after), 0o600))
	p = startAgent(t, flags...)
	await.True(t, func() bool {
		connections, translations := n.left()
		return connections == 1 && translations == 0
	}, "%s", &p.stderr)
	r := n.run("ct", "list")
	require.Contains(t, r.stdout, "payments/checkout-1:40000", r.stderr)
	require.Contains(t, sluice(t, "get", "ct-gc-runs").stdout, "endpoints-gone")
}

func netnsOf(t *testing.T, process string) string {
	ns, err := os.Readlink("/proc/" + process + "/ns/net")
	require.NoError(t, err)
	return ns
}

// An agent whose maps are in memory says so.
func TestCTOfAgentInMemory(t *testing.T) {
	startAgent(t)
	r := sluice(t, "ct", "gc")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "this agent has no kernel maps")
}
