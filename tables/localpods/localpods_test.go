// SPDX-License-Identifier: Apache-2.0

package localpods

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

const nothing = "no route or neighbour leads to the address"

var (
	vetha = veth(3, "vetha")
	cni0  = &tables.Device{Index: 4, Name: "cni0", Type: "bridge"}
	vethb = port(5, "vethb", 4)
	vethc = port(6, "vethc", 4)

	routeA     = route("10.0.1.1", 3)
	neighbourA = neighbour("10.0.1.1", "mac-1", 3)
	neighbourB = neighbour("10.0.1.2", "mac-2", 4)

	found = network{
		[]*tables.Device{vetha, cni0, vethb, vethc}, []*tables.Route{routeA},
		[]*tables.Neighbour{neighbourA, neighbourB}, []*tables.BridgeEntry{learned("mac-2", 5, 4)},
	}
)

// with returns a network with something else.
func (n network) with(change func(*network)) network {
	change(&n)
	return n
}

func twoPods(t *testing.T) *harness {
	h := newHarness(t)
	h.endpoints.Put(pod("routed", "here", "10.0.1.1", "web"),
		pod("bridged", "here", "10.0.1.2", "web"), pod("elsewhere", "there", "10.0.1.3", "web"))
	h.expect("10.0.1.1 routed app=web - - "+nothing, "10.0.1.2 bridged app=web - - "+nothing)
	h.set(found)
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethb mac-2 -")
	return h
}

// The kernel forgets neighbors and bridge entries of pods that are silent: they are where
// they were.
func TestForgotten(t *testing.T) {
	h := twoPods(t)
	h.set(found.with(func(n *network) { n.bridges = nil }))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethb mac-2 -")
	h.set(found.with(func(n *network) { n.bridges, n.neighbours = nil, nil }))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethb mac-2 -")
}

// What the kernel learns anew counts: another port, known by the MAC address that the pod
// had, or another MAC address.
func TestLearned(t *testing.T) {
	h := twoPods(t)
	h.set(found.with(func(n *network) { n.bridges, n.neighbours = nil, nil }))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethb mac-2 -")
	h.set(found.with(func(n *network) {
		n.bridges, n.neighbours = []*tables.BridgeEntry{learned("mac-2", 6, 4)}, nil
	}))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethc mac-2 -")
	other := neighbour("10.0.1.2", "mac-3", 4)
	h.set(found.with(func(n *network) {
		n.bridges, n.neighbours = nil, []*tables.Neighbour{neighbourA, other}
	}))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -",
		"10.0.1.2 bridged app=web - mac-3 the bridge does not know the port of the pod yet")
	h.set(found.with(func(n *network) {
		n.bridges = []*tables.BridgeEntry{learned("mac-3", 6, 4)}
		n.neighbours = []*tables.Neighbour{neighbourA, other}
	}))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethc mac-3 -")
}

// A silent pod's device that is no port of the bridge any more, that has another name, or
// that is gone is not known to be the pod's; nor is one to which its route does not lead.
func TestNotThePodsAnyMore(t *testing.T) {
	silent := found.with(func(n *network) { n.bridges, n.neighbours = nil, nil })
	for name, test := range map[string]struct {
		change func(*network)
		want   []string
	}{
		"left the bridge": {
			func(n *network) { n.devices = []*tables.Device{vetha, cni0, veth(5, "vethb"), vethc} },
			[]string{"10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web - - " + nothing},
		},
		"renamed": {
			func(n *network) {
				n.devices = []*tables.Device{veth(3, "vethx"), cni0, port(5, "vethy", 4), vethc}
			},
			[]string{"10.0.1.1 routed app=web vethx - -", "10.0.1.2 bridged app=web - - " + nothing},
		},
		"rerouted": {
			func(n *network) { n.routes = []*tables.Route{route("10.0.1.1", 6)} },
			[]string{"10.0.1.1 routed app=web vethc - -", "10.0.1.2 bridged app=web vethb mac-2 -"},
		},
		"gone": {
			func(n *network) { n.devices = nil },
			[]string{"10.0.1.1 routed app=web - - " + nothing, "10.0.1.2 bridged app=web - - " + nothing},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := twoPods(t)
			h.set(silent.with(test.change))
			h.expect(test.want...)
		})
	}
}

// The route of the main table with the lowest metric counts, before the neighbor entry.
func TestRoutes(t *testing.T) {
	h := newHarness(t)
	h.endpoints.Put(pod("routed", "here", "10.0.1.1", "web"))
	worse, other := *route("10.0.1.1", 6), *route("10.0.1.1", 7)
	worse.Priority, other.Table = 10, 1000
	h.set(network{
		devices:    []*tables.Device{vetha, veth(6, "vethf"), veth(7, "vethg"), veth(8, "vethh")},
		routes:     []*tables.Route{&worse, &other, routeA},
		neighbours: []*tables.Neighbour{neighbour("10.0.1.1", "mac-9", 8)},
	})
	h.expect("10.0.1.1 routed app=web vetha - -")
	h.routes.Remove(routeA)
	h.expect("10.0.1.1 routed app=web vethf - -")
	h.routes.Remove(&worse)
	h.expect("10.0.1.1 routed app=web vethh mac-9 -")
}

// Devices that lead to more than a pod may have led to it by mistake, and never stand.
func TestSharedDevice(t *testing.T) {
	h := newHarness(t)
	e := pod("routed", "here", "10.0.1.1", "web")
	h.endpoints.Put(e)
	tun := &tables.Device{Index: 9, Name: "tun0", Type: "tun"}
	h.set(network{
		devices:    []*tables.Device{tun},
		neighbours: []*tables.Neighbour{neighbour("10.0.1.1", "mac-1", 9)},
	})
	h.expect("10.0.1.1 routed app=web tun0 mac-1 -")
	h.set(network{devices: []*tables.Device{tun}})
	h.expect("10.0.1.1 routed app=web - - " + nothing)

	h.set(network{devices: []*tables.Device{tun}, routes: []*tables.Route{route("10.0.1.1", 9)}})
	h.expect("10.0.1.1 routed app=web tun0 - -")
	h.endpoints.Remove(e)
	h.expect() // tun0 does not go with the pod
}

// The CNI plugin reports a pod before its object is read; its report takes precedence over routes.
func TestAttachment(t *testing.T) {
	h := newHarness(t)
	h.set(network{
		devices: []*tables.Device{vetha, veth(8, "vethh")}, routes: []*tables.Route{route("10.0.1.1", 8)},
	})
	a := attached("web", "10.0.1.1", vetha, 1)
	h.attachments.Put(a)
	h.expect("10.0.1.1 web - vetha mac-web -")
	e := pod("web", "here", "10.0.1.1", "web")
	h.endpoints.Put(e)
	h.expect("10.0.1.1 web app=web vetha mac-web -")

	// The device is another one now, of the same index: what the routing says holds.
	h.set(network{
		devices: []*tables.Device{veth(3, "vethz"), veth(8, "vethh")},
		routes:  []*tables.Route{route("10.0.1.1", 8)},
	})
	h.expect("10.0.1.1 web app=web vethh - -")
	h.set(network{devices: []*tables.Device{vetha}})
	h.expect("10.0.1.1 web app=web vetha mac-web -")
	h.attachments.Remove(a)
	h.expect("10.0.1.1 web app=web vetha mac-web -") // it is where it was
	h.endpoints.Remove(e)
	h.expect("10.0.1.1 web app=web vetha mac-web -") // until its device is gone
	h.set(network{})
	h.expect()
}

// A file is left of the interface of a former pod. It counts while its device is there.
func TestStaleAttachment(t *testing.T) {
	h := newHarness(t)
	h.set(network{
		devices: []*tables.Device{veth(8, "vethh")}, routes: []*tables.Route{route("10.0.1.1", 8)},
	})
	h.attachments.Put(attached("old", "10.0.1.1", vetha, 1))
	h.endpoints.Put(pod("web", "here", "10.0.1.1", "web"))
	h.expect("10.0.1.1 web app=web vethh - -")
	h.devices.Put(veth(3, "vethz")) // of the index alone it is another one
	h.expect("10.0.1.1 web app=web vethh - -")
	h.devices.Put(vetha)
	h.expect("10.0.1.1 old - vetha mac-old -")
	h.attachments.Put(attached("web", "10.0.1.1", veth(8, "vethh"), 2)) // the later one
	h.expect("10.0.1.1 web app=web vethh mac-web -")
}

// A pod that has two interfaces, and one whose object is gone while its device is there: it
// has the labels that it had.
func TestTwoInterfaces(t *testing.T) {
	h := newHarness(t)
	h.set(network{devices: []*tables.Device{vetha, veth(8, "vethh")}})
	e := pod("web", "here", "10.0.1.1", "web")
	e.Addrs = append(e.Addrs, netip.MustParseAddr("10.0.1.9"))
	h.endpoints.Put(e)
	h.attachments.Put(attached("web", "10.0.1.1", vetha, 1),
		attached("web", "10.0.1.9", veth(8, "vethh"), 2))
	h.expect("10.0.1.1 web app=web vetha mac-web -", "10.0.1.9 web app=web vethh mac-web -")
	h.endpoints.Remove(e)
	h.expect("10.0.1.1 web app=web vetha mac-web -", "10.0.1.9 web app=web vethh mac-web -")
	h.devices.Remove(vetha)
	h.expect("10.0.1.9 web app=web vethh mac-web -")

	// A pod of the same name on another device is another one.
	h.devices.Put(vetha)
	again := attached("web", "10.0.1.9", vetha, 3)
	again.UID = "other"
	h.attachments.Put(again)
	h.expect("10.0.1.1 web - vetha mac-web -", "10.0.1.9 web - vetha mac-web -")
}

// An address that moves to another node, or to another pod of this one, is not the former
// pod's any more, even while its device is there.
func TestMoves(t *testing.T) {
	h := twoPods(t)
	later := func(e *tables.Endpoint) *tables.Endpoint {
		e.Created = begin.Add(1)
		return e
	}
	h.endpoints.Remove(pod("routed", "here", "10.0.1.1", "web"))
	h.expect("10.0.1.1 routed app=web vetha mac-1 -", "10.0.1.2 bridged app=web vethb mac-2 -")
	h.endpoints.Put(later(pod("new", "there", "10.0.1.1", "web")))
	h.expect("10.0.1.2 bridged app=web vethb mac-2 -")
	h.endpoints.Put(later(pod("newer", "here", "10.0.1.2", "db")))
	h.expect("10.0.1.2 newer app=db vethb mac-2 -")
	h.endpoints.Put(later(pod("newer", "there", "10.0.1.2", "db")))
	h.expect()
}

// A pod that is relabeled is where it was; so is one whose device goes to another master.
func TestRelabeled(t *testing.T) {
	h := twoPods(t)
	h.endpoints.Put(pod("routed", "here", "10.0.1.1", "db"))
	h.expect("10.0.1.1 routed app=db vetha mac-1 -", "10.0.1.2 bridged app=web vethb mac-2 -")
}

// Whatever comes in whatever order, at the end the rule has computed all addresses that
// changes concern: to compute them all once more changes nothing.
func TestNothingMissed(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		h := newHarness(t)
		addr := func() string { return fmt.Sprint("10.0.1.", r.IntN(4)) }
		mac := func() string { return fmt.Sprint("mac-", r.IntN(3)) }
		device := func() int { return 3 + r.IntN(5) }
		name := func() string { return fmt.Sprint("pod-", r.IntN(3)) }
		node := func() string { return []string{"here", "here", "there"}[r.IntN(3)] }
		for range 150 {
			gone := r.IntN(3) == 0
			switch r.IntN(6) {
			case 0:
				change(h, h.endpoints, pod(name(), node(), addr(), fmt.Sprint(r.IntN(2))), gone)
			case 1:
				d := veth(device(), fmt.Sprint("veth", r.IntN(2)))
				switch {
				case r.IntN(3) == 0:
					d.Type = "bridge"
				case r.IntN(2) == 0:
					d.MasterIndex = device()
				}
				change(h, h.devices, d, gone)
			case 2:
				change(h, h.routes, route(addr(), device()), gone)
			case 3:
				change(h, h.neighbours, neighbour(addr(), mac(), device()), gone)
			case 4:
				change(h, h.bridges, learned(mac(), device(), device()), gone)
			case 5:
				d := veth(device(), fmt.Sprint("veth", r.IntN(2)))
				change(h, h.attachments, attached(name(), addr(), d, r.IntN(3)), gone)
			}
			if r.IntN(2) == 0 {
				continue
			}
			h.step.Work()
			h.again(seed)
		}
	}
}

func (h *harness) again(seed uint64) {
	in := h.db.ReadTxn()
	for last := range 4 {
		addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(last)})
		former, _, _ := h.rule.Output.Get(in, tables.LocalEndpointByAddr(addr))
		row := h.rule.row(in, addr)
		require.True(h, row == nil && former == nil || row != nil && former != nil && row.Equal(former),
			"seed %d, %s: %+v, not %+v", seed, addr, row, former)
	}
}

func change[Row any](h *harness, table tablestest.Table[Row], row Row, gone bool) {
	if gone {
		table.Remove(row)
	} else {
		table.Put(row)
	}
}
