// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"

	"github.com/sluice-net/sluice/bpf"
)

// Class is a number given out under a role, and what it stands for: the
// selectors of a class, or the gateways of a group. It is recorded, in map-classes, when
// nothing is in the kernel under the number that is to leave it first.
type Class struct {
	bpf.ClassKey `yaml:",inline"`

	Digest    bpf.Digest   `json:"digest"`
	Selectors []SelectorID `json:"selectors,omitempty"` // of a class

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *Class) Equal(o *Class) bool {
	return c.ClassKey == o.ClassKey && c.Digest == o.Digest && slices.Equal(c.Selectors, o.Selectors)
}

// MapKey is the key of the record.
func (c *Class) MapKey() bpf.ClassKey { return c.ClassKey }

// MapValue is what is recorded.
func (c *Class) MapValue() bpf.ClassValue { return bpf.ClassValue{Digest: c.Digest} }

// TableHeader implements [statedb.TableWritable].
func (*Class) TableHeader() []string {
	return []string{"Class", "Digest", "Selectors", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *Class) TableRow() []string { return c.Row(SelectorID.String) }

// Row is what TableRow returns, with the selectors by the names that they are given.
func (c *Class) Row(name func(SelectorID) string) []string {
	return []string{
		c.ClassKey.String(), c.Digest.String()[:8], selectorColumn(c.Selectors, name),
		c.Status.Kind.String(), orDash(c.Status.GetError()),
	}
}

var (
	classKeyIndex = UniqueIndex("key", classKeys, func(c *Class) bpf.ClassKey { return c.ClassKey })

	classSelectorIndex = IndexEach("selector", selectorIDKeys,
		func(c *Class) []SelectorID { return c.Selectors })

	// ClassByKey queries a class by role and number.
	ClassByKey = classKeyIndex.Query

	// ClassesBySelector queries the classes with a selector in their signature.
	ClassesBySelector = classSelectorIndex.Query
)

// NewClassTable creates the table of classes and gateway groups by number.
var NewClassTable = Declare("classes", classKeyIndex, classSelectorIndex)
