// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/e2e/cluster"
	"github.com/sluice-net/sluice/cmd/e2e/process"
	"github.com/sluice-net/sluice/tables"
)

const (
	localNode = "node-1" // the agent's
	timeout   = 2 * time.Minute
	tick      = 10 * time.Millisecond
)

// agent is the built binary, with its state, socket and BPF file system in a
// directory of the test. It may be stopped and started again.
type agent struct {
	t     testing.TB
	dir   string
	flags []string
	runs  string       // the subcommand
	http  *http.Client // by the socket

	process *process.Process
}

// newAgent prepares an agent that reads from a cluster with the rights that
// deploy/ gives. It does not start it.
func newAgent(t testing.TB, c *cluster.Cluster, flags ...string) *agent {
	t.Helper()
	return newAgentAs(t, c.Kubeconfig("sluice"), flags...)
}

func newAgentAs(t testing.TB, kubeconfig string, flags ...string) *agent {
	t.Helper()
	return newAgentOf(t, append([]string{"--source=kubernetes", "--kubeconfig=" + kubeconfig, "--bpf=kernel"}, flags...)...)
}

// newAgentOf prepares an agent that does what its flags say.
func newAgentOf(t testing.TB, flags ...string) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-e2e-") // short, for a socket is in it
	require.NoError(t, err)
	a := &agent{t: t, dir: dir, runs: "agent"}
	a.flags = append(append(a.locations(), "--node-name="+localNode, "--api-listen="), flags...)
	a.connect()
	return a
}

// newOperator prepares an operator, which is a process like an agent.
func newOperator(t testing.TB, kubeconfig string, flags ...string) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	require.NoError(t, err)
	a := &agent{t: t, dir: dir, runs: "operator"}
	a.flags = append([]string{
		"--kubeconfig=" + kubeconfig, "--socket=" + a.socket(), "--api-listen=",
	}, flags...)
	a.connect()
	return a
}

// connect makes the client of the socket, and has the test clean up.
func (a *agent) connect() {
	a.http = &http.Client{
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.socket())
		}},
		Timeout: timeout,
	}
	a.t.Cleanup(a.cleanUp)
}

// within is the same agent for a part of the test, which must not restart it.
func (a *agent) within(t testing.TB) *agent {
	b := *a
	b.t = t
	return &b
}

// locations are the flags that say where the agent leaves things.
func (a *agent) locations() []string {
	return []string{"--bpffs=" + filepath.Join(a.dir, "bpf"), "--state-dir=" + filepath.Join(a.dir, "state"), "--socket=" + a.socket()}
}

func (a *agent) socket() string { return filepath.Join(a.dir, "run", "sluice.sock") }

// pin is the path of a pinned map.
func (a *agent) pin(name string) string { return filepath.Join(a.dir, "bpf", "sluice", name) }

func (a *agent) cleanUp() {
	if a.process != nil {
		a.process.Kill()
		for _, bad := range []string{"DATA RACE", "\npanic: "} {
			if strings.Contains(a.log(), bad) {
				a.t.Errorf("the agent's log has %q", bad)
			}
		}
		if a.t.Failed() {
			a.t.Logf("log of the agent:\n%s", a.log())
		}
	}
	a.http.CloseIdleConnections()
	// Busy or not mounted: with the namespace of the tests it goes anyway.
	_ = unix.Unmount(filepath.Join(a.dir, "bpf"), unix.MNT_DETACH)
	_ = os.RemoveAll(a.dir)
}

// binary is the path of sluice, which the environment names.
func binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv(binaryVariable)
	require.NotEmpty(t, path, "%s is not set; make e2e sets it", binaryVariable)
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

// sluice is a command of the binary. The environment of the tests is not the
// agent's, which takes variables for flags.
func (a *agent) sluice(args ...string) *exec.Cmd {
	cmd := exec.Command(binary(a.t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.dir}
	return cmd
}

// start starts the agent and returns at once.
func (a *agent) start() {
	a.t.Helper()
	p, err := process.Start("agent", filepath.Join(a.dir, "agent.log"),
		a.sluice(append([]string{a.runs}, a.flags...)...))
	require.NoError(a.t, err)
	a.process = p
}

// startAnswering starts the agent and waits until its API answers.
func (a *agent) startAnswering() {
	a.t.Helper()
	a.start()
	a.eventually("the agent answers", func() error { _, _, err := a.get("/healthz"); return err })
}

// startReady starts the agent and waits until it is ready.
func (a *agent) startReady() {
	a.t.Helper()
	a.start()
	a.awaitReady()
}

// kill ends the agent with SIGKILL.
func (a *agent) kill() {
	a.process.Kill()
	a.http.CloseIdleConnections()
}

// terminate ends the agent with SIGTERM and returns its exit code.
func (a *agent) terminate() int {
	a.t.Helper()
	require.NoError(a.t, a.process.Signal(syscall.SIGTERM))
	select {
	case <-a.process.Exited():
	case <-time.After(timeout):
		require.Fail(a.t, "the agent does not stop")
	}
	a.http.CloseIdleConnections()
	return a.process.State().ExitCode()
}

func (a *agent) log() string { return a.process.LogTail(1 << 20) }

// get asks the API.
func (a *agent) get(path string) (status int, body []byte, err error) {
	select {
	case <-a.process.Exited():
		return 0, nil, fmt.Errorf("the agent has ended: %s", a.process.State())
	default:
	}
	response, err := a.http.Get("http://agent" + path)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// decode asks the API, and decodes an answer of any status.
func (a *agent) decode(path string, to any) (status int) {
	a.t.Helper()
	status, body, err := a.get(path)
	require.NoError(a.t, err)
	require.NoError(a.t, json.Unmarshal(body, to), "%s: %s", path, body)
	return status
}

// awaitReady waits until /readyz answers 200.
func (a *agent) awaitReady() {
	a.t.Helper()
	a.eventually("the agent is ready", func() error {
		status, body, err := a.get("/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
}

// health returns the status of /healthz and why it is not ok.
func (a *agent) health() api.HealthReport {
	a.t.Helper()
	var report api.HealthReport
	require.Equal(a.t, http.StatusOK, a.decode("/healthz", &report), "%v", report.Reasons)
	return report
}

// sources returns how it goes with each kind of object.
func (a *agent) sources() map[string]tables.ObjectSource {
	a.t.Helper()
	var dump map[string][]tables.ObjectSource
	require.Equal(a.t, http.StatusOK, a.decode("/statedb/dump/object-sources", &dump))
	sources := map[string]tables.ObjectSource{}
	for _, s := range dump["object-sources"] {
		sources[s.Source] = s
	}
	return sources
}

// writes returns how many entries of maps were written or deleted, or could
// not be, since the agent started.
func (a *agent) writes() (total float64) {
	a.t.Helper()
	status, body, err := a.get("/metrics")
	require.NoError(a.t, err)
	require.Equal(a.t, http.StatusOK, status)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	require.NoError(a.t, err)
	operations := families["sluice_map_operations_total"]
	require.NotNil(a.t, operations)
	for _, m := range operations.Metric {
		// The agent writes the keys of the overlay, or that there are none, whatever it may read.
		if !strings.Contains(m.String(), `"sluice_keys"`) {
			total += m.Counter.GetValue()
		}
	}
	return total
}

// eventually waits until there is no error, and says the last one otherwise.
func (a *agent) eventually(what string, check func() error) {
	a.t.Helper()
	var err error
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(tick) {
		if err = check(); err == nil {
			return
		}
	}
	require.NoError(a.t, err, "after %s: %s", timeout, what)
}
