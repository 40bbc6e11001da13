// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// probe is a UDP socket that tells which ICMP errors come for it.
type probe struct {
	fd int
	v6 bool
}

// icmpError is what an ICMP error said: of a packet that is too big, info is the MTU.
type icmpError struct {
	errno      unix.Errno
	kind, code uint8
	info       uint32
	offender   netip.Addr // who sent it
}

func (e icmpError) String() string {
	return fmt.Sprintf("%v (type %d code %d, info %d) from %s", e.errno, e.kind, e.code, e.info, e.offender)
}

func newProbe(n *Namespace, to netip.AddrPort) (p *probe, err error) {
	p = &probe{fd: -1, v6: to.Addr().Is6()}
	err = n.Run(func() error {
		domain, peer := unix.AF_INET, unix.Sockaddr(nil)
		if p.v6 {
			domain, peer = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
		} else {
			peer = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
		}
		var err error
		if p.fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err := p.set(unix.IP_RECVERR, unix.IPV6_RECVERR, 1); err != nil {
			return err
		}
		return unix.Connect(p.fd, peer)
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open probe of %s: %w", n.Name, err)
	}
	return p, nil
}

func (p *probe) close() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
	}
}

func (p *probe) set(option4, option6, value int) error {
	if p.v6 {
		return unix.SetsockoptInt(p.fd, unix.IPPROTO_IPV6, option6, value)
	}
	return unix.SetsockoptInt(p.fd, unix.IPPROTO_IP, option4, value)
}

func (p *probe) hops(n int) error { return p.set(unix.IP_TTL, unix.IPV6_UNICAST_HOPS, n) }

// fragment says whether packets may be fragmented, by routers too.
func (p *probe) fragment(may bool) error {
	if may {
		return p.set(unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	}
	return p.set(unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
}

func (p *probe) send(size int) error {
	_, err := unix.Write(p.fd, make([]byte, size))
	return err
}

// wait waits for what poll tells of.
func (p *probe) wait(events int16, timeout time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: events}}
	for deadline := time.Now().Add(timeout); ; {
		left := time.Until(deadline)
		n, err := unix.Poll(fds, int(max(left, 0).Milliseconds()))
		if err == nil && n > 0 {
			return true
		}
		if left <= 0 {
			return false
		}
	}
}

var errSilence = errors.New("nothing came")

// answer waits for a datagram and returns its size.
func (p *probe) answer(timeout time.Duration) (int, error) {
	for deadline := time.Now().Add(timeout); p.wait(unix.POLLIN, time.Until(deadline)); {
		buffer := make([]byte, 1<<16)
		n, err := unix.Read(p.fd, buffer)
		if err == nil {
			return n, nil
		}
		if _, queued := p.queued(); !queued && err != unix.EAGAIN {
			return 0, err
		}
	}
	return 0, errSilence
}

// complaint waits for an ICMP error.
func (p *probe) complaint(timeout time.Duration) (icmpError, error) {
	for deadline := time.Now().Add(timeout); p.wait(0, time.Until(deadline)); {
		if e, queued := p.queued(); queued {
			return e, nil
		}
	}
	return icmpError{}, errSilence
}

// queued takes an error from the queue.
func (p *probe) queued() (e icmpError, queued bool) {
	oob, data := make([]byte, 512), make([]byte, 1<<16)
	_, n, _, _, err := unix.Recvmsg(p.fd, data, oob, unix.MSG_ERRQUEUE)
	if err != nil {
		return e, false
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return e, false
	}
	const extended = 16 // bytes of struct sock_extended_err
	for _, m := range messages {
		if !(m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR) || len(m.Data) < extended {
			continue
		}
		e = icmpError{
			errno: unix.Errno(binary.NativeEndian.Uint32(m.Data)), kind: m.Data[5], code: m.Data[6],
			info: binary.NativeEndian.Uint32(m.Data[8:]),
		}
		switch offender := m.Data[extended:]; {
		case len(offender) >= 8 && binary.NativeEndian.Uint16(offender) == unix.AF_INET:
			e.offender = netip.AddrFrom4([4]byte(offender[4:8]))
		case len(offender) >= 24 && binary.NativeEndian.Uint16(offender) == unix.AF_INET6:
			e.offender = netip.AddrFrom16([16]byte(offender[8:24]))
		}
		return e, true
	}
	return e, false
}

// farWorld is a server beyond the world, behind a link of a small MTU.
type farWorld struct {
	*Namespace
	ipv4, ipv6 netip.Addr
	given      int
}

const (
	farDevice = "far0"
	farMTU    = 1300
	farHosts  = 10 // addresses, of each family
)

func (farWorld) networks() (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:52::/64")
}

// fresh returns addresses to which the path MTU is not known yet.
func (f *farWorld) fresh() (v4, v6 netip.Addr) {
	if f.given == farHosts {
		panic("far world: all addresses are used")
	}
	n4, n6 := f.networks()
	f.given++
	return hostOf(n4, 9+f.given), hostOf(n6, 9+f.given)
}
