// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	snapLength    = 256
	captureBuffer = 32 << 20
)

// Packet is what a device received, from the IP header on. Data is valid during
// the call only, and has at most 256 bytes.
type Packet struct {
	Source      netip.Addr
	Destination netip.Addr
	Protocol    uint8 // of IP; of IPv6 the first next header that is not that of a fragment
	Data        []byte
	Payload     []byte // after the IP header; nil in fragments but the first
}

// Capture calls f for each IP packet that a device receives, from one goroutine
// for each family, until it is stopped.
func Capture(ns *Namespace, device string, f func(Packet)) (stop func(), err error) {
	link, err := ns.link(device)
	if err != nil {
		return nil, err
	}
	var (
		files []*os.File
		done  sync.WaitGroup
	)
	stop = func() {
		for _, file := range files {
			_ = file.Close()
		}
		done.Wait()
	}
	for _, protocol := range []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6} {
		file, err := packetSocket(ns, link.Attrs().Index, protocol)
		if err != nil {
			stop()
			return nil, fmt.Errorf("capture on %s of %s: %w", device, ns.Name, err)
		}
		files = append(files, file)
		done.Go(func() { readPackets(file, f) })
	}
	return stop, nil
}

// packetSocket opens a socket that gets what a device receives of a protocol,
// but not what it sends.
func packetSocket(ns *Namespace, index int, protocol uint16) (file *os.File, err error) {
	network := protocol<<8 | protocol>>8
	err = ns.Run(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "packets")
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: network, Ifindex: index})
	})
	if err != nil && file != nil {
		_ = file.Close()
	}
	return file, err
}

func readPackets(file *os.File, f func(Packet)) {
	buffer := make([]byte, snapLength)
	for {
		n, err := file.Read(buffer)
		if err != nil {
			return // closed, or the device is gone
		}
		if p, ok := parsePacket(buffer[:n]); ok {
			f(p)
		}
	}
}

func parsePacket(b []byte) (p Packet, ok bool) {
	const ipv4Header, ipv6Header = 20, 40
	switch {
	case len(b) >= ipv4Header && b[0]>>4 == 4:
		header := int(b[0]&0xf) * 4
		if header < ipv4Header || header > len(b) {
			return Packet{}, false
		}
		p = Packet{netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9], b, b[header:]}
		if offset := binary.BigEndian.Uint16(b[6:]) << 3; offset != 0 { // without the flags
			p.Payload = nil
		}
		return p, true
	case len(b) >= ipv6Header && b[0]>>4 == 6:
		p = Packet{netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6], b, b[ipv6Header:]}
		p.skipFragmentHeader()
		return p, true
	default:
		return Packet{}, false
	}
}

func (p *Packet) skipFragmentHeader() {
	const header = 8
	if p.Protocol != unix.IPPROTO_FRAGMENT || len(p.Payload) < header {
		return
	}
	offset := binary.BigEndian.Uint16(p.Payload[2:]) >> 3
	p.Protocol, p.Payload = p.Payload[0], p.Payload[header:]
	if offset != 0 {
		p.Payload = nil
	}
}

// icmpType is 0 for other protocols.
func (p Packet) icmpType() uint8 {
	if p.isICMP() && len(p.Payload) > 0 {
		return p.Payload[0]
	}
	return 0
}

func (p Packet) isICMP() bool {
	return p.Protocol == unix.IPPROTO_ICMP || p.Protocol == unix.IPPROTO_ICMPV6
}

// Ports are 0 for other protocols than TCP and UDP.
func (p Packet) Ports() (source, destination uint16) {
	if p.Protocol != unix.IPPROTO_TCP && p.Protocol != unix.IPPROTO_UDP || len(p.Payload) < 4 {
		return 0, 0
	}
	return binary.BigEndian.Uint16(p.Payload), binary.BigEndian.Uint16(p.Payload[2:])
}

// pingNonce returns by what [Ping] knows an echo request again.
func (p Packet) pingNonce() (nonce string, is bool) {
	const echo4, echo6, header = 8, 128, 8
	if !p.isICMP() || len(p.Payload) < header+nonceLength || p.Payload[0] != echo4 && p.Payload[0] != echo6 {
		return "", false
	}
	return string(p.Payload[header : header+nonceLength]), true
}
