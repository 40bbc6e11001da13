// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/tables"
)

// leaving has the classes that each prefix is said to be leaving: what the rows of the
// classes of a role say, by prefix. Thousands of prefixes may each leave a class of its own.
type leaving map[netip.Prefix][]uint32

// take takes in who is leaving a class, in order, and who was before.
func (x leaving) take(class uint32, was, is []tables.Leaver) {
	for len(was) > 0 || len(is) > 0 {
		order := 0
		switch {
		case len(was) == 0:
			order = 1
		case len(is) == 0:
			order = -1
		default:
			order = was[0].Prefix.Compare(is[0].Prefix)
		}
		if order < 0 {
			x.remove(class, was[0].Prefix)
		}
		if order > 0 {
			x[is[0].Prefix] = append(x[is[0].Prefix], class)
		}
		if order <= 0 {
			was = was[1:]
		}
		if order >= 0 {
			is = is[1:]
		}
	}
}

func (x leaving) remove(class uint32, prefix netip.Prefix) {
	classes := slices.DeleteFunc(x[prefix], func(c uint32) bool { return c == class })
	if len(classes) == 0 {
		delete(x, prefix)
		return
	}
	x[prefix] = classes
}
