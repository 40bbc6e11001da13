// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strconv"

	"github.com/cilium/statedb/index"
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

// nonZero has the index key of a number, none of 0.
func nonZero(n uint32) index.KeySet {
	if n == 0 {
		return index.NewKeySet()
	}
	return index.NewKeySet(index.Uint32(n))
}

// marked has the index key true of what is set, none otherwise: the index is as small as
// the rows are few.
func marked(is bool) index.KeySet {
	if !is {
		return index.NewKeySet()
	}
	return index.NewKeySet(index.Bool(true))
}

func trueOrDash(is bool) string {
	if is {
		return "true"
	}
	return "-"
}
