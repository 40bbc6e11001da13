// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = "sluice.lock"

// ErrLocked says that another agent uses the state directory.
var ErrLocked = errors.New("another agent is running")

// Lock is held by the one agent that uses a state directory. The kernel
// releases it when the process ends, however it does.
type Lock struct{ file *os.File }

// AcquireLock locks a state directory, which is created if it does not exist.
// It does not wait: it fails with [ErrLocked], naming the process that has it.
func AcquireLock(stateDir string) (*Lock, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	path := filepath.Join(stateDir, lockName)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%w: %s holds %s", ErrLocked, holder(file), path)
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if same(file, path) {
			return &Lock{file}, writePID(file)
		}
		file.Close() // somebody cleaned up between the two calls: what was locked is gone
	}
}

// LockHolder returns the process that has locked a state directory, or was the
// last to.
func LockHolder(stateDir string) (pid int, err error) {
	data, err := os.ReadFile(filepath.Join(stateDir, lockName))
	if err != nil {
		return 0, fmt.Errorf("find the agent's process: %w", err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(data))); err != nil {
		return 0, fmt.Errorf("find the agent's process: %w", err)
	}
	return pid, nil
}

func holder(file *os.File) string {
	data, err := io.ReadAll(io.LimitReader(file, 32))
	if pid := strings.TrimSpace(string(data)); err == nil && pid != "" {
		return "process " + pid
	}
	return "some process"
}

// same reports whether a path still names an open file.
func same(file *os.File, path string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}

func writePID(file *os.File) error {
	err := file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		return fmt.Errorf("write to lock: %w", err)
	}
	return nil
}

// Release gives the lock back.
func (l *Lock) Release() error { return l.file.Close() }

// Remove removes the lock's file and gives the lock back.
func (l *Lock) Remove() error {
	err := os.Remove(l.file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Release())
}
