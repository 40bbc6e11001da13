// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// hold has what an agent has pinned hold a pod. It is no error that nothing is
// pinned: then nothing is held.
func hold(bpffs string, a *cnifile.Attachment) (held bool, err error) {
	h, err := bpf.OpenHolder(bpffs)
	if errors.Is(err, bpf.ErrNothingPinned) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer h.Close()
	mac, _ := net.ParseMAC(a.MAC) // of a veth, and only to be shown
	return true, h.Hold(a.IfIndex, mac, a.Addrs)
}

// canHold reports whether pods could be held.
func canHold(bpffs string) bool {
	h, err := bpf.OpenHolder(bpffs)
	if err != nil {
		return false
	}
	h.Close()
	return true
}
