package netlink

import (
	"testing"
	"net"
	"time"
	"sync/atomic"

	vn "github.com/vishvananda/netlink"
	"github.com/stretchr/testify/require"
)

func TestZZ(t *testing.T) {
	n := newNamespace(t)
	n.addVeth("eth0", "peer0")
	n.addVeth("eth1", "peer1")
	n.addAddr("eth0", "10.0.0.5/24")
	n.addAddr("eth1", "10.1.0.5/24")
	require.NoError(t, n.RouteAdd(&vn.Route{Dst: ipNet("192.168.0.0/16"), Priority: 7, Table: 100, MultiPath: []*vn.NexthopInfo{
		{LinkIndex: n.index("eth0"), Gw: net.ParseIP("10.0.0.1")}, {LinkIndex: n.index("eth1"), Gw: net.ParseIP("10.1.0.1")},
	}}))
	i0, i1 := n.index("eth0"), n.index("eth1")
	for i := range 20000 {
	require.NoError(t, n.RouteAdd(&vn.Route{Dst: ipNet("10.200.0.0/16"), Priority: 100+i, Table: 100, MultiPath: []*vn.NexthopInfo{
		{LinkIndex: i0, Gw: net.IPv4(10,0,0,byte(6+i%200))}, {LinkIndex: i1, Gw: net.IPv4(10,1,0,byte(6+i/200))},
	}}))
	}
	k := &socketKernel{namespace: n.ns}
	sub, err := k.subscribe()
	require.NoError(t, err)
	defer sub.close()
	_, _ = sub.pending()
	eth1 := n.link("eth1")
	go func() {}()
	var bad atomic.Int32
	for range 40 {
		up := false
		for _, up = range []bool{false, true} {
			done := make(chan struct{})
			go func() {
				if up { n.LinkSetUp(eth1) } else { n.LinkSetDown(eth1) }
				close(done)
			}()
			// wait for the event
			for seen := false; !seen; {
				evs, err := sub.receive(t.Context(), time.Now().Add(time.Second))
				require.NoError(t, err)
				for _, ev := range evs {
					if d, ok := ev.row.(interface{ TableRow() []string }); ok && d.TableRow()[1] == "eth1" && (d.TableRow()[4] == "true") == up { seen = true }
				}
			}
			l, err := k.list(t.Context(), routes)
			require.NoError(t, err)
			if l.deadHops == up || countHops(l, i1, up) { bad.Add(1) }
			<-done
			sub.pending()
		}
	}
	t.Log("bad", bad.Load())
}

func countHops(l *listing, dev int, up bool) bool {
	c := 0
	for _, r := range l.Routes { if r.Table == 100 && r.DeviceIndex == dev { c++ } }
	return (c > 0) != up || (up && c != 20001)
}
