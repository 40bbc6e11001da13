// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// overlay is what must be known of the overlay to probe by it.
type overlay struct {
	underlay netip.Addr // of this node
	ifindex  uint32     // of the overlay device
	port     uint16
	vni      uint32
}

// socket sends probes to the overlay's port of other nodes, and receives answers from the overlay
// device, where the programs have checked them.
type socket struct {
	overlay
	out     *net.UDPConn
	answers int // AF_PACKET
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
	s := &socket{overlay: o, out: out, answers: -1}
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, bpf.EtherTypeProbe))
	s.answers, err = unix.Socket(unix.AF_PACKET,
		unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		at := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: int(o.ifindex)}
		err = unix.Bind(s.answers, at)
	}
	if err != nil {
		return nil, errors.Join(
			fmt.Errorf("open a socket for answers to probes at interface %d: %w", o.ifindex, err),
			s.close())
	}
	return s, nil
}

func (s *socket) close() error {
	err := s.out.Close()
	if s.answers >= 0 {
		err = errors.Join(err, unix.Close(s.answers))
	}
	return err
}

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

// receive returns the nonces of the answers that have come.
func (s *socket) receive() (nonces []uint64, err error) {
	var buffer [64]byte
	for {
		n, _, err := unix.Recvfrom(s.answers, buffer[:], 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nonces, nil
		case err != nil:
			return nonces, fmt.Errorf("read answers to probes: %w", err)
		case n >= 8:
			nonces = append(nonces, binary.NativeEndian.Uint64(buffer[:]))
		}
	}
}
