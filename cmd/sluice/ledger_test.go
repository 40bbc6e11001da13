// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/reconcilers/ledger"
	"github.com/sluice-net/sluice/testdata/await"
)

const ledgerLines = `{"time":"2026-11-24T12:00:00Z","event":"start","reason":"new"}
{"time":"2026-11-24T12:00:01.5Z","event":"begin","id":1,"namespace":"shop","pod":"web-1","node":"node-1","podAddress":"10.1.0.5:4660","protocol":"TCP","egress":"203.0.113.102:40000","destination":"198.51.100.10:443"}
{"time":"2026-11-24T12:00:02Z","event":"begin","id":2,"podAddress":"10.1.0.6:4660","protocol":"UDP","egress":"203.0.113.102:40001","destination":"198.51.100.10:53"}
{"time":"2026-11-24T12:00:03Z","event":"missing","reason":"buffer","count":3}
{"time":"2026-11-24T12:01:00Z","event":"end","reason":"expired","id":1,"podAddress":"10.1.0.5:4660","protocol":"TCP","egress":"203.0.113.102:40000","destination":"198.51.100.10:443","began":"2026-11-24T12:00:01.5Z","lastUsed":"2026-11-24T12:00:50Z"}
{"time":"2026-11-24T12:02:00Z","event":"clock","step":"-1h0m0s"}
{"time":"2026-11-24T12:02:00Z","event":"start","reason":"killed","count":9}
`

func TestLedgerCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger.jsonl")
	r := sluice(t, "ledger", "203.0.113.102", "--file="+file)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "the agent writes one with --ledger-file")
	require.NoError(t, os.WriteFile(file, nil, 0o600)) // as of an agent whose disk is full
	r = sluice(t, "ledger", "203.0.113.102", "--file="+file)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, "sluice: the files have no records: they tell of no time\n", r.stderr)
	require.NoError(t, os.WriteFile(file, []byte(ledgerLines), 0o600))

	r = sluice(t, "ledger", "203.0.113.102", "--file="+file)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, `From Until End Pod PodAddress Node Protocol Egress Destination LastUsed
2026-11-24T12:00:01Z 2026-11-24T12:01:00Z expired shop/web-1 10.1.0.5:4660 node-1 TCP 203.0.113.102:40000 198.51.100.10:443 2026-11-24T12:00:50Z
2026-11-24T12:00:02Z 2026-11-24T12:02:00Z unknown - 10.1.0.6:4660 - UDP 203.0.113.102:40001 198.51.100.10:53 -
`, squeezed(r.stdout))
	require.Equal(t, `sluice: 3 records are missing before 2026-11-24T12:00:03Z, as the kernel's buffer was full
sluice: at most 9 records are missing before 2026-11-24T12:02:00Z, when an agent was started after one was killed
sluice: the clock of the node was set by -1h0m0s at 2026-11-24T12:02:00Z
`, r.stderr)

	r = sluice(t, "ledger", "203.0.113.102", "--file="+file, "--at=2026-11-24T11:59:59Z")
	require.Equal(t, exitOK, r.code)
	require.Contains(t, r.stderr,
		"the files begin at 2026-11-24T12:00:00Z: they do not tell of before")

	for _, args := range [][]string{
		{"203.0.113.102:40000"}, {"203.0.113.102", "--protocol=tcp"}, {"203.0.113.102", "--to=198.51.100.10:443"},
		{"203.0.113.102:40000", "--at=2026-11-24T12:00:30Z"},
		{"203.0.113.102:40000", "--at=2026-11-24T12:00:01Z"}, // it began in this second
		{"203.0.113.102:40000", "--at=2026-11-24T12:01:08Z", "--within=8s"},
		{"::ffff:203.0.113.102", "--to=198.51.100.10", "--protocol=TCP"},
	} {
		r = sluice(t, append([]string{"ledger", "--file=" + file, "-o", "json"}, args...)...)
		require.Equal(t, exitOK, r.code, r.stderr)
		var answer ledger.Answer
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &answer))
		require.Len(t, answer.Held, 1, args)
		require.Equal(t, "web-1", answer.Held[0].Pod)
		require.Equal(t, "expired", answer.Held[0].EndReason)
		require.Len(t, answer.Missing, 2)
	}
	for _, bad := range [][]string{
		{"web"}, {"203.0.113.102:x"}, {"203.0.113.102", "--to=web"}, {"203.0.113.102", "--at=noon"},
		{"203.0.113.102", "--within=1s"}, {"203.0.113.102", "--at=2026-11-24T12:00:30Z", "--within=-1s"},
	} {
		require.Equal(t, exitUsage, sluice(t, append([]string{"ledger"}, bad...)...).code, bad)
	}
	r = sluice(t, "ledger", "203.0.113.102", "--file="+file, "--protocol=foo")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, `--protocol "foo": want TCP, UDP, ICMP or ICMPv6`)
}

// squeezed has one space between columns.
func squeezed(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// TestLedgerOfAgent: a real agent records in the file what ends, before and after a restart. Its buffer is
// pinned, and goes when the ledger is switched off.
func TestLedgerOfAgent(t *testing.T) {
	bpffs, file := newBPFFS(t), filepath.Join(t.TempDir(), "ledger.jsonl")
	n := &tracked{t: t, bpffs: bpffs, ct: map[string]ctmap.Map{}, nat: map[string]natmap.Map{}}
	run := func(flags ...string) *process {
		return startAgent(t, append([]string{"--bpf=kernel", "--bpffs=" + bpffs, "--map-size-ct-tcp=4096",
			"--map-size-ct-any=4096", "--map-size-nat=4096"}, flags...)...)
	}
	on := []string{"--ledger-file=" + file, "--ledger-buffer=65536", "--state-dir=" + t.TempDir()}
	p := run(on...)
	ct, err := ctmap.OpenAll(bpf.MapsDir(bpffs))
	require.NoError(t, err)
	for _, m := range ct {
		defer m.Close()
		n.ct[m.Name()] = m
	}
	nat, err := natmap.OpenAll(bpf.MapsDir(bpffs))
	require.NoError(t, err)
	for _, m := range nat {
		defer m.Close()
		n.nat[m.Name()] = m
	}
	n.now, err = gc.Now()
	require.NoError(t, err)
	pinned := filepath.Join(bpf.MapsDir(bpffs), bpf.LedgerMap)
	require.FileExists(t, pinned)

	held := func() []ledger.Held {
		answer, err := ledger.Search(file, ledger.Question{Egress: netip.MustParseAddr("203.0.113.102")})
		require.NoError(t, err)
		require.Empty(t, answer.Missing)
		// What has not ended is there as soon as the agent has found it.
		return slices.DeleteFunc(answer.Held, func(h ledger.Held) bool { return h.Until.IsZero() })
	}
	n.track(unix.IPPROTO_TCP, "10.1.0.5:40000", "198.51.100.10:443", ctmap.SeenNonSYN, 9000, "203.0.113.102:40000")
	r := n.run("ct", "flush", "--port=443")
	require.Equal(t, exitOK, r.code, r.stderr)
	await.True(t, func() bool { return len(held()) == 1 })
	first := held()[0]
	require.Equal(t, "flushed", first.EndReason)
	require.Equal(t, "10.1.0.5:40000", first.PodAddress.String())
	require.Equal(t, "203.0.113.102:40000", first.Egress.String())
	require.Equal(t, "198.51.100.10:443", first.Destination.String())
	require.WithinDuration(t, time.Now(), first.Until, time.Minute)

	p.stop(t, syscall.SIGTERM)
	n.track(unix.IPPROTO_TCP, "10.1.0.5:40001", "198.51.100.10:80", ctmap.SeenNonSYN, 9000,
		"203.0.113.102:40001")
	p = run(on...)
	n.track(unix.IPPROTO_UDP, "10.1.0.5:5353", "198.51.100.53:53", 0, 9000, "203.0.113.102:5353")
	r = n.run("ct", "flush", "--port=53")
	require.Equal(t, exitOK, r.code, r.stderr)
	await.True(t, func() bool { return len(held()) == 2 })

	// What goes while no agent runs has an end too.
	p.stop(t, syscall.SIGTERM)
	replies := ctmap.Tuple{
		Source:      netip.MustParseAddrPort("198.51.100.10:80"),
		Destination: netip.MustParseAddrPort("203.0.113.102:40001"),
		Protocol:    unix.IPPROTO_TCP, Flags: ctmap.In,
	}
	require.NoError(t, n.nat[natmap.Name4].Delete(replies))
	p = run(on...)
	await.True(t, func() bool { return len(held()) == 3 })
	require.Contains(t, ends(held()), "10.1.0.5:40001 unknown")

	p.stop(t, syscall.SIGTERM)
	run()
	require.NoFileExists(t, pinned)
}

// ends returns which addresses of pods have ended, and why.
func ends(held []ledger.Held) (all []string) {
	for _, h := range held {
		all = append(all, h.PodAddress.String()+" "+h.EndReason)
	}
	return all
}
