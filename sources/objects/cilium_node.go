// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"

	"github.com/sluice-net/sluice/tables"
)

type ciliumNode struct {
	object
	Spec struct {
		Addresses []struct {
			IP string `json:"ip"`
		} `json:"addresses"`
	} `json:"spec"`
}

func ciliumNodes(o *ciliumNode, name tables.Name, errs *fieldErrors) []*tables.CiliumNode {
	n := &tables.CiliumNode{Name: name.Name}
	for i, a := range o.Spec.Addresses {
		n.Addrs = errs.addr(n.Addrs, fmt.Sprintf("spec.addresses[%d].ip", i), a.IP)
	}
	n.Addrs = distinct(n.Addrs)
	n.Errors = *errs
	return one(n)
}
