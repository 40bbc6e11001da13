// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
)

// Life is what rows of numbered objects have in common.
type Life struct {
	// Number names the object in the kernel. It is not 0, and never that of another object.
	Number uint32 `json:"number"`

	// Undesired is set in the transaction after which no desired row refers to the object.
	// A later transaction, which has seen the mark, removes the object if no mirror refers
	// to it either: before, a reconciler may be about to write a reference.
	Undesired bool `json:"undesired,omitempty"`
}

// GetLife returns the number and whether the object is desired.
func (l Life) GetLife() Life { return l }

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// numberOrDash renders a number of which 0 is none.
func numberOrDash(n uint32) string {
	if n == 0 {
		return "-"
	}
	return number(n)
}

func trueOrDash(is bool) string {
	if is {
		return "true"
	}
	return "-"
}
