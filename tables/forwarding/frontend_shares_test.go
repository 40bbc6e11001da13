// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// putService adds a service with a number of external IPs and a node port, and its backend.
func (w *frontendWorld) putService(of string, externals int, from string) *tables.Service {
	s := &tables.Service{
		Name:  name(of),
		Ports: []tables.ServicePort{{Protocol: 6, Port: 80, NodePort: 30000}},
	}
	for addr := netip.MustParseAddr(from); len(s.ExternalIPs) < externals; addr = addr.Next() {
		s.ExternalIPs = append(s.ExternalIPs, addr)
	}
	w.services.Put(s)
	w.slices.Put(slice(of, bpf.FamilyIPv4, "198.51.100.1"))
	return s
}

// entries asserts how many frontends of a namespace have an entry, and how many are refused.
func (w *frontendWorld) entries(namespace string, entries, refused int) {
	w.Helper()
	w.rule.Work()
	got := [2]int{}
	for f := range w.frontends.All(w.db.ReadTxn()) {
		switch {
		case namespaceOf(f) != namespace:
		case f.Refused:
			got[1]++
		default:
			got[0]++
		}
	}
	require.Equal(w, [2]int{entries, refused}, got)
}

// One namespace has half of the entries at most, so that others have room. What is refused is
// admitted when the namespace gives up others. Ports of all nodes are never refused.
func TestFrontendShares(t *testing.T) {
	w := newFrontendWorld(t, Config{})
	w.putService("evil/many", 40, "203.0.113.1")
	w.entries("evil", 33, 8) // with the node port
	w.putService("shop/web", 3, "192.0.2.1")
	w.entries("shop", 3, 0)
	w.putService("evil/more", 5, "198.51.100.1")
	w.entries("evil", 33, 13)

	port := tables.FrontendID{Addr: bpf.AnyNode(bpf.FamilyIPv4), Protocol: 6, Port: 30000}
	row, _, found := w.frontends.Get(w.db.ReadTxn(), tables.FrontendByID(port))
	require.True(t, found)
	require.False(t, row.Refused)

	w.putService("evil/many", 10, "203.0.113.1")
	w.entries("evil", 16, 0)
}
