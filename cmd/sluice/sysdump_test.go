// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/testdata/await"
)

// unpack returns the files of an archive, by their names in its directory.
func unpack(t *testing.T, archive io.Reader) map[string]string {
	gz, err := gzip.NewReader(archive)
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(data)
	}
}

// A report about a running agent has all that it says, and nothing that looks
// like a secret, wherever that was.
func TestSysdump(t *testing.T) {
	const seed = "s33d-of-a-secret"
	dir := tempDir(t)
	manifests, log := filepath.Join(dir, "manifests"), filepath.Join(dir, "agent.log")
	require.NoError(t, os.CopyFS(manifests, os.DirFS("../../testdata/demo")))
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "7-seeded.yaml"), []byte(`
apiVersion: v1
kind: Pod
metadata: {name: seeded, namespace: shop, labels: {app: seeded, api-token: `+seed+`}, annotations: {password: `+seed+`}}
spec: {nodeName: node-1}
status: {phase: Running, podIP: 10.1.1.77, podIPs: [{ip: 10.1.1.77}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: seeded, namespace: shop}
spec: {podSelector: {matchLabels: {api-token: `+seed+`}}}
`), 0o600))
	require.NoError(t, os.WriteFile(log, []byte("msg=\"rest client\" header=\"Authorization: Bearer "+seed+"\"\nmsg=ready\n"), 0o600))
	t.Setenv("SLUICE_REGISTRY_PASSWORD", seed)
	t.Setenv("OTHER_VARIABLE", seed)
	p := startAgent(t, "--manifests="+manifests)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "state", "token"), []byte(seed), 0o600))

	name := filepath.Join(dir, "report.tar.gz")
	args := []string{"sysdump", name, "--state-dir=" + filepath.Join(p.dir, "state"), "--log-file=" + log, "--bpffs=" + dir}
	r := sluice(t, args...)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Regexp(t, `report.tar.gz: \d+ files of node node-1, \d+\.\d MB before compression; \d+ tables with \d+ rows\n`, r.stdout)
	require.Contains(t, r.stdout, "no agent has run with kernel maps here", "what could not be had is said")
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode())
	file, err := os.Open(name)
	require.NoError(t, err)
	defer file.Close()
	files := unpack(t, file)

	for file, text := range files {
		require.NotContains(t, text, seed, file)
	}
	var tables []api.Table
	require.NoError(t, json.Unmarshal([]byte(files["agent/tables.json"]), &tables))
	for _, table := range tables {
		var rows []json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(files["tables/"+table.Name+".json"]), &rows), table.Name)
		if table.Name == "endpoints" || table.Name == "network-policies" {
			require.Len(t, rows, table.Rows, table.Name)
		}
	}
	for name, text := range map[string]string{
		"tables/endpoints.json":   `"api-token":"REDACTED"`,
		"agent/goroutines.txt":    "goroutine 1 [",
		"agent/version.json":      `"node": "node-1"`,
		"agent/status.json":       `"uptimeSeconds"`,
		"agent/health.json":       `"modules"`,
		"agent/ready.json":        `"ready"`,
		"agent/metrics.txt":       "sluice_table_rows{",
		"agent/flags.txt":         "--node-name=node-1\n",
		"agent/environment.txt":   "SLUICE_REGISTRY_PASSWORD=REDACTED\n",
		"agent/process.txt":       fmt.Sprintf("Pid:\t%d\n", p.cmd.Process.Pid),
		"agent/log.txt":           "msg=ready",
		"agent/state/files.txt":   "token\n",
		"agent/state/sluice.lock": fmt.Sprintf(`"pid":%d`, p.cmd.Process.Pid),
		"kernel/version.txt":      "Linux",
		"kernel/sysctls.txt":      "net/ipv4/ip_forward",
		"node/links.txt":          " lo ",
		"errors.txt":              "connections: ",
		"README.txt":              "errors.txt",
		"version.json":            `"platform"`,
	} {
		require.Contains(t, files[name], text, name)
	}
	require.NotContains(t, files, "agent/state/token")

	r = sluice(t, args...)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "file exists", "nothing is overwritten")

	r = sluice(t, append([]string{"sysdump", "-"}, args[2:]...)...)
	require.Equal(t, exitOK, r.code)
	require.Contains(t, r.stderr, "-: ")
	require.Contains(t, unpack(t, strings.NewReader(r.stdout)), "tables/health.json")

	r = sluice(t, append([]string{"sysdump", "-", "--max-file=1000"}, args[2:]...)...)
	require.Equal(t, exitOK, r.code)
	require.Contains(t, r.stderr, "Not whole: ")
	for name, text := range unpack(t, strings.NewReader(r.stdout)) {
		if name != "errors.txt" && name != "README.txt" {
			require.LessOrEqual(t, len(text), 1000+len("[\n]\n"), name)
		}
	}

	require.Equal(t, exitUsage, sluice(t, "sysdump", "-", "--max-file=0").code)
	r = sluice(t, "sysdump", "a", "b")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "want at most one FILE")
}

// Who is interrupted leaves no half of an archive behind.
func TestSysdumpInterrupted(t *testing.T) {
	noAgent(t)
	name := filepath.Join(t.TempDir(), "report.tar.gz")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := sluiceContext(t, ctx, "sysdump", name, "--bpffs="+t.TempDir(), "--state-dir="+t.TempDir())
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "interrupted")
	require.NoFileExists(t, name)
}

// Of an agent that is dead there is what it left.
func TestSysdumpOfDeadAgent(t *testing.T) {
	p := startAgent(t)
	p.stop(t, syscall.SIGKILL)
	r := sluice(t, "sysdump", "-", "--state-dir="+filepath.Join(p.dir, "state"), "--bpffs="+p.dir)
	require.Equal(t, exitOK, r.code, r.stderr)
	files := unpack(t, strings.NewReader(r.stdout))
	require.Contains(t, files["errors.txt"], "agent: no agent answers")
	require.Contains(t, files["errors.txt"], fmt.Sprintf("the agent's process %d is gone", p.cmd.Process.Pid))
	require.Contains(t, files["kernel/version.txt"], "Linux")
	require.Contains(t, files["agent/state/files.txt"], "sluice.lock")
}

// As root there are the maps of the kernel, and the connections if they are asked for.
func TestSysdumpOfKernel(t *testing.T) {
	n := newTracked(t)
	n.fill()
	anyAgent(t)
	for _, connections := range []bool{false, true} {
		r := sluice(t, "sysdump", "-", "--bpffs="+n.bpffs, "--state-dir="+t.TempDir(), fmt.Sprintf("--connections=%t", connections))
		require.Equal(t, exitOK, r.code, r.stderr)
		files := unpack(t, bytes.NewReader([]byte(r.stdout)))
		var maps []struct {
			Name       string
			ID         int
			MaxEntries int
		}
		require.NoError(t, json.Unmarshal([]byte(files["kernel/maps.json"]), &maps), files["errors.txt"])
		require.NotEmpty(t, maps)
		require.NotZero(t, maps[0].ID)
		require.NotZero(t, maps[0].MaxEntries)
		var counts map[string]int
		require.NoError(t, json.Unmarshal([]byte(files["connections/count.json"]), &counts))
		require.NotZero(t, counts[ctmap.CT4TCP])
		var list []any
		if connections {
			require.NoError(t, json.Unmarshal([]byte(files["connections/"+ctmap.CT4TCP+".json"]), &list))
		}
		require.Equal(t, connections, len(list) == counts[ctmap.CT4TCP], "%d", len(list))
	}
}

// Of programs that run there are the links, by which they are attached.
func TestSysdumpOfPrograms(t *testing.T) {
	bpffs := newBPFFS(t)
	p := startAgent(t, "--bpf=kernel", "--bpffs="+bpffs, "--map-size-ct-tcp=1000", "--map-size-ct-any=1000", "--map-size-nat=500")
	await.True(t, func() bool {
		r := sluice(t, "status")
		return strings.Contains(r.stdout, "backstop: 1 running")
	}, "%s", &p.stderr)
	r := sluice(t, "sysdump", "-", "--bpffs="+bpffs, "--state-dir="+filepath.Join(p.dir, "state"))
	require.Equal(t, exitOK, r.code, r.stderr)
	files := unpack(t, strings.NewReader(r.stdout))
	var links []struct {
		Type    string
		Program struct {
			Name, Tag    string
			Instructions int
			MapIDs       []int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(files["kernel/links.json"]), &links), files["errors.txt"])
	require.NotEmpty(t, links)
	for _, l := range links {
		require.NotEmpty(t, l.Type)
		require.NotEmpty(t, l.Program.Name)
		require.NotEmpty(t, l.Program.Tag)
		require.NotZero(t, l.Program.Instructions)
		require.NotEmpty(t, l.Program.MapIDs)
	}
	require.Contains(t, files["agent/flags.txt"], "--bpf=kernel")
	require.Contains(t, files["agent/memory.txt"], "# /sys/fs/cgroup")
}
