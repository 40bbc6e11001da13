// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sluice-net/sluice/bpf"
)

// Parameters are kernel parameters by their path below /proc/sys. A parameter
// that does not exist is an [fs.ErrNotExist].
type Parameters interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// Proc are the parameters of the kernel, by the procfs mounted there.
type Proc string

// Read implements [Parameters].
func (p Proc) Read(name string) (string, error) {
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		return "", fmt.Errorf("read kernel parameter: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Write implements [Parameters].
func (p Proc) Write(name, value string) error {
	// Not created if it does not exist: procfs would refuse with a less clear error.
	f, err := os.OpenFile(p.path(name), os.O_WRONLY, 0)
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

func (p Proc) path(name string) string { return filepath.Join(string(p), "sys", name) }

// byBackend are the kernel's parameters while the maps are the kernel's too.
// An agent that keeps its maps in memory leaves the kernel alone.
type byBackend struct {
	maps   *bpf.Maps
	kernel Proc
	memory Memory
}

func (b *byBackend) inKernel() bool {
	backend := b.maps.Backend()
	return backend != nil && backend.Name() == "kernel"
}

func (b *byBackend) parameters() Parameters {
	if b.inKernel() {
		return b.kernel
	}
	return &b.memory
}

// formerFile is the name of the file of former values: those of parameters in
// memory must never be given to the kernel.
func (b *byBackend) formerFile() string {
	if b.inKernel() {
		return formerFile
	}
	return "sysctls-memory.json"
}

// Read implements [Parameters].
func (b *byBackend) Read(name string) (string, error) { return b.parameters().Read(name) }

// Write implements [Parameters].
func (b *byBackend) Write(name, value string) error { return b.parameters().Write(name, value) }

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
