// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sluice-net/sluice/bpf"
)

// overlay is what must be known of the overlay to probe by it.
type overlay struct {
	underlay netip.Addr // of this node
	port     uint16
	vni      uint32
}

// socket sends probes to the overlay's port of other nodes. Answers come to the programs, which note
// them in [bpf.PathsMap]: to read them here would need the right to open raw sockets.
type socket struct {
	overlay
	out *net.UDPConn
}

// vxlanHeader is the size of the header of a VXLAN packet, and vxlanHasVNI its flag (RFC 7348).
const (
	vxlanHeader = 8
	vxlanHasVNI = 1 << 3
)

// sendWithin bounds a send.
const sendWithin = 10 * time.Millisecond

func openSocket(o overlay) (transport, error) {
	out, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.underlay, 0)))
	if err != nil {
		return nil, fmt.Errorf("open a socket to send probes from %s: %w", o.underlay, err)
	}
	return &socket{o, out}, nil
}

func (s *socket) close() error { return s.out.Close() }

// send sends a probe to a node.
func (s *socket) send(key bpf.OverlayKey, to netip.Addr, nonce uint64) error {
	packet := make([]byte, vxlanHeader)
	packet[0] = vxlanHasVNI
	binary.BigEndian.PutUint32(packet[4:], s.vni<<8)
	packet = append(packet, bpf.ProbeFrame(key, bpf.ProbeRequest, s.underlay, to, nonce)...)
	// Packets to neighbors that are not found may fill the buffer.
	if err := s.out.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil {
		return err
	}
	_, err := s.out.WriteToUDPAddrPort(packet, netip.AddrPortFrom(to, s.port))
	return err
}
