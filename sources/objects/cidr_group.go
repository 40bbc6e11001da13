// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"

	"github.com/sluice-net/sluice/tables"
)

// cidrGroup is a CiliumCIDRGroup.
type cidrGroup struct {
	object
	Spec struct {
		ExternalCIDRs []string `json:"externalCIDRs"`
	} `json:"spec"`
}

func cidrGroups(o *cidrGroup, name tables.Name, errs *fieldErrors) []*tables.CIDRGroup {
	g := &tables.CIDRGroup{Name: name.Name, Labels: o.Metadata.Labels}
	r, seen := newPolicyReader("", errs), map[netip.Prefix]bool{}
	for i, text := range o.Spec.ExternalCIDRs {
		field := indexed("spec.externalCIDRs", i)
		if p := r.addrOrPrefix(field, text); !r.bad(field) && !seen[p] {
			seen[p] = true
			g.Prefixes = append(g.Prefixes, p)
		}
	}
	g.Errors = *errs
	return one(g)
}
