// SPDX-License-Identifier: Apache-2.0

// Package cniconf is the configuration of the CNI plugin, which the agent's
// installer writes and the plugin reads.
package cniconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Type is the type of the plugin in CNI configurations, and the name of its binary.
const Type = "sluice-cni"

// Config is what the plugin's entry in a CNI configuration has beside the type.
type Config struct {
	Socket  string   `json:"socket"`  // of the agent
	RunDir  string   `json:"runDir"`  // where the agent is told of interfaces
	BPFFS   string   `json:"bpffs"`   // where the agent pins programs and maps
	Timeout Duration `json:"timeout"` // for an ADD, on a node where nothing can hold the pod
}

// Duration is a time as in "30s".
type Duration time.Duration

// MarshalJSON implements [json.Marshaler].
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(text)
	*d = Duration(parsed)
	return err
}

// Check returns an error for a configuration that the plugin cannot work with.
func (c *Config) Check() error {
	for field, path := range map[string]string{"socket": c.Socket, "runDir": c.RunDir,
		"bpffs": c.BPFFS} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s: want an absolute path, have %q", field, path)
		}
	}
	if c.Timeout <= 0 {
		return errors.New("timeout: want a time as in 30s")
	}
	return nil
}
