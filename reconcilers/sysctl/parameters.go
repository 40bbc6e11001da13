// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Parameters are kernel parameters by their path below /proc/sys. A parameter
// that does not exist is an [fs.ErrNotExist].
type Parameters interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// Proc are the parameters of the kernel.
type Proc struct{}

const procSys = "/proc/sys"

// Read implements [Parameters].
func (Proc) Read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(procSys, name))
	if err != nil {
		return "", fmt.Errorf("read kernel parameter: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Write implements [Parameters].
func (Proc) Write(name, value string) error {
	// Not created if it does not exist: procfs would refuse with a less clear error.
	f, err := os.OpenFile(filepath.Join(procSys, name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write kernel parameter: %w", err)
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write kernel parameter %s: %w", name, err)
	}
	return nil
}

// Memory are parameters that are not the kernel's: for agents that leave it
// alone. Every parameter exists, with the value "0" at first.
type Memory struct {
	mu     sync.Mutex
	values map[string]string
	absent map[string]bool
}

// Read implements [Parameters].
func (m *Memory) Read(name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.absent[name] {
		return "", fmt.Errorf("read kernel parameter %s: %w", name, fs.ErrNotExist)
	}
	if value, ok := m.values[name]; ok {
		return value, nil
	}
	return "0", nil
}

// Write implements [Parameters].
func (m *Memory) Write(name, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.absent[name] {
		return fmt.Errorf("write kernel parameter %s: %w", name, fs.ErrNotExist)
	}
	if m.values == nil {
		m.values = map[string]string{}
	}
	m.values[name] = value
	return nil
}

// SetAbsent makes a parameter cease or begin to exist.
func (m *Memory) SetAbsent(name string, absent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.absent == nil {
		m.absent = map[string]bool{}
	}
	m.absent[name] = absent
	delete(m.values, name)
}
