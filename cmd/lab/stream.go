// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// A datagram of a stream begins with these.
const (
	streamMagic  = 0x736c7569_63656c61
	streamHeader = 8 + 8 + 8 // magic, stream, sequence number
)

// serverStream is what the server knows of a stream.
type serverStream struct {
	received uint64
	sources  map[netip.AddrPort]uint64
}

// count counts a datagram of a stream; others are ignored.
func (s *server) count(b []byte, source netip.AddrPort) {
	if len(b) < streamHeader || binary.BigEndian.Uint64(b) != streamMagic {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream := s.streams[binary.BigEndian.Uint64(b[8:])]; stream != nil {
		stream.received++
		stream.sources[source]++
	}
}

// StreamReport says what became of the datagrams of a stream.
type StreamReport struct {
	Sent      uint64
	Refused   uint64        // of which the sender's kernel said that they could not be sent
	Received  uint64        // by the server
	Answered  uint64        // whose answer came back
	Reordered uint64        // answers that came after one of a later datagram
	Twice     uint64        // further answers
	Gap       time.Duration // longest time in which no datagram was sent that was answered
	Missing   []uint64
	Sources   map[netip.AddrPort]uint64 // that the server saw
}

// Lost is how many datagrams were not answered.
func (r StreamReport) Lost() uint64 { return r.Sent - r.Answered }

// Addresses are the addresses that the server saw.
func (r StreamReport) Addresses() map[netip.Addr]uint64 {
	m := map[netip.Addr]uint64{}
	for source, n := range r.Sources {
		m[source.Addr()] += n
	}
	return m
}

func (r StreamReport) String() string {
	return fmt.Sprintf("sent %d, refused %d, received %d, answered %d, lost %d, reordered %d, twice %d, sources %v",
		r.Sent, r.Refused, r.Received, r.Answered, r.Lost(), r.Reordered, r.Twice, r.Sources)
}

// Stream sends numbered datagrams to the server by one socket, at a steady rate as
// long as the machine answers so many, and counts the answers.
type Stream struct {
	id     uint64
	server *server
	conn   net.Conn
	stop   chan struct{}
	sent   chan struct{} // closed when the sender has ended
	read   chan struct{} // closed when the reader has ended

	mu       sync.Mutex // of what follows
	report   StreamReport
	answered []bool      // by sequence number
	sentAt   []time.Time // likewise
	highest  uint64      // of the answers
}

// maxMissing bounds a list in a report.
const maxMissing = 20

// StartStream starts a stream from a namespace to an address of the server, with
// a number of datagrams a second.
func (c *Cluster) StartStream(from *Namespace, to netip.Addr, rate int) (*Stream, error) {
	return c.World.server.startStream(from, netip.AddrPortFrom(to, Port), rate)
}

// startStream starts a stream to an address at which this server answers.
func (s *server) startStream(from *Namespace, to netip.AddrPort, rate int) (*Stream, error) {
	conn, err := from.Dial(context.Background(), "udp", to)
	if err != nil {
		return nil, err
	}
	if err := enlargeBuffer(conn.(syscall.Conn)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	stream := &Stream{
		id: rand.Uint64(), server: s, conn: conn,
		stop: make(chan struct{}), sent: make(chan struct{}), read: make(chan struct{}),
	}
	s.mu.Lock()
	s.streams[stream.id] = &serverStream{sources: map[netip.AddrPort]uint64{}}
	s.mu.Unlock()
	go stream.send(rate)
	go stream.receive()
	return stream, nil
}

// streamWindow is how many datagrams of a stream may be without an answer: those of
// some streams fit into the buffers of sockets, so that none is lost to a machine
// that is too busy to read them.
const streamWindow = 500

// send sends until stopped. What is late because it was not scheduled is made up for.
func (s *Stream) send(rate int) {
	defer close(s.sent)
	const tick = time.Millisecond
	ticker := time.NewTicker(max(tick, time.Second/time.Duration(rate)))
	defer ticker.Stop()
	var (
		start  = time.Now()
		number uint64
		packet = make([]byte, streamHeader)
	)
	binary.BigEndian.PutUint64(packet, streamMagic)
	binary.BigEndian.PutUint64(packet[8:], s.id)
	for {
		for due := uint64(time.Since(start).Seconds() * float64(rate)); number < due && s.begin(); number++ {
			binary.BigEndian.PutUint64(packet[16:], number)
			if _, err := s.conn.Write(packet); err != nil {
				s.mu.Lock()
				s.report.Refused++
				s.mu.Unlock()
			}
		}
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
	}
}

// begin counts a datagram that is about to be sent, if one may be.
func (s *Stream) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.report.Lost() >= streamWindow {
		return false
	}
	s.report.Sent++
	s.answered, s.sentAt = append(s.answered, false), append(s.sentAt, time.Now())
	return true
}

func (s *Stream) receive() {
	defer close(s.read)
	buffer := make([]byte, 2*streamHeader+sourceLength)
	for {
		n, err := s.conn.Read(buffer)
		if err != nil {
			select {
			case <-s.sent:
				return
			default:
				continue // such as "connection refused" by ICMP
			}
		}
		if n >= streamHeader {
			s.take(binary.BigEndian.Uint64(buffer[16:]))
		}
	}
}

func (s *Stream) take(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case number >= uint64(len(s.answered)):
		return
	case s.answered[number]:
		s.report.Twice++
		return
	case number < s.highest:
		s.report.Reordered++
	}
	s.highest = max(s.highest, number)
	s.answered[number] = true
	s.report.Answered++
}

// Report says how it went so far; what is on its way counts as lost.
func (s *Stream) Report() StreamReport {
	s.mu.Lock()
	r := s.report
	next := 0 // after the last one answered
	for number, answered := range s.answered {
		switch {
		case answered:
			r.Gap, next = max(r.Gap, s.sentAt[number].Sub(s.sentAt[next])), number+1
		case len(r.Missing) < maxMissing:
			r.Missing = append(r.Missing, uint64(number))
		}
	}
	s.mu.Unlock()

	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	atServer := s.server.streams[s.id]
	r.Received, r.Sources = atServer.received, map[netip.AddrPort]uint64{}
	for source, n := range atServer.sources {
		r.Sources[source] = n
	}
	return r
}

// Stop stops sending, waits for answers until none has come for some time, and
// says how it went.
func (s *Stream) Stop() StreamReport {
	const quiet = 5 * time.Second // a busy machine may answer nothing for a moment
	close(s.stop)
	<-s.sent
	ctx, cancel := context.WithTimeout(context.Background(), 10*quiet)
	defer cancel()
	last, since := uint64(0), time.Now()
	_ = eventually(ctx, "all is answered", func() error { // or not: the report says it
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.report.Answered != last {
			last, since = s.report.Answered, time.Now()
		}
		if last < s.report.Sent && time.Since(since) < quiet {
			return fmt.Errorf("%d of %d answers", last, s.report.Sent)
		}
		return nil
	})
	_ = s.conn.Close()
	<-s.read
	return s.Report()
}
