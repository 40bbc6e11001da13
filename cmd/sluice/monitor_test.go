// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// monitored is sluice monitor at work.
type monitored struct {
	t              *testing.T
	stdout, stderr buffer
	interrupt      context.CancelFunc
	code           chan int
}

func startMonitor(t *testing.T, args ...string) *monitored {
	ctx, cancel := context.WithCancel(t.Context())
	m := &monitored{t: t, interrupt: cancel, code: make(chan int, 1)}
	go func() { m.code <- run(ctx, append([]string{"monitor"}, args...), &m.stdout, &m.stderr) }()
	m.shows("no programs are loaded on node-1")
	return m
}

func (m *monitored) shows(text string) {
	m.t.Helper()
	await.True(m.t, func() bool { return strings.Contains(m.stdout.String(), text) },
		"%s: %s %s", text, &m.stdout, &m.stderr)
}

// lines returns what was printed after the notice that there are no programs.
func (m *monitored) lines() []string {
	return strings.Split(strings.TrimSpace(m.stdout.String()), "\n")[1:]
}

func (m *monitored) ends(code int) {
	m.t.Helper()
	require.Equal(m.t, code, <-m.code, "%s", &m.stderr)
}

func inject(t *testing.T, yaml string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events.yaml")
	require.NoError(t, os.WriteFile(path, []byte(yaml), 0o600))
	var r result
	await.True(t, func() bool { r = sluice(t, "shell", "events/inject", path); return r.code != exitNoAgent }, "its job starts last")
	require.Equal(t, exitOK, r.code, r.stderr)
}

func TestMonitor(t *testing.T) {
	p := startAgent(t)
	all := startMonitor(t)
	drops := startMonitor(t, "--kind=drop", "--reason=no-egress-gateway", "--reason=no SNAT port", "--pod=192.0.2.0/24", "--pod=a/b")
	asJSON := startMonitor(t, "-o", "json")
	inject(t, `
- {reason: no egress gateway, source: "192.0.2.1:43210", destination: "203.0.113.9:443", tcpFlags: S, length: 74}
- {reason: predates policy, source: "192.0.2.1:43210", destination: "203.0.113.9:443", tcpFlags: A, length: 66}
- {reason: no SNAT port, direction: ingress, source: "[2001:db8::1]:9", destination: "2001:db8::2", protocol: icmpv6, icmpType: 128, length: 118}
- {kind: flow, reason: to gateway, source: "192.0.2.1:1", destination: "203.0.113.9:53", protocol: udp, gateway: 198.51.100.1, egress: "198.51.100.7:1025"}
`)
	all.shows("FLOW")
	lines := all.lines()
	for i, want := range []string{
		`DROP no egress gateway: 192\.0\.2\.1:43210 -> 203\.0\.113\.9:443 TCP S, 74 bytes`,
		`DROP predates policy: 192\.0\.2\.1:43210 -> 203\.0\.113\.9:443 TCP A, 66 bytes`,
		`DROP no SNAT port: 2001:db8::1 -> 2001:db8::2 ICMPv6 echo request id 9, 118 bytes`,
		`FLOW to gateway: 192\.0\.2\.1:1 -> 203\.0\.113\.9:53 UDP, gateway 198\.51\.100\.1, egress 198\.51\.100\.7:1025, 0 bytes`,
	} {
		require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{6} `+want+`$`, lines[i])
	}
	inject(t, `[{reason: no egress gateway, source: 192.0.2.2, destination: 203.0.113.9, protocol: gre}]`)
	drops.shows("GRE")
	require.Len(t, drops.lines(), 2, "the filtered ones are left out: %s", &drops.stdout)

	asJSON.shows("GRE")
	var event tables.Event
	require.NoError(t, json.Unmarshal([]byte(asJSON.lines()[0]), &event))
	require.Equal(t, "no egress gateway", event.Reason)

	r := sluice(t, "get", "monitors")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Len(t, strings.Split(strings.TrimSpace(r.stdout), "\n"), 3, "header, and the two that want flows: %s", r.stdout)
	await.True(t, func() bool {
		r := sluice(t, "get", "drops")
		return strings.Count(r.stdout, "\n") == 4 && strings.Contains(r.stdout, "-     ingress     no SNAT port        1 ")
	}, "%v", sluice(t, "get", "drops"))

	drops.interrupt()
	drops.ends(exitOK)
	require.Empty(t, drops.stderr.String())
	require.Equal(t, exitOK, p.stop(t, syscall.SIGTERM), "who follows does not hold up the stop: %s", &p.stderr)
	all.ends(exitNoAgent)
	require.Contains(t, all.stderr.String(), "the agent closed the connection")
	asJSON.ends(exitNoAgent)

	r = sluice(t, "monitor")
	require.Equal(t, exitNoAgent, r.code)
	require.Contains(t, r.stderr, "no agent answers; tried:")
}

func TestMonitorUsage(t *testing.T) {
	noAgent(t)
	for args, message := range map[string]string{
		"--kind=lost":   `unknown kind "lost": want drop or flow`,
		"--reason=luck": `unknown reason "luck": want one of: passed, to gateway, `,
		"--pod=Web":     `unknown pod "Web": want namespace/name`,
		"-o table":      "valid are: text, json",
		"drops":         "want no argument",
	} {
		r := sluice(t, append([]string{"monitor"}, strings.Fields(args)...)...)
		require.Equal(t, exitUsage, r.code, r.stderr)
		require.Contains(t, r.stderr, message)
	}
}
