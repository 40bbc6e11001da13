// SPDX-License-Identifier: Apache-2.0

// Package frames sends frames of agents to the programs of other nodes, over the overlay.
package frames

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Overlay is what must be known of the overlay to send frames by it.
type Overlay struct {
	Underlay netip.Addr // of this node
	Port     uint16
	VNI      uint32
}

// Socket sends frames to the overlay's port of other nodes. What these answer comes to the
// programs: to read it here would need the right to open raw sockets.
type Socket struct {
	overlay Overlay
	out     *net.UDPConn
}

// vxlanHeader is the size of the header of a VXLAN packet, and vxlanHasVNI its flag (RFC 7348).
const (
	vxlanHeader = 8
	vxlanHasVNI = 1 << 3
)

// sendWithin bounds a send.
const sendWithin = 10 * time.Millisecond

// Open opens a socket for an overlay.
func Open(o Overlay) (*Socket, error) {
	out, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.Underlay, 0)))
	if err != nil {
		return nil, fmt.Errorf("open a socket to send from %s over the overlay: %w", o.Underlay, err)
	}
	return &Socket{o, out}, nil
}

// Close closes the socket.
func (s *Socket) Close() error { return s.out.Close() }

// Send sends a frame to a node.
func (s *Socket) Send(frame []byte, to netip.Addr) error {
	packet := make([]byte, vxlanHeader, vxlanHeader+len(frame))
	packet[0] = vxlanHasVNI
	binary.BigEndian.PutUint32(packet[4:], s.overlay.VNI<<8)
	// Packets to neighbors that are not found may fill the buffer.
	if err := s.out.SetWriteDeadline(time.Now().Add(sendWithin)); err != nil {
		return err
	}
	_, err := s.out.WriteToUDPAddrPort(
		append(packet, frame...), netip.AddrPortFrom(to, s.overlay.Port))
	return err
}
