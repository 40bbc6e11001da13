// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Enum is the value of a flag that must be one of a few words.
type Enum struct {
	value string
	valid []string
}

var _ pflag.Value = (*Enum)(nil)

// NewEnum returns a value that begins as one of the valid words.
func NewEnum(value string, valid ...string) *Enum { return &Enum{value, valid} }

// Valid returns the words that the value may be.
func (e *Enum) Valid() []string { return e.valid }

// String implements [pflag.Value].
func (e *Enum) String() string { return e.value }

// Set implements [pflag.Value].
func (e *Enum) Set(s string) error {
	if !slices.Contains(e.valid, s) {
		return fmt.Errorf("unknown value, valid are: %s", strings.Join(e.valid, ", "))
	}
	e.value = s
	return nil
}

// Type implements [pflag.Value]; it is what the usage text says.
func (e *Enum) Type() string { return strings.Join(e.valid, "|") }
