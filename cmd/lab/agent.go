// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// smallMaps keep several agents on one machine from taking much memory.
var smallMaps = []string{
	"--map-size-ipcache=16384", "--map-size-pods=16384", "--map-size-egress=16384",
	"--map-size-gateways=16384",
	"--map-size-ct-tcp=65536", "--map-size-ct-any=65536", "--map-size-nat=131072",
	"--map-size-fragments=1024",
}

// stopTimeout is for an agent to end by itself.
const stopTimeout = 30 * time.Second

// Agent is the agent of a node: a process in the node's network namespace, that
// dies with the lab. It may be stopped and started again.
type Agent struct {
	// From the next start on: the command line before its flags, which is of another
	// version unless it is empty, and what comes after them.
	Command, Flags []string

	node   *Node
	dir    string
	mounts *mounts
	http   *http.Client

	mu      sync.Mutex // of what follows
	process *process
}

func newAgent(n *Node) (*Agent, error) {
	dir := filepath.Join(n.cluster.dir, n.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	m, err := newMounts(filepath.Join(dir, "bpf"))
	if err != nil {
		return nil, err
	}
	a := &Agent{Command: n.cluster.options.Agent, node: n, dir: dir, mounts: m}
	a.http = socketClient(a.Socket())
	return a, nil
}

// Socket is the path of the agent's UNIX socket.
func (a *Agent) Socket() string { return filepath.Join(a.dir, "sluice.sock") }

// LogPath is the path of the agent's log, to which each start appends.
func (a *Agent) LogPath() string { return filepath.Join(a.dir, "agent.log") }

// BPFFS is the agent's BPF file system, as a path for this process, also while
// the agent does not run.
func (a *Agent) BPFFS() string { return a.mounts.outside() }

// arguments are the agent's command line.
func (a *Agent) arguments() ([]string, error) {
	options := &a.node.cluster.options
	argv := a.Command
	if len(argv) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the agent's program: %w", err)
		}
		argv = []string{self, "agent"}
	}
	argv = append(append([]string{}, argv...),
		"--node-name="+a.node.Name, "--source=files", "--manifests="+a.node.cluster.ManifestDir(),
		"--bpf=kernel", "--bpffs="+a.mounts.path, "--state-dir="+filepath.Join(a.dir, "state"),
		"--socket="+a.Socket(), "--api-listen=",
	)
	return append(append(append(argv, smallMaps...), options.AgentFlags...), a.Flags...), nil
}

// Start starts the agent and does not wait for it.
func (a *Agent) Start() error {
	argv, err := a.arguments()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process != nil && a.process.running() {
		return fmt.Errorf("start agent of %s: it runs already", a.node.Name)
	}
	if a.process, err = a.spawn(argv); err != nil {
		return fmt.Errorf("start agent of %s: %w", a.node.Name, err)
	}
	return nil
}

// process is a child.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// spawn runs a command in the node's namespaces.
func (a *Agent) spawn(argv []string) (*process, error) {
	log, err := os.OpenFile(a.LogPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if w := a.node.cluster.options.AgentLog; w != nil {
		both := io.MultiWriter(log, &prefixWriter{w: w, prefix: a.node.Name + " | "})
		cmd.Stdout, cmd.Stderr = both, both
	}
	// The environment of the lab is not the agent's, which takes variables for flags.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, // however the lab ends
		Setpgid:   true,            // Ctrl-C is for the lab only
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ties Pdeathsig to the parent's thread: it stays until the
		// child is gone.
		_ = onThread(func() error {
			defer log.Close()
			err := a.enterAndStart(cmd)
			started <- err
			if err == nil {
				_ = cmd.Wait() // its state tells
				close(p.exited)
			}
			return nil
		})
	}()
	return p, <-started
}

func (a *Agent) enterAndStart(cmd *exec.Cmd) error {
	if err := netns.Set(a.node.ns); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	if err := a.mounts.enter(); err != nil {
		return err
	}
	return cmd.Start()
}

func (a *Agent) current() *process {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.process
}

// Running reports whether the agent's process exists.
func (a *Agent) Running() bool {
	p := a.current()
	return p != nil && p.running()
}

// PID is the agent's process, 0 if it was never started.
func (a *Agent) PID() int {
	if p := a.current(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Kill ends the agent with SIGKILL and waits until it is gone.
func (a *Agent) Kill() {
	if p := a.current(); p != nil {
		_ = p.cmd.Process.Kill() // an error means that it is gone already
		<-p.exited
	}
	a.http.CloseIdleConnections()
}

// Stop ends the agent with SIGTERM and waits until it is gone. It is an error
// that this takes long, after which the agent is killed, or an exit code.
func (a *Agent) Stop() error {
	p := a.current()
	if p == nil || !p.running() {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	a.http.CloseIdleConnections()
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		a.Kill()
		return fmt.Errorf("stop agent of %s: it did not end within %s", a.node.Name, stopTimeout)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("stop agent of %s: %s", a.node.Name, p.cmd.ProcessState)
	}
	return nil
}

// Restart stops the agent if it runs, and starts it.
func (a *Agent) Restart() error { return errors.Join(a.Stop(), a.Start()) }

// end stops the agent for good. What is wrong with that is in its log.
func (a *Agent) end() { _ = a.Stop() }

func (a *Agent) close() {
	a.end()
	a.http.CloseIdleConnections()
	a.mounts.close()
}
