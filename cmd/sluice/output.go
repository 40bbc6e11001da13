// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/cmd/agent"
)

// Values of --output.
const (
	outputTable = "table"
	outputText  = "text"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// output is the format that a command was asked for.
type output struct {
	value string
	valid []string
}

// outputFlag adds the flag for the format of what a command prints.
func outputFlag(flags *pflag.FlagSet, valid ...string) *output {
	o := &output{valid: valid}
	flags.StringVarP(&o.value, "output", "o", valid[0], "format: "+strings.Join(valid, ", "))
	return o
}

// check returns an error that names the valid formats if the given one is not.
func (o *output) check() error {
	if slices.Contains(o.valid, o.value) {
		return nil
	}
	return agent.UsageErrorf("--output: unknown value %q, valid are: %s", o.value, strings.Join(o.valid, ", "))
}

// printJSON prints a JSON value in the format json or yaml.
func (o *output) printJSON(w io.Writer, data []byte) error {
	if o.value == outputYAML {
		text, err := yaml.JSONToYAML(data)
		if err != nil {
			return fmt.Errorf("convert to YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return fmt.Errorf("format JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := b.WriteTo(w)
	return err
}
