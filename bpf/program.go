// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (p Program) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *Program) UnmarshalText(text []byte) error {
	for program, name := range programNames {
		if name == string(text) {
			*p = program
			return nil
		}
	}
	return fmt.Errorf("parse program: unknown %q", text)
}
