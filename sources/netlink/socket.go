// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// feedBuffer is the size of the kernel's queue of changes, in bytes.
	// Without privileges the kernel may give less.
	feedBuffer = 4 << 20

	// maxBatch is how many datagrams one transaction takes in, so that readers
	// see something even while changes do not end.
	maxBatch = 8192
)

// socketKernel is the kernel as seen from a network namespace.
type socketKernel struct {
	namespace netns.NsHandle
}

type socketParams struct {
	cell.In

	// Namespace is the network namespace to read, that of the process if it is
	// not given. It belongs to the provider and is to outlive the hive.
	Namespace netns.NsHandle `optional:"true"`
}

func newSocketKernel(p socketParams) kernel {
	if p.Namespace <= 0 {
		p.Namespace = netns.None()
	}
	return &socketKernel{namespace: p.Namespace}
}

// refused reports whether the kernel will say the same again.
func refused(err error) bool {
	for _, errno := range []unix.Errno{
		unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func (k *socketKernel) subscribe() (feed, error) {
	s, err := nl.SubscribeAt(k.namespace, netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_TC)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink: %w", err)
	}
	defer s.Close()
	if s.SetReceiveBufferSize(feedBuffer, true) != nil {
		// A smaller buffer overflows earlier, which only costs a listing.
		_ = s.SetReceiveBufferSize(feedBuffer, false)
	}
	// The library's socket can neither be polled without waiting nor woken up.
	fd, err := unix.FcntlInt(uintptr(s.GetFd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate netlink socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("use netlink socket: %w", err)
	}
	return &socketFeed{file: file, raw: raw, buf: make([]byte, 64<<10)}, nil
}

// socketFeed reads a subscribed socket.
type socketFeed struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

func (f *socketFeed) close() { f.file.Close() }

func (f *socketFeed) receive(ctx context.Context, until time.Time) ([]event, error) {
	if err := f.file.SetReadDeadline(until); err != nil {
		return nil, fmt.Errorf("set deadline of netlink socket: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { f.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	var events []event
	var readErr error
	err := f.raw.Read(func(fd uintptr) bool {
		var any bool
		events, any, readErr = f.drain(int(fd))
		return any || readErr != nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil
	}
	return events, errors.Join(err, readErr)
}

func (f *socketFeed) pending() (events []event, err error) {
	var readErr error
	err = f.raw.Control(func(fd uintptr) { events, _, readErr = f.drain(int(fd)) })
	return events, errors.Join(err, readErr)
}

// drain decodes what is queued and reports whether there was anything.
func (f *socketFeed) drain(fd int) (events []event, any bool, err error) {
	for range maxBatch {
		n, from, err := unix.Recvfrom(fd, f.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return events, any, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ENOBUFS: the queue overflowed
			return nil, true, fmt.Errorf("receive from netlink: %w", err)
		}
		any = true
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(f.buf[:n])
		if err != nil {
			return nil, true, fmt.Errorf("parse netlink messages: %w", err)
		}
		for _, m := range messages {
			ev, err := decodeEvent(m)
			if err != nil {
				return nil, true, err
			}
			if ev.row != nil || ev.stale != 0 {
				events = append(events, ev)
			}
		}
	}
	return events, any, nil
}
