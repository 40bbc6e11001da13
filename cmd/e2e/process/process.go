// SPDX-License-Identifier: Apache-2.0

// Package process runs the programs of the end-to-end tests: children that die
// with the test binary, with their output in a file.
package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a child that dies with the test binary, however that ends.
type Process struct {
	Name    string
	LogPath string

	cmd    *exec.Cmd
	exited chan struct{} // closed when the child is gone
}

// Start runs a command, its output appended to a file. The name is for messages.
func Start(name, logPath string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := &Process{Name: name, LogPath: logPath, cmd: cmd, exited: make(chan struct{})}

	started := make(chan error)
	go func() {
		// The kernel ties Pdeathsig to the parent's thread: keep that one.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its state tells
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Exited is closed when the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// State says how a process ended that has exited.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal. An error means that the process is gone.
func (p *Process) Signal(signal os.Signal) error { return p.cmd.Process.Signal(signal) }

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.Signal(os.Kill) // an error means that it is gone already
	<-p.exited
}

// LogTail returns the last lines of the process's output.
func (p *Process) LogTail(lines int) string {
	text, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
