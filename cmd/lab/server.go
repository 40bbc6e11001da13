// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// server answers over TCP and UDP which source it sees.
//
// Over TCP a line is a request:
//
//	who       answered by a line: address:port of the client
//	take N    followed by N bytes, answered by a line with their CRC-32
//	give N    answered by N bytes of [pattern]
//
// A UDP datagram is answered by itself, with the source appended as 18 bytes:
// see [appendSource].
type server struct {
	listeners []io.Closer
	done      sync.WaitGroup

	mu      sync.Mutex
	clients map[net.Conn]bool
	streams map[uint64]*serverStream
}

const datagramBuffer = 16 << 20

// noKeepAlive has connections say nothing but what they are told to.
const noKeepAlive = -1

// startServer serves on some ports of a namespace, or on [Port].
func startServer(ns *Namespace, ports ...uint16) (*server, error) {
	if len(ports) == 0 {
		ports = []uint16{Port}
	}
	s := &server{clients: map[net.Conn]bool{}, streams: map[uint64]*serverStream{}}
	err := ns.Run(func() error {
		for _, port := range ports {
			if err := s.listenTCP(port); err != nil {
				return err
			}
			if err := s.listenUDP(port); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("start server of %s: %w", ns.Name, err)
	}
	return s, nil
}

func (s *server) close() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
	s.mu.Lock()
	for conn := range s.clients {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

func (s *server) listenTCP(port uint16) error {
	listener := net.ListenConfig{KeepAlive: noKeepAlive}
	l, err := listener.Listen(context.Background(), "tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, l)
	s.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.clients[conn] = true
			s.mu.Unlock()
			s.done.Go(func() { s.serve(conn) })
		}
	})
	return nil
}

func (s *server) serve(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.clients, conn)
		s.mu.Unlock()
		_ = conn.Close()
	}()
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if err := answer(conn, in, strings.TrimSpace(line)); err != nil {
			return
		}
	}
}

func answer(conn net.Conn, in io.Reader, request string) error {
	var n int64
	if request == "who" {
		_, err := fmt.Fprintln(conn, sourceOf(conn.RemoteAddr()))
		return err
	}
	if _, err := fmt.Sscanf(request, "take %d", &n); err == nil {
		sum := crc32.NewIEEE()
		if _, err := io.CopyN(sum, in, n); err != nil {
			return err
		}
		_, err := fmt.Fprintf(conn, "%08x\n", sum.Sum32())
		return err
	}
	if _, err := fmt.Sscanf(request, "give %d", &n); err == nil {
		_, err := io.CopyN(conn, &pattern{}, n)
		return err
	}
	return fmt.Errorf("unknown request %q", request)
}

// pattern is an endless stream of bytes in which no packet is like another.
type pattern struct{ state uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.state = p.state*6364136223846793005 + 1442695040888963407
		b[i] = byte(p.state >> 56)
	}
	return len(b), nil
}

// sourceOf returns the address of a peer, IPv4 as such.
func sourceOf(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// listenUDP answers from the address that was asked, of which there are many:
// so each datagram's destination is read, and given back as the source.
func (s *server) listenUDP(port uint16) error {
	conn4, err := listenDatagrams("udp4", "0.0.0.0", port)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, conn4)
	p4 := ipv4.NewPacketConn(conn4)
	if err := p4.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	s.done.Go(func() {
		s.answerDatagrams(func(b []byte) (int, net.Addr, func([]byte) error, error) {
			n, cm, from, err := p4.ReadFrom(b)
			return n, from, func(b []byte) error { _, err := p4.WriteTo(b, &ipv4.ControlMessage{Src: cm.Dst}, from); return err }, err
		})
	})

	conn6, err := listenDatagrams("udp6", "[::]", port)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, conn6)
	p6 := ipv6.NewPacketConn(conn6)
	if err := p6.SetControlMessage(ipv6.FlagDst, true); err != nil {
		return err
	}
	s.done.Go(func() {
		s.answerDatagrams(func(b []byte) (int, net.Addr, func([]byte) error, error) {
			n, cm, from, err := p6.ReadFrom(b)
			return n, from, func(b []byte) error { _, err := p6.WriteTo(b, &ipv6.ControlMessage{Src: cm.Dst}, from); return err }, err
		})
	})
	return nil
}

func listenDatagrams(network, address string, port uint16) (net.PacketConn, error) {
	c, err := net.ListenPacket(network, fmt.Sprintf("%s:%d", address, port))
	if err != nil {
		return nil, err
	}
	return c, enlargeBuffer(c.(syscall.Conn))
}

// enlargeBuffer has a socket lose nothing while its reader is not scheduled.
func enlargeBuffer(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, datagramBuffer)
	})
	if err == nil {
		err = controlErr
	}
	return err
}

func (s *server) answerDatagrams(read func([]byte) (int, net.Addr, func([]byte) error, error)) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, reply, err := read(buffer)
		if err != nil {
			return // closed
		}
		source := sourceOf(from)
		s.count(buffer[:n], source)
		_ = reply(appendSource(buffer[:n], source)) // that there is no way back shows at the client
	}
}

const sourceLength = 16 + 2

// appendSource appends an address, IPv4 mapped to IPv6, and a port.
func appendSource(b []byte, source netip.AddrPort) []byte {
	a := source.Addr().As16()
	return binary.BigEndian.AppendUint16(append(b, a[:]...), source.Port())
}

// cutSource undoes appendSource.
func cutSource(b []byte) (rest []byte, source netip.AddrPort, ok bool) {
	n := len(b) - sourceLength
	if n < 0 {
		return nil, netip.AddrPort{}, false
	}
	a := netip.AddrFrom16([16]byte(b[n:])).Unmap()
	return b[:n], netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n+16:])), true
}
