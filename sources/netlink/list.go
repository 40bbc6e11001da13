// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

const (
	// dumpAttempts is how often a listing is tried that a change interrupts.
	dumpAttempts = 10

	requestTimeout = 10 // seconds

	rtextFilterSkipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

func (k *socketKernel) list(ctx context.Context, want kinds) (*listing, error) {
	s, err := nl.GetNetlinkSocketAt(k.namespace, netns.None(), unix.NETLINK_ROUTE)
	if refused(err) {
		return &listing{kinds: want, problems: fmt.Errorf("open netlink socket: %w", err)}, nil
	} else if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer s.Close()
	timeout := unix.Timeval{Sec: requestTimeout}
	_ = s.SetReceiveTimeout(&timeout) // cannot fail
	_ = s.SetSendTimeout(&timeout)

	d := dumper{ctx: ctx, socket: &nl.SocketHandle{Socket: s}, listing: &listing{kinds: want}}
	for _, step := range []struct {
		kind kinds
		dump func() error
	}{
		{devices, d.devices}, {addresses, d.addresses}, {routes, d.routes},
		{neighbours, d.neighbours}, {bridgeEntries, d.bridgeEntries},
	} {
		if !want.has(step.kind) {
			continue
		}
		if err := step.dump(); err != nil {
			return nil, err
		}
	}
	return d.listing, nil
}

// dumper lists kinds over one socket.
type dumper struct {
	ctx     context.Context
	socket  *nl.SocketHandle
	listing *listing
}

func (d *dumper) devices() error {
	request := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+8)
	// Counters are most of a message, and of no interest.
	request = binary.NativeEndian.AppendUint16(request, 8)
	request = binary.NativeEndian.AppendUint16(request, unix.IFLA_EXT_MASK)
	request = binary.NativeEndian.AppendUint32(request, rtextFilterSkipStats)
	err := d.dump("devices", unix.RTM_GETLINK, unix.RTM_NEWLINK, request, func(data []byte) error {
		dev, err := decodeLink(data)
		if dev != nil {
			d.listing.Devices = append(d.listing.Devices, dev)
		}
		return err
	})
	if err != nil {
		return err
	}
	return d.qdiscs()
}

func (d *dumper) addresses() error {
	err := d.dump("addresses", unix.RTM_GETADDR, unix.RTM_NEWADDR, make([]byte, unix.SizeofIfAddrmsg), func(data []byte) error {
		a, err := decodeAddr(data)
		if a != nil {
			d.listing.Addresses = append(d.listing.Addresses, a)
		}
		return err
	})
	orderAddresses(d.listing.Addresses)
	return err
}

// routes lists IPv4 and IPv6 routes. A device that goes down and an address
// that goes away are announced before their routes are dropped. The kernel does
// both under one lock, which a request for a device waits for and the listing of
// routes may not.
func (d *dumper) routes() error {
	request := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(request[4:], 1)
	_, _ = d.execute(unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, request) // only waited for

	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, unix.SizeofRtMsg)
		request[0] = family
		err := d.dump("routes", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, request, func(data []byte) error {
			live, dead, err := decodeRoute(data)
			d.listing.Routes = append(d.listing.Routes, live...)
			d.listing.deadHops = d.listing.deadHops || len(dead) > 0
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *dumper) neighbours() error {
	return d.dump("neighbours", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, make([]byte, unix.SizeofNdMsg), func(data []byte) error {
		ev, err := decodeNeigh(data, false)
		if n, ok := ev.row.(*tables.Neighbour); ok && !ev.deleted {
			d.listing.Neighbours = append(d.listing.Neighbours, n)
		}
		return err
	})
}

func (d *dumper) bridgeEntries() error {
	request := make([]byte, unix.SizeofNdMsg)
	request[0] = unix.AF_BRIDGE
	return d.dump("bridge entries", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, request, func(data []byte) error {
		ev, err := decodeNeigh(data, false)
		if e, ok := ev.row.(*tables.BridgeEntry); ok {
			d.listing.BridgeEntries = append(d.listing.BridgeEntries, e)
		}
		return err
	})
}

// dump lists one kind. What is refused or does not decode becomes a problem of
// the listing. A listing that a change interrupts may miss entries; it is tried
// again.
func (d *dumper) dump(what string, request, reply uint16, payload []byte, add func([]byte) error) error {
	for attempt := 1; ; attempt++ {
		messages, err := d.execute(request, unix.NLM_F_DUMP, reply, payload)
		switch {
		case errors.Is(err, nl.ErrDumpInterrupted) && attempt < dumpAttempts && d.ctx.Err() == nil:
			continue
		case refused(err):
			d.listing.problems = errors.Join(d.listing.problems, fmt.Errorf("list %s: %w", what, err))
			return nil
		case err != nil:
			return fmt.Errorf("list %s: %w", what, err)
		}
		for _, m := range messages {
			if err := add(m); err != nil {
				d.listing.problems = errors.Join(d.listing.problems, err)
			}
		}
		return nil
	}
}

func (d *dumper) execute(request uint16, flags int, reply uint16, payload []byte) ([][]byte, error) {
	req := nl.NewNetlinkRequest(int(request), flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: d.socket}
	req.AddRawData(payload)
	return req.Execute(unix.NETLINK_ROUTE, reply)
}
