// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/columns"
)

// Values of --output.
const (
	outputTable = "table"
	outputWide  = "wide" // a table of which nothing is cut
	outputText  = "text"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// Values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// longestCell is of how many characters a cell of a table is shown.
const longestCell = 120

// output is the format that a command was asked for.
type output struct {
	*agent.Enum
	color *agent.Enum
}

// outputFlag adds the flag for the format of what a command prints.
// The first of the valid formats is the default.
func outputFlag(flags *pflag.FlagSet, valid ...string) output {
	o := output{agent.NewEnum(valid[0], valid...), agent.NewEnum(colorAuto, colorAuto, colorAlways, colorNever)}
	flags.VarP(o, "output", "o", "format of what is printed")
	return o
}

// coloredOutputFlag adds that flag, and the one for colors, to a command whose
// output tells how something stands.
func coloredOutputFlag(flags *pflag.FlagSet, valid ...string) output {
	o := outputFlag(flags, valid...)
	flags.Var(o.color, "color", "color what tells a state; auto: on terminals, unless NO_COLOR is set")
	return o
}

// tableOutputFlag is coloredOutputFlag for a command that prints a table.
func tableOutputFlag(flags *pflag.FlagSet) output {
	return coloredOutputFlag(flags, outputTable, outputWide, outputJSON, outputYAML)
}

// isData reports whether programs are to read what is printed.
func (o output) isData() bool { return o.String() == outputJSON || o.String() == outputYAML }

// longest returns of how many characters cells are to be, 0 for any number.
func (o output) longest() int {
	if o.String() == outputWide {
		return 0
	}
	return longestCell
}

// colored reports whether what is written to w is to have colors.
func (o output) colored(w io.Writer) bool {
	switch {
	case o.isData() || o.color.String() == colorNever:
		return false
	case o.color.String() == colorAlways:
		return true
	}
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// columns returns a writer of the rows of a table.
func (o output) columns(w io.Writer) *columns.Writer {
	c := columns.NewWriter(w)
	c.Longest, c.Color = o.longest(), o.colored(w)
	return c
}

// printRows prints rows to people, the first of which names the columns.
func (o output) printRows(w io.Writer, rows [][]string) error { return o.columns(w).Write(rows...) }

// printNext prints one of many JSON values: as JSON a line of its own, as YAML a
// document.
func (o output) printNext(w io.Writer, data []byte) error {
	if o.String() == outputJSON {
		_, err := fmt.Fprintf(w, "%s\n", data)
		return err
	}
	if _, err := io.WriteString(w, "---\n"); err != nil {
		return err
	}
	return o.printJSON(w, data)
}

// printValue prints a value in the format json or yaml.
func (o output) printValue(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.printJSON(w, data)
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
