// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// formerValues is the file of the values that parameters had before.
type formerValues struct{ path string }

// formerFile is the name of the file in the state directory.
const formerFile = "sysctls.json"

func formerPath(stateDir string) string { return filepath.Join(stateDir, formerFile) }

// load returns the values by parameter, none if there is no file.
func (f formerValues) load() (map[string]string, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read former kernel parameters: %w", err)
	}
	var values map[string]string
	if err := json.Unmarshal(b, &values); err != nil {
		return nil, fmt.Errorf("read former kernel parameters from %s: %w", f.path, err)
	}
	return values, nil
}

// remember keeps a value, unless there is one already: that is the value from
// before the agent first changed it.
func (f formerValues) remember(name, value string) error {
	values, err := f.load()
	if err != nil {
		return err
	}
	if _, known := values[name]; known {
		return nil
	}
	if values == nil {
		values = map[string]string{}
	}
	values[name] = value
	return f.store(values)
}

func (f formerValues) forget(name string) error {
	values, err := f.load()
	if err != nil {
		return err
	}
	delete(values, name)
	return f.store(values)
}

// store replaces the file in one step, so that a crash leaves the one or the other.
func (f formerValues) store(values map[string]string) error {
	b, err := json.MarshalIndent(values, "", "  ")
	if err != nil {
		return fmt.Errorf("keep former kernel parameters: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("keep former kernel parameters: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.path), "sysctls-*")
	if err != nil {
		return fmt.Errorf("keep former kernel parameters: %w", err)
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("keep former kernel parameters: %w", err)
	}
	return nil
}
