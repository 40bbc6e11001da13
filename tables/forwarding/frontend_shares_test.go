// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// putService adds a service with a number of external IPs and a node port, and its backend.
func (w *frontendWorld) putService(of string, externals int, from string) *tables.Service {
	s := &tables.Service{
		Name: name(of), Addrs: addrsOf("10.96.0.1"),
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
		case f.Share != namespace:
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
	w.entries("evil", 32, 9) // with the node port
	w.putService("shop/web", 3, "192.0.2.1")
	w.entries("shop", 3, 0)
	w.putService("evil/more", 5, "198.51.100.1")
	w.entries("evil", 32, 14)

	port := tables.FrontendID{Addr: bpf.AnyNode(bpf.FamilyIPv4), Protocol: 6, Port: 30000}
	row, _, found := w.frontends.Get(w.db.ReadTxn(), tables.FrontendByID(port))
	require.True(t, found)
	require.False(t, row.Refused)

	w.putService("evil/many", 10, "203.0.113.1")
	w.entries("evil", 16, 0)
}

// A service with many addresses and ports does not make a row of each pair: few of those that are
// refused are kept, and they are admitted when there is room.
func TestFrontendsOfManyPairs(t *testing.T) {
	w := newFrontendWorld(t, Config{})
	const ports, addrs = 100, 200
	s := tables.Clone(w.putService("evil/many", addrs, "203.0.113.1"))
	s.Ports = nil
	b := slice("evil/many", bpf.FamilyIPv4, "198.51.100.1")
	b.Ports = nil
	for i := range ports {
		p := tables.ServicePort{Name: fmt.Sprint(i), Protocol: 6, Port: uint16(i + 1)}
		s.Ports = append(s.Ports, p)
		b.Ports = append(b.Ports, tables.BackendPort{Name: p.Name, Protocol: 6, Port: 80})
	}
	w.slices.Put(b)
	w.services.Put(s)
	w.entries("evil", 32, maxRefused)
	w.putService("shop/web", 3, "192.0.2.1")
	w.entries("shop", 4, 0)

	s = tables.Clone(s)
	s.ExternalIPs = s.ExternalIPs[:1]
	w.services.Put(s)
	w.entries("evil", 32, ports-32)
	s = tables.Clone(s)
	s.Ports = s.Ports[:20]
	w.services.Put(s)
	w.entries("evil", 20, 0)
}

// A namespace that has used up its share takes no entry from another one whose address it names.
func TestFrontendShareOfOthers(t *testing.T) {
	for _, first := range []string{"evil", "shop"} {
		w := newFrontendWorld(t, Config{})
		w.putService("evil/many", 40, "203.0.113.1")
		claim := func() { w.putService("evil/claim", 1, "192.0.2.1") }
		if first == "evil" {
			claim()
			w.rule.Work()
		}
		s := tables.Clone(w.putService("shop/web", 0, "192.0.2.1"))
		s.LoadBalancerIPs = addrsOf("192.0.2.1")
		w.services.Put(s)
		w.rule.Work()
		if first == "shop" {
			claim()
		}
		w.entries("shop", 1, 0)
		id := tables.FrontendID{Addr: s.LoadBalancerIPs[0], Protocol: 6, Port: 80}
		row, _, found := w.frontends.Get(w.db.ReadTxn(), tables.FrontendByID(id))
		require.True(t, found)
		require.False(t, row.Refused)
		require.Equal(t, bpf.AllNamespaces, row.MapValue().Namespace)
	}
}
