// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/cmd/agent"
)

// Values of --output.
const (
	outputTable = "table"
	outputWide  = "wide" // a table of which nothing is cut
	outputText  = "text"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// output is the format that a command was asked for.
type output struct{ *agent.Enum }

// outputFlag adds the flag for the format of what a command prints.
// The first of the valid formats is the default.
func outputFlag(flags *pflag.FlagSet, valid ...string) output {
	o := output{agent.NewEnum(valid[0], valid...)}
	flags.VarP(o, "output", "o", "format of what is printed")
	return o
}

// printJSON prints a JSON value in the format json or yaml.
func (o output) printJSON(w io.Writer, data []byte) error {
	if o.String() == outputYAML {
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
