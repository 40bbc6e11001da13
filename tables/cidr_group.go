// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

// CIDRGroup is a list of prefixes that network policies name, from a
// CiliumCIDRGroup. A prefix that does not parse is left out: it is neither
// allowed nor denied by policies that name the group.
type CIDRGroup struct {
	Name     string         `json:"name"`
	Labels   labels.Set     `json:"labels,omitempty"`
	Prefixes []netip.Prefix `json:"prefixes,omitempty"` // masked
	Errors   []FieldError   `json:"errors,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*CIDRGroup) TableHeader() []string { return []string{"Name", "Labels", "Prefixes", "Errors"} }

// TableRow implements [statedb.TableWritable].
func (g *CIDRGroup) TableRow() []string {
	return []string{g.Name, orDash(g.Labels.String()), listColumn(stringsOf(g.Prefixes), ", "), errorColumn(g.Errors)}
}

var (
	cidrGroupNameIndex = UniqueIndex("name", StringKeys,
		func(g *CIDRGroup) string { return g.Name })

	// CIDRGroupByName queries a group of prefixes by its name.
	CIDRGroupByName = cidrGroupNameIndex.Query
)

// NewCIDRGroupTable creates the table of groups of prefixes.
var NewCIDRGroupTable = Declare("cidr-groups", cidrGroupNameIndex)
