// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// How long a pod is looked for before it is looked for again.
const (
	findFirst = 50 * time.Millisecond
	findLast  = 10 * time.Second
)

// finder has the kernel ask for pods that are known and whose devices are not. Behind
// which port of a bridge a pod is, the kernel learns from what the pod sends; and a pod
// that waits to be spoken to would wait forever, as what is sent to it is held.
type finder struct {
	db       *statedb.DB
	locals   statedb.Table[*tables.LocalEndpoint]
	datapath *datapath.Datapath
	ask      func(netip.Addr) error

	missing map[netip.Addr]*search
}

// search is of one address.
type search struct {
	next  time.Time
	delay time.Duration
}

func (f *finder) run(ctx context.Context, _ cell.Health) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	f.missing = map[netip.Addr]*search{}
	for {
		rows, watch := f.locals.AllWatch(f.db.ReadTxn())
		missing := map[netip.Addr]*search{}
		for row := range rows {
			if row.IfIndex == 0 {
				missing[row.Addr] = f.missing[row.Addr]
			}
		}
		f.missing = missing
		next := f.look(time.Now())
		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watch:
		case <-due:
		}
	}
}

// look has the kernel ask for what is due, and returns when that is the case again; zero
// if nothing is missing. An address without a route is none that could be found.
func (f *finder) look(now time.Time) (next time.Time) {
	for addr, s := range f.missing {
		if s == nil {
			s = &search{delay: findFirst}
			f.missing[addr] = s
		}
		if !s.next.After(now) {
			if f.datapath.Loaded() {
				_ = f.ask(addr)
			}
			s.next, s.delay = now.Add(s.delay), min(2*s.delay, findLast)
		}
		if next.IsZero() || s.next.Before(next) {
			next = s.next
		}
	}
	return next
}

// askFor has the kernel resolve an address, if that is on a link of this node.
func (ns namespace) askFor(addr netip.Addr) error {
	h, err := ns.netlink()
	if err != nil {
		return err
	}
	defer h.Close()
	routes, err := h.RouteGet(net.IP(addr.AsSlice()))
	if err != nil || len(routes) == 0 || routes[0].Gw != nil || routes[0].Via != nil ||
		routes[0].Type != unix.RTN_UNICAST {
		return err
	}
	family := uint8(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	req.AddData(&vn.Ndmsg{Family: family, Index: uint32(routes[0].LinkIndex), Flags: unix.NTF_USE})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, addr.AsSlice()))
	return ns.do(func() error {
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("ask for %s: %w", addr, err)
		}
		return nil
	})
}
