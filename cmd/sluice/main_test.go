// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/sources/events"
)

// asMain has the test binary be the command, for tests that need a process.
const asMain = "SLUICE_TEST_AS_MAIN"

// withoutFaults has the command not have what tests add to the agent.
const withoutFaults = "SLUICE_TEST_WITHOUT_FAULTS"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		os.Unsetenv(asMain)
		if os.Getenv(withoutFaults) == "" {
			moreCells = []cell.Cell{bpf.FaultCell, events.InjectCell}
		}
		main()
	}
	goleak.VerifyTestMain(m)
}

// buffer is an output that is read while a command still writes.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// result is what a command line did.
type result struct {
	code           int
	stdout, stderr string
}

func sluice(t *testing.T, args ...string) result {
	t.Helper()
	return sluiceContext(t, t.Context(), args...)
}

func sluiceContext(t *testing.T, ctx context.Context, args ...string) result {
	t.Helper()
	var stdout, stderr buffer
	code := run(ctx, args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// tempDir is short enough for sockets, unlike the one of testing.
func tempDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "sluice")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// noAgent makes the usual places empty ones.
func noAgent(t *testing.T) {
	dir := tempDir(t)
	t.Setenv("SLUICE_SERVER", "unix://"+filepath.Join(dir, "sluice.sock"))
	t.Setenv("SLUICE_SOCKET", filepath.Join(dir, "sluice.sock"))
}

func TestUsageErrors(t *testing.T) {
	noAgent(t)
	for _, tc := range []struct {
		args   string
		stderr string
	}{
		{"frobnicate", `unknown command "frobnicate"`},
		{"get --outptu=json", "did you mean --output?"},
		{"get endpoints -o xml", "valid are: table, wide, json, yaml"},
		{"version -o table", "valid are: text, json, yaml"},
		{"tables extra", `want no argument, got "extra": see sluice tables --help`},
		{"agent extra", "want no argument"},
		{"agent --nodename", "did you mean --node-name?"},
		{"agent --log-level=loud", "valid are: debug, info, warn, error"},
		{"get health --server=ftp://x", "want unix:///path or http://address:port"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			r := sluice(t, strings.Fields(tc.args)...)
			require.Equal(t, exitUsage, r.code, r.stderr)
			require.Contains(t, r.stderr, tc.stderr)
			require.Empty(t, r.stdout)
		})
	}
}

func TestAgentRefusesValues(t *testing.T) {
	dir := tempDir(t)
	args := []string{"agent", "--bpf=memory", "--state-dir=" + dir, "--socket=" + dir + "/s.sock", "--api-listen=127.0.0.1:0", "--log-level=error"}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))
	for _, tc := range []struct {
		args   string
		stderr string
	}{
		{"--node-name=Node_1", `"Node_1" is no name of a node, --node-name sets it: a lowercase RFC 1123 subdomain`},
		{"--state-dir=", "--state-dir is empty"},
		{"--source=etcd", "valid are: kubernetes, files"},
		{"--source=files --kubeconfig=/x", "--kubeconfig needs --source=kubernetes"},
		{"--source=kubernetes --kubeconfig=/none", "read kubeconfig /none"},
		{"--source=kubernetes --manifests=/x --kubeconfig=" + kubeconfig, "--manifests needs --source=files"},
		{"--endpoint-source=calico", "valid are: kubernetes, cilium"},
		{"--bpf=sometimes", "want one of auto, kernel, memory"},
		{"--bpffs=sys/fs/bpf", "is not an absolute path"},
		{"--map-size-pods=0", "want 1 to 67108864"},
		{"--map-size-ipcache=67108865", "want 1 to 67108864"},
		{"--map-size-subjects=0", "want 1 to 67108864"},
		{"--map-size-peers=0", "want 1 to 67108864"},
		{"--map-size-egress=0", "want 1 to 67108864"},
		{"--map-size-gateways=255", "want 256 to 67108864"},
		{"--map-size-verdicts=0", "want 1 to 67108864"},
		{"--map-size-exits=0", "want 1 to 67108864"},
		{"--map-size-covered=0", "want 1 to 67108864"},
		{"--map-size-nodes=0", "want 1 to 67108864"},
		{"--map-size-ct-tcp=0", "--map-size-ct-tcp 0 is out of bounds: want 1 to 67108864"},
		{"--events-buffer=5000", "--events-buffer 5000: want a power of two"},
		{"--overlay-port=0", "--overlay-port"},
		{"--overlay-vni=16777216", "--overlay-vni"},
		{"--overlay-mtu=-1", "--overlay-mtu"},
		{"--source-check=some", "want one of strict, loose"},
		{"--shared-ports=0-99999", "--shared-ports"},
		{"--mark-mask=0x5000", "--mark-mask"},
		{"--retry-min=0s", "--retry-min 0s is not positive"},
		{"--retry-min=2s --retry-max=1s", "--retry-max 1s is less than --retry-min 2s"},
		{"--audit-interval=-1s", "--audit-interval -1s is negative"},
		{"--cluster-cidrs=10.0.0.0", "parse --cluster-cidrs"},
		{"--cluster-cidrs=10.0.0.0/8,0.0.0.0/0", "--cluster-cidrs 0.0.0.0/0: all addresses would be inside the cluster"},
		{"--cluster-cidrs=::/0", "--cluster-cidrs ::/0: all addresses"},
		{"--source=kubernetes --egress-ips --gateway-probe-interval=0 --kubeconfig=" + kubeconfig,
			"flag --egress-ips: nodes vote by what they probe, but --gateway-probe-interval is 0"},
		{"--egress-ip-lease=50ms", "flag --egress-ip-lease: 50ms: want 100ms to 10s"},
		{"--egress-ip-lease=11s", "flag --egress-ip-lease: 11s: want 100ms to 10s"},
		{"--api-listen=9880", "is not address:port"},
		{"--api-listen=127.0.0.1:http", `"http" is not a port number`},
		{"--api-listen= --socket=", "--api-listen and --socket are both empty"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			r := sluice(t, append(args, strings.Fields(tc.args)...)...)
			require.Equal(t, exitUsage, r.code, r.stderr)
			require.Contains(t, r.stderr, tc.stderr)
			require.NotContains(t, r.stderr, "object graph")
		})
	}

	r := sluice(t, "agent", "--state-dir=/proc/none")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "create state directory: mkdir /proc/none")

	t.Setenv("SLUICE_LOG_FORMAT", "xml")
	r = sluice(t, args...)
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "SLUICE_LOG_FORMAT")
	require.Contains(t, r.stderr, "valid are: text, json")
}

func TestNoAgent(t *testing.T) {
	noAgent(t)
	for _, args := range []string{"tables", "get", "get endpoints", "get endpoints -w", "shell help"} {
		r := sluice(t, strings.Fields(args)...)
		require.Equal(t, exitNoAgent, r.code, args)
		require.Contains(t, r.stderr, "no agent answers; tried:\n  unix:///", args)
		require.Contains(t, r.stderr, "no such file or directory", args)
		require.Contains(t, r.stderr, "sluice agent", args)
	}
}

func TestServers(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	t.Setenv("SLUICE_SOCKET", "")
	t.Setenv("SLUICE_API_LISTEN", "")
	t.Setenv("SLUICE_SERVER", "")
	require.Equal(t, []string{
		"unix:///run/sluice/sluice.sock", "unix:///run/user/1000/sluice/sluice.sock", "http://127.0.0.1:9880",
	}, servers(""))
	t.Setenv("SLUICE_SOCKET", "/a.sock")
	t.Setenv("SLUICE_API_LISTEN", "127.0.0.1:1")
	require.Equal(t, []string{
		"unix:///a.sock", "unix:///run/sluice/sluice.sock", "unix:///run/user/1000/sluice/sluice.sock", "http://127.0.0.1:1",
	}, servers(""))
	t.Setenv("SLUICE_SERVER", "http://b:2")
	require.Equal(t, []string{"http://b:2"}, servers(""))
	require.Equal(t, []string{"/c.sock"}, servers("/c.sock"))
}

func TestVersion(t *testing.T) {
	r := sluice(t, "version")
	require.Equal(t, exitOK, r.code)
	require.Regexp(t, `^sluice \S+ .*go1\.\d+`, r.stdout)
	r = sluice(t, "version", "-o", "json")
	require.Equal(t, exitOK, r.code)
	require.Contains(t, r.stdout, `"platform": "linux/`)
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"agent", "--help"}, {"get", "--help"}, {"cleanup", "--help"}, {"completion", "bash"}} {
		r := sluice(t, args...)
		require.Equal(t, exitOK, r.code, args)
		require.NotEmpty(t, r.stdout, args)
		require.Empty(t, r.stderr, args)
	}
	help := sluice(t, "agent", "--help").stdout
	for _, flag := range []string{"--node-name", "--state-dir", "--api-listen", "--socket", "--log-level", "--log-format", "--bpf", "--bpffs"} {
		require.Contains(t, help, flag+" ")
	}
	require.NotContains(t, help, "--shell-sock-path")
}

func TestQuote(t *testing.T) {
	require.Equal(t, "db/show -o x endpoints", quote([]string{"db/show", "-o", "x", "endpoints"}))
	require.Equal(t, "health 'a: level=OK' '' 'it''s'", quote([]string{"health", "a: level=OK", "", "it's"}))
}
