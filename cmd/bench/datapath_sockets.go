// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/cmd/lab"
)

const (
	sinkPort       = 9000
	bulkBuffer     = 128 << 10
	datagramBuffer = 4 << 20
	datagramSize   = 64               // bytes of payload
	markSize       = 1                // of a datagram that ends the others, and is not counted
	patience       = 20 * time.Second // for a peer that is there
)

// What the first byte of a connection asks of a sink.
const (
	askBulk = 'b' // to count what comes
	askEcho = 'e' // to return each byte
)

// socket is a TCP socket whose calls block. The runtime's poller would add its own
// time to each wait, and so hide what the path costs.
type socket struct {
	file *os.File
	fd   int
}

func newSocket(conn net.Conn) (*socket, error) {
	defer conn.Close()
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return nil, errors.New("make blocking socket: it is not of TCP")
	}
	file, err := tcp.File() // keeps TCP_NODELAY, which Go sets
	if err != nil {
		return nil, fmt.Errorf("make blocking socket: %w", err)
	}
	s := &socket{file, int(file.Fd())} // Fd makes it block
	timeout := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		s.close()
		return nil, fmt.Errorf("make blocking socket: %w", err)
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		s.close()
		return nil, fmt.Errorf("make blocking socket: %w", err)
	}
	return s, nil
}

func (s *socket) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (s *socket) Write(b []byte) (int, error) {
	for {
		n, err := unix.Write(s.fd, b)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), os.NewSyscallError("write", err)
		}
	}
}

// close also ends calls that wait.
func (s *socket) close() {
	_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	_ = s.file.Close()
}

// sink is a server: it counts bytes and datagrams, or returns bytes, and remembers
// where they came from.
type sink struct {
	tcp  net.Listener
	udp  *net.UDPConn
	done sync.WaitGroup

	bytes, datagrams, marks atomic.Int64

	mu      sync.Mutex // of what follows
	sources map[netip.Addr]bool
	last    netip.Addr
}

func startSink(ns *lab.Namespace) (*sink, error) {
	s := &sink{sources: map[netip.Addr]bool{}}
	err := ns.Run(func() (err error) {
		if s.tcp, err = net.Listen("tcp4", fmt.Sprintf(":%d", sinkPort)); err != nil {
			return err
		}
		if s.udp, err = net.ListenUDP("udp4", &net.UDPAddr{Port: sinkPort}); err != nil {
			return err
		}
		return enlarge(s.udp)
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("start server in %s: %w", ns.Name, err)
	}
	s.done.Go(s.accept)
	s.done.Go(s.count)
	return s, nil
}

// enlarge gives a socket room for what comes while its reader is not scheduled.
func enlarge(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, datagramBuffer)
	})
	return errors.Join(controlErr, err)
}

// close waits for the connections, which their clients have closed.
func (s *sink) close() {
	if s.tcp != nil {
		_ = s.tcp.Close()
	}
	if s.udp != nil {
		_ = s.udp.Close()
	}
	s.done.Wait()
}

func (s *sink) accept() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.saw(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
		s.done.Go(func() {
			if peer, err := newSocket(conn); err == nil {
				defer peer.close()
				s.serve(peer)
			}
		})
	}
}

// serve ends when the client does, or says nothing for long.
func (s *sink) serve(peer *socket) {
	buffer := make([]byte, 2*bulkBuffer)
	if _, err := peer.Read(buffer[:1]); err != nil {
		return
	}
	for echo := buffer[0] == askEcho; ; {
		n, err := peer.Read(buffer)
		if err != nil {
			return
		}
		if !echo {
			s.bytes.Add(int64(n))
		} else if _, err := peer.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (s *sink) count() {
	var buffer [2 * datagramSize]byte
	for {
		n, from, err := s.udp.ReadFromUDPAddrPort(buffer[:])
		if err != nil {
			return // closed
		}
		if n == markSize {
			s.marks.Add(1)
			continue
		}
		s.saw(from.Addr())
		s.datagrams.Add(1)
	}
}

func (s *sink) saw(source netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if source != s.last { // for each datagram: a map would cost more
		s.sources[source.Unmap()], s.last = true, source
	}
}

// takeSources returns the addresses that something came from since the last call.
func (s *sink) takeSources() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	sources := slices.SortedFunc(maps.Keys(s.sources), netip.Addr.Compare)
	clear(s.sources)
	s.last = netip.Addr{}
	return sources
}

// dial connects to a sink and says what it is to do.
func dial(ctx context.Context, from *lab.Namespace, to netip.Addr, ask byte) (*socket, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", netip.AddrPortFrom(to, sinkPort))
	if err != nil {
		return nil, err
	}
	s, err := newSocket(conn)
	if err != nil {
		return nil, err
	}
	if _, err := s.Write([]byte{ask}); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}
