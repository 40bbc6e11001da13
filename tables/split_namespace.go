// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"
	"strings"
)

// SplitNamespace says that policies of other namespaces have split the pods of a namespace into
// more classes than these may have. The row stays as long as its label sets are more than that.
type SplitNamespace struct {
	Namespace string `json:"namespace"`

	// Refused are rulesets of the namespace whose policies split the pods most, in order. Their
	// own pods are isolated, so that the rulesets end, and with them the classes.
	Refused []uint32 `json:"refused,omitempty"`

	// Waiting are selectors of others, in order, that are not evaluated until then.
	Waiting []uint32 `json:"waiting,omitempty"`
}

// Refuses reports whether a ruleset is refused.
func (s *SplitNamespace) Refuses(ruleset uint32) bool {
	_, is := slices.BinarySearch(s.Refused, ruleset)
	return is
}

// TableHeader implements [statedb.TableWritable].
func (*SplitNamespace) TableHeader() []string { return []string{"Namespace", "Refused", "Waiting"} }

// TableRow implements [statedb.TableWritable].
func (s *SplitNamespace) TableRow() []string {
	list := func(numbers []uint32) string {
		return orDash(strings.Trim(fmt.Sprint(numbers), "[]"))
	}
	return []string{s.Namespace, list(s.Refused), list(s.Waiting)}
}

var splitNamespaceName = UniqueIndex("namespace", StringKeys,
	func(s *SplitNamespace) string { return s.Namespace })

// SplitNamespaceByName queries what is refused for the pods of a namespace.
var SplitNamespaceByName = splitNamespaceName.Query

// NewSplitNamespaceTable creates the table of namespaces whose pods are split.
var NewSplitNamespaceTable = Declare("split-namespaces", splitNamespaceName)
