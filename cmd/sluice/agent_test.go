// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/testdata/await"
)

// process is an agent in a process of its own.
type process struct {
	cmd    *exec.Cmd
	stderr buffer
	dir    string
	ended  chan struct{} // closed when the process has ended
}

func (p *process) flags() []string {
	return []string{"--state-dir=" + filepath.Join(p.dir, "state"), "--socket=" + p.socket()}
}

func (p *process) socket() string { return filepath.Join(p.dir, "run", "sluice.sock") }

// startAgent runs an agent that leaves the kernel alone, unless flags say something
// else, and returns when it has started.
func startAgent(t *testing.T, flags ...string) *process { return startAgentBy(t, "", flags...) }

// startAgentBy is startAgent by a shell that first runs some commands, in the agent's directory
// and in a mount namespace of its own, if there are any.
func startAgentBy(t *testing.T, commands string, flags ...string) *process {
	p := &process{dir: tempDir(t), ended: make(chan struct{})}
	self, err := os.Executable()
	require.NoError(t, err)
	argv := append([]string{
		self, "agent", "--node-name=node-1", "--bpf=memory", "--api-listen=127.0.0.1:0",
	}, append(p.flags(), flags...)...)
	if commands != "" {
		argv = append([]string{"unshare", "--mount", "sh", "-c", commands + `; exec "$@"`, "sh"}, argv...)
	}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = p.dir
	p.cmd.Env = append(os.Environ(), asMain+"=1")
	p.cmd.Stderr = &p.stderr
	require.NoError(t, p.cmd.Start())
	go func() {
		p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
	})
	t.Setenv("SLUICE_SERVER", "unix://"+p.socket())
	t.Setenv("SLUICE_SOCKET", p.socket())
	await.True(t, func() bool { return strings.Contains(p.stderr.String(), "stop it with Ctrl-C") || p.hasEnded() })
	require.False(t, p.hasEnded(), "%s", &p.stderr)
	return p
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop sends a signal and returns the exit code.
func (p *process) stop(t *testing.T, signal os.Signal) int {
	require.NoError(t, p.cmd.Process.Signal(signal))
	select {
	case <-p.ended:
	case <-time.After(await.Bound):
		t.Fatalf("the agent does not stop: %s", &p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestAgent(t *testing.T) {
	p := startAgent(t)
	require.Contains(t, p.stderr.String(), "node-1")

	t.Run("tables", func(t *testing.T) {
		r := sluice(t, "tables")
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Regexp(t, `(?m)^Name +Rows +Status +Revision +Indexes$`, r.stdout)
		require.Regexp(t, `(?m)^health +\d+ +initialized +\d+ +id, level$`, r.stdout)

		r = sluice(t, "tables", "-o", "json")
		require.Equal(t, exitOK, r.code, r.stderr)
		var list []api.Table
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
		require.NotEmpty(t, list)
	})

	t.Run("get", func(t *testing.T) {
		r := sluice(t, "get", "health")
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Regexp(t, `^Module +Level +Message`, r.stdout)
		require.Regexp(t, `(?m)^api +OK +Listening on`, r.stdout)

		var fromJSON, fromYAML []struct{ ID, Level string }
		await.True(t, func() bool { // rows are added while jobs start
			r := sluice(t, "get", "health", "-o", "json")
			require.Equal(t, exitOK, r.code, r.stderr)
			require.NoError(t, json.Unmarshal([]byte(r.stdout), &fromJSON))
			r = sluice(t, "get", "health", "-o", "yaml")
			require.Equal(t, exitOK, r.code, r.stderr)
			require.NoError(t, yaml.Unmarshal([]byte(r.stdout), &fromYAML))
			return len(fromJSON) > 0 && len(fromYAML) > 0 && fromJSON[0].ID == fromYAML[0].ID
		})

		r = sluice(t, "get", "helath")
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, `there is no table "helath"; did you mean health?`)
		r = sluice(t, "get")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.stderr, "health")
	})

	t.Run("by TCP", func(t *testing.T) {
		url := between(p.stderr.String(), "  api      ", "\n")
		require.Contains(t, url, "http://127.0.0.1:")
		r := sluice(t, "get", "health", "--server="+url)
		require.Equal(t, exitOK, r.code, r.stderr)
	})

	t.Run("watch", func(t *testing.T) { testWatch(t) })

	t.Run("shell", func(t *testing.T) {
		var r result
		await.True(t, func() bool { r = sluice(t, "shell", "health", "api: level=OK"); return r.code != exitNoAgent }, "its job starts last")
		require.Equal(t, exitOK, r.code, r.stderr)
		r = sluice(t, "shell", "db/show", "--format=json", "health")
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Contains(t, r.stdout, `"api"`)
		r = sluice(t, "shell", "http/get", "/readyz")
		require.Equal(t, exitOK, r.code, r.stderr)
		require.Contains(t, r.stdout, `"ready":`)
		r = sluice(t, "shell", "no-such-command")
		require.Equal(t, exitError, r.code)
	})

	t.Run("completion", func(t *testing.T) {
		r := sluice(t, "__complete", "get", "hea")
		require.Contains(t, r.stdout, "health")
	})

	t.Run("a second one is kept out", func(t *testing.T) {
		holder := fmt.Sprintf("another agent is running: process %d (started ", p.cmd.Process.Pid)
		r := sluice(t, append([]string{"agent", "--bpf=memory", "--api-listen=127.0.0.1:0"}, p.flags()...)...)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, holder)
		r = sluice(t, append([]string{"cleanup", "--bpffs=" + p.dir}, p.flags()...)...)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, holder)
	})

	require.Equal(t, exitOK, p.stop(t, syscall.SIGTERM), "%s", &p.stderr)
	require.NoFileExists(t, p.socket())
	require.NotContains(t, p.stderr.String(), "level=ERROR")
	require.Equal(t, exitNoAgent, sluice(t, "tables").code)
}

func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}

// testWatch follows the table of health until it has seen the row of the API.
func testWatch(t *testing.T) {
	for _, tc := range []struct{ format, want string }{
		{"table", "UPDATED   api"}, {"json", `"id":"api"`}, {"yaml", "---\nobj:\n"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr buffer
		code := make(chan int)
		go func() { code <- run(ctx, []string{"get", "health", "-w", "-o", tc.format}, &stdout, &stderr) }()
		await.True(t, func() bool { return strings.Contains(stdout.String(), tc.want) },
			"%s %s %s", tc.format, &stdout, &stderr)
		cancel()
		require.Equal(t, exitOK, <-code, "%s", &stderr)
	}
}

func TestInterrupt(t *testing.T) {
	p := startAgent(t)
	require.Equal(t, exitOK, p.stop(t, os.Interrupt), "%s", &p.stderr)
}

func TestWatchEndsWithAgent(t *testing.T) {
	p := startAgent(t)
	var stdout, stderr buffer
	code := make(chan int)
	go func() { code <- run(t.Context(), []string{"get", "health", "-w"}, &stdout, &stderr) }()
	await.True(t, func() bool { return strings.Contains(stdout.String(), "UPDATED") })
	require.Equal(t, exitOK, p.stop(t, syscall.SIGTERM), "who watches does not hold up the stop: %s", &p.stderr)
	require.Equal(t, exitNoAgent, <-code)
	require.Contains(t, stderr.String(), "the agent closed the connection")
}

func TestCleanup(t *testing.T) {
	p := startAgent(t)
	procfs := filepath.Join(p.dir, "proc")
	parameter := filepath.Join(procfs, "sys", "net", "rp_filter")
	require.NoError(t, os.MkdirAll(filepath.Dir(parameter), 0o755))
	require.NoError(t, os.WriteFile(parameter, []byte("2\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "state", "check"), nil, 0o644)) // as if it was killed then
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "state", "sysctls.json"), []byte(`{"net/rp_filter": "1"}`), 0o644))
	require.NotEqual(t, exitOK, p.stop(t, os.Kill))
	require.FileExists(t, p.socket(), "left behind")

	args := append([]string{"cleanup", "--bpffs=" + filepath.Join(p.dir, "bpffs"), "--procfs=" + procfs}, p.flags()...)
	r := sluice(t, args...)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "restored kernel parameter net/rp_filter=1\n")
	require.Contains(t, r.stdout, "removed socket "+p.socket()+"\n")
	value, err := os.ReadFile(parameter)
	require.NoError(t, err)
	require.Equal(t, "1", string(bytes.TrimSpace(value)))
	require.NoDirExists(t, filepath.Join(p.dir, "state"))
	require.NoFileExists(t, p.socket())

	r = sluice(t, args...)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Equal(t, "nothing to clean up\n", r.stdout)
}

// What could not be restored must stay on record.
func TestCleanupKeepsStateOnFailure(t *testing.T) {
	dir := tempDir(t)
	state := filepath.Join(dir, "state")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc", "sys", "net", "rp_filter"), 0o755)) // cannot be written
	require.NoError(t, os.MkdirAll(state, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(state, "sysctls.json"), []byte(`{"net/rp_filter": "1"}`), 0o644))
	r := sluice(t, "cleanup", "--state-dir="+state, "--socket="+dir+"/s.sock", "--bpffs="+dir+"/bpffs", "--procfs="+dir+"/proc")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "rp_filter")
	require.FileExists(t, filepath.Join(state, "sysctls.json"))
}
