// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"

	"github.com/sluice-net/sluice/bpf"
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

// canHold reports whether an agent has pinned what is needed to hold pods.
func canHold(bpffs string) bool {
	h, err := bpf.OpenHolder(bpffs)
	if err != nil {
		return false
	}
	h.Close()
	return true
}
