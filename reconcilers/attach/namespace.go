// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is the network namespace of the devices; not valid: that of the process.
type namespace netns.NsHandle

func (n namespace) own() bool { return n <= 0 }

// do calls f in the namespace, for calls of the kernel that know no other than
// that of the thread.
func (n namespace) do(f func() error) error {
	if n.own() {
		return f()
	}
	runtime.LockOSThread()
	former, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("get network namespace: %w", err)
	}
	defer former.Close()
	if err := netns.Set(netns.NsHandle(n)); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer func() {
		if netns.Set(former) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}()
	return f()
}

// netlink opens a handle to the namespace's devices.
func (n namespace) netlink() (*vn.Handle, error) {
	ns := netns.NsHandle(n)
	if n.own() {
		ns = netns.None()
	}
	h, err := vn.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return h, nil
}

// addresses are those of the namespace's devices.
func (n namespace) addresses() (map[netip.Addr]bool, error) {
	h, err := n.netlink()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	// They may change while they are listed.
	list, err := h.AddrList(nil, vn.FAMILY_ALL)
	if err != nil && !errors.Is(err, vn.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	all := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			all[addr.Unmap()] = true
		}
	}
	return all, nil
}
