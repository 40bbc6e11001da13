// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const lockName = "sluice.lock"

// ErrLocked says that another agent uses the state directory.
var ErrLocked = errors.New("another agent is running")

// Lock is held by the one agent that uses a state directory. The kernel
// releases it when the process ends, however it does.
type Lock struct {
	dir  *os.File
	file *os.File // nil if it cannot be written

	// Unwritten is why the file does not say which process holds the lock: there is no room, or
	// the file system is read-only.
	Unwritten error
}

// AcquireLock locks a state directory, which is created if it does not exist, and a file in
// it that says which process did, unless that cannot be written.
// It does not wait: it fails with [ErrLocked], naming the [LockHolder].
func AcquireLock(stateDir string) (*Lock, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	path := filepath.Join(stateDir, lockName)
	for {
		dir, err := openLocked(stateDir, os.O_RDONLY, path)
		if err != nil {
			return nil, err
		}
		file, err := openLocked(path, os.O_RDWR|os.O_CREATE, path)
		switch {
		case isUnwritable(err):
			return &Lock{dir: dir, Unwritten: err}, nil
		case err != nil:
			dir.Close()
			return nil, err
		case !same(dir, stateDir) || !same(file, path):
			// Another process cleaned up between the calls: what was locked is gone.
			dir.Close()
			file.Close()
			if err := os.MkdirAll(stateDir, 0o755); err != nil {
				return nil, fmt.Errorf("create state directory: %w", err)
			}
			continue
		}
		lock := &Lock{dir: dir, file: file}
		if err := writeHolder(file); isUnwritable(err) {
			lock.Unwritten = err
		} else if err != nil {
			return nil, errors.Join(err, lock.Release())
		}
		return lock, nil
	}
}

// openLocked opens and locks a file or a directory. The error names the process that
// the file at holder says to have locked it.
func openLocked(path string, flag int, holder string) (*os.File, error) {
	file, err := os.OpenFile(path, flag, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return file, nil
	}
	file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: %s holds %s", ErrLocked, holderOf(holder), holder)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// LockHolder is a process that has locked a state directory, as it says in the lock's
// file. A PID alone would not do: in a container it is 1.
type LockHolder struct {
	PID          int       `json:"pid"`
	PIDNamespace string    `json:"pidNamespace,omitempty"` // in which it has this PID
	Pod          string    `json:"pod,omitempty"`          // by $POD_NAME
	Started      time.Time `json:"started"`
}

// ReadLock returns the process that has locked a state directory, or was the last to.
func ReadLock(stateDir string) (LockHolder, error) {
	return readHolder(filepath.Join(stateDir, lockName))
}

func readHolder(path string) (h LockHolder, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err != nil {
		return LockHolder{}, fmt.Errorf("find the agent's process: %w", err)
	}
	return h, nil
}

// Elsewhere reports whether the process is known to be in another PID namespace than
// this one, where its PID is that of another process or of none.
func (h LockHolder) Elsewhere() bool {
	own := pidNamespace()
	return h.PIDNamespace != "" && own != "" && h.PIDNamespace != own
}

func (h LockHolder) String() string {
	text := fmt.Sprintf("process %d", h.PID)
	if h.Elsewhere() {
		text += " of another PID namespace"
	}
	if h.Pod != "" {
		text += " in pod " + h.Pod
	}
	return fmt.Sprintf("%s (started %s)", text, h.Started.Format(time.RFC3339))
}

// holderOf names the process that has locked a file.
func holderOf(path string) string {
	h, err := readHolder(path)
	if err != nil {
		return "an unknown process"
	}
	return h.String()
}

// pidNamespace identifies the PID namespace of this process on this machine, empty if
// there is no procfs to tell.
func pidNamespace() string {
	id, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return id
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

// writeHolder writes which process has locked a file.
func writeHolder(file *os.File) error {
	data, err := json.Marshal(LockHolder{
		PID: os.Getpid(), PIDNamespace: pidNamespace(), Pod: os.Getenv("POD_NAME"),
		Started: time.Now().UTC().Truncate(time.Second),
	})
	data = append(data, '\n')
	if err == nil {
		_, err = file.WriteAt(data, 0)
	}
	if err == nil {
		err = file.Truncate(int64(len(data))) // after: to shorten it needs no room
	}
	if err != nil {
		return fmt.Errorf("write to lock: %w", err)
	}
	return nil
}

// Release gives the lock back.
func (l *Lock) Release() error {
	err := l.dir.Close()
	if l.file != nil {
		err = errors.Join(l.file.Close(), err)
	}
	return err
}

// Remove removes the lock's file and gives the lock back.
func (l *Lock) Remove() error {
	var err error
	if l.file != nil {
		err = os.Remove(l.file.Name())
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Release())
}
