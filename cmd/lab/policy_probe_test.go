// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sinkPort is where the packets of probes go, which has no server.
const sinkPort = 9000

// flowProbe sends datagrams, each of a flow of its own, from a pod to an address.
type flowProbe struct {
	name     string
	from     *Namespace
	src, dst netip.Addr
	allowed  bool
	id       uint32

	sent     atomic.Uint64
	mu       sync.Mutex  // of what follows
	times    []time.Time // of what is sent
	received map[uint32]bool
}

func (f *flowProbe) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent := f.sent.Load()
	var missing []string
	for n, at := range f.times {
		if f.allowed && !f.received[uint32(n)] && len(missing) < maxMissing {
			missing = append(missing, at.Format("05.000"))
		}
	}
	return fmt.Sprintf("%s: sent %d, received %d, missing %v", f.name, sent, len(f.received), missing)
}

func (f *flowProbe) got() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.received))
}

// flowProbes are probes, and who sees what comes of them.
type flowProbes struct {
	all  []*flowProbe
	byID map[uint32]*flowProbe
	stop chan struct{}
	done sync.WaitGroup
	free []func()

	mu  sync.Mutex
	err error
}

const probeMagic = 0x70726f62

// startProbes sends from each probe at a rate, to pods and the world.
func (p *policyTest) startProbes(rate int, probes ...*flowProbe) *flowProbes {
	p.t.Helper()
	s := &flowProbes{all: probes, byID: map[uint32]*flowProbe{}, stop: make(chan struct{})}
	p.t.Cleanup(s.close)
	watched := map[*Namespace]bool{}
	for i, f := range probes {
		f.id, f.received = uint32(i+1), map[uint32]bool{}
		s.byID[f.id] = f
		for name, at := range p.names {
			if at.Namespace == nil || watched[at.Namespace] || at.ipv4 != f.dst && !(name == "world" && WorldIPv4.Contains(f.dst)) {
				continue
			}
			watched[at.Namespace] = true
			close, err := sink(at.Namespace)
			require.NoError(p.t, err)
			s.free = append(s.free, close)
			stop, err := Capture(at.Namespace, PodDevice, s.take) // the world's device has the same name
			require.NoError(p.t, err)
			s.free = append(s.free, stop)
		}
	}
	for _, f := range probes {
		fd := -1
		require.NoError(p.t, f.from.Run(func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			return err
		}))
		s.done.Go(func() {
			defer unix.Close(fd)
			s.fail(s.send(f, fd, rate))
		})
	}
	return s
}

// halt stops sending; once more is no error.
func (s *flowProbes) halt() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.done.Wait()
}

// close ends the probes, and who watches them.
func (s *flowProbes) close() {
	s.halt()
	for _, free := range s.free {
		free()
	}
	s.free = nil
}

// sink has the port be open, and nothing said of it.
func sink(n *Namespace) (close func(), err error) {
	err = n.Run(func() error {
		conn, err := net.ListenPacket("udp", fmt.Sprintf("[::]:%d", sinkPort))
		close = func() { _ = conn.Close() }
		return err
	})
	return close, err
}

func (s *flowProbes) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *flowProbes) send(f *flowProbe, fd, rate int) error {
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for n := uint32(0); ; n++ {
		payload := binary.BigEndian.AppendUint32(nil, probeMagic)
		payload = binary.BigEndian.AppendUint32(payload, f.id)
		payload = binary.BigEndian.AppendUint32(payload, n)
		packet := ipv4UDP(f.src, f.dst, uint16(1024+n%60000), sinkPort, payload)
		f.sent.Add(1)
		f.mu.Lock()
		f.times = append(f.times, time.Now())
		f.mu.Unlock()
		if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: f.dst.As4()}); err != nil {
			return fmt.Errorf("send from %s: %w", f.from.Name, err)
		}
		select {
		case <-s.stop:
			return nil
		case <-ticker.C:
		}
	}
}

func (s *flowProbes) take(packet Packet) {
	const header, size = 8, 8 + 12
	if packet.Protocol != unix.IPPROTO_UDP || len(packet.Payload) < size || binary.BigEndian.Uint32(packet.Payload[header:]) != probeMagic {
		return
	}
	f := s.byID[binary.BigEndian.Uint32(packet.Payload[header+4:])]
	if f == nil || f.dst != packet.Destination {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.received[binary.BigEndian.Uint32(packet.Payload[header+8:])] = true
}

// end stops the probes. Those that are allowed must have lost nothing, though the
// machine may have, and of those that are forbidden nothing must have come.
func (s *flowProbes) end(p *policyTest, machine func() uint64) (forbidden uint64) {
	p.t.Helper()
	s.halt()
	require.NoError(p.t, s.err)
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	require.NoError(p.t, eventually(ctx, "what is allowed has come", func() error {
		missing := uint64(0)
		for _, f := range s.all {
			if f.allowed {
				missing += f.sent.Load() - f.got()
			}
		}
		if missing > machine() {
			return fmt.Errorf("%d are missing: %v", missing, s.all)
		}
		return nil
	}))
	for _, f := range s.all {
		p.t.Log(f)
		if !f.allowed {
			forbidden += f.sent.Load()
			require.Zero(p.t, f.got(), "%s: what is forbidden came", f)
		}
	}
	s.close()
	return forbidden
}
