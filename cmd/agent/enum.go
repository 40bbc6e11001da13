// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// enum is the value of a flag that must be one of a few words.
type enum struct {
	value string
	valid []string
}

var _ pflag.Value = (*enum)(nil)

// newEnum returns a value with a default, and what else is valid.
func newEnum(value string, valid ...string) *enum { return &enum{value, valid} }

// String implements [pflag.Value].
func (e *enum) String() string { return e.value }

// Set implements [pflag.Value].
func (e *enum) Set(s string) error {
	if !slices.Contains(e.valid, s) {
		return fmt.Errorf("unknown value, valid are: %s", strings.Join(e.valid, ", "))
	}
	e.value = s
	return nil
}

// Type implements [pflag.Value]; it is what the usage text says.
func (e *enum) Type() string { return strings.Join(e.valid, "|") }
