// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// selection is an address and a selector that may select it.
type selection struct {
	addr     netip.Addr
	selector uint32
}

// kindOf returns what an address is.
func kindOf(w *policytest.World, a netip.Addr) string {
	signature := strings.Split(w.PeerSignature(a), "; ")
	for _, e := range []tables.PolicyEntity{
		tables.EntityWorld, tables.EntityHost, tables.EntityRemoteNode,
	} {
		if slices.Contains(signature, string(e)) {
			return string(e)
		}
	}
	if w.Pod(a) != nil {
		return "pod"
	}
	return "cluster"
}

func (h *harness) checkSelections(
	may map[selection]map[bool]bool, was map[netip.Addr]map[string]bool,
) {
	h.Helper()
	txn := h.db.ReadTxn()
	for _, a := range randomAddrs {
		class := h.class(a)
		if len(was[a]) > 1 {
			continue
		}
		for match := range h.Matches.All(txn) {
			if allowed, known := may[selection{a, match.Selector}]; known && match.IsComplete() {
				s, _, _ := h.inputs.Selectors.Get(txn, tables.SelectorByNumber(match.Selector))
				is := class.Selects(match.Selector)
				byPrefix := s != nil && len(s.Prefixes()) > 0 && !class.Omits(s)
				require.True(h, !byPrefix || allowed[is], "%v selects %s: %v", s, a, is)
			}
		}
	}
}
