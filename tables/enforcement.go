// SPDX-License-Identifier: Apache-2.0

package tables

// Enforcement says to which pods network policies apply.
type Enforcement string

// The modes of enforcement.
const (
	EnforcementDefault Enforcement = "default" // pods that a policy selects
	EnforcementAlways  Enforcement = "always"  // all: what no policy allows is denied
	EnforcementNever   Enforcement = "never"   // none: all is allowed
)
