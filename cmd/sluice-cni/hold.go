// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// hold attaches the programs that an agent has pinned to the pod's device, and writes
// entries that hold the pod's addresses. If nothing is pinned it returns false.
func hold(bpffs string, a *cnifile.Attachment) (held bool, err error) {
	h, err := bpf.OpenHolder(bpffs)
	if errors.Is(err, bpf.ErrNothingPinned) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer h.Close()
	mac, _ := net.ParseMAC(a.MAC) // only shown to users
	return true, h.Hold(a.IfIndex, mac, a.Addrs)
}

// forget removes the connections of addresses that a new pod gets: they are of an earlier
// pod. The programs would take them for connections of the new one, and let them go on by
// the earlier pod's gateway, or while the new pod is held.
func forget(bpffs string, addrs []netip.Addr) error {
	all, err := ctmap.OpenAll(bpf.MapsDir(bpffs))
	if err != nil {
		return err
	}
	for _, m := range all {
		err = errors.Join(err, forgetIn(m, addrs), m.Close())
	}
	return err
}

func forgetIn(m ctmap.Map, addrs []netip.Addr) error {
	var stale []ctmap.Tuple // removed afterwards: a reader may miss entries meanwhile
	err := m.Each(func(t ctmap.Tuple, _ ctmap.Entry) bool {
		if slices.Contains(addrs, t.Source.Addr()) || slices.Contains(addrs, t.Destination.Addr()) {
			stale = append(stale, t)
		}
		return true
	})
	for _, t := range stale {
		if failed := m.Delete(t); !errors.Is(failed, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// canHold reports whether an agent has pinned what is needed to hold pods.
func canHold(bpffs string) bool {
	h, err := bpf.OpenHolder(bpffs)
	if err != nil {
		return false
	}
	h.Close()
	return true
}
