// SPDX-License-Identifier: Apache-2.0

// Package traffic is the traffic of the cluster's tests: servers that record
// which address asks them, and clients that record what they are answered.
//
// A request is a line, NAME SEQUENCE, over TCP, or a datagram with the same
// text over UDP. The answer is the client's address as the server sees it.
package traffic

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Port is where servers listen.
const Port = 8080

// Request is what a server has received.
type Request struct {
	Time     time.Time
	Protocol string // tcp or udp
	From     netip.Addr
	Name     string // of the client
	Text     string // all of the request
}

// Server answers clients, and records what they ask.
type Server struct {
	mu       sync.Mutex
	requests []Request
}

// Listen starts a server on Port, in the network namespace of the calling thread.
func Listen() (*Server, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", Port))
	if err != nil {
		return nil, err
	}
	datagrams, err := net.ListenPacket("udp", fmt.Sprintf(":%d", Port))
	if err != nil {
		listener.Close()
		return nil, err
	}
	s := &Server{}
	go s.acceptAll(listener)
	go s.answerDatagrams(datagrams)
	return s, nil
}

func (s *Server) acceptAll(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go s.answerLines(conn)
	}
}

func (s *Server) answerLines(conn net.Conn) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		from := s.record("tcp", conn.RemoteAddr(), lines.Text())
		if _, err := fmt.Fprintln(conn, from); err != nil {
			return
		}
	}
}

func (s *Server) answerDatagrams(conn net.PacketConn) {
	buffer := make([]byte, 1500)
	for {
		n, client, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		from := s.record("udp", client, string(buffer[:n]))
		_, _ = conn.WriteTo([]byte(from.String()), client) // its client is gone, or will ask again
	}
}

func (s *Server) record(protocol string, client net.Addr, text string) netip.Addr {
	from := netip.MustParseAddrPort(client.String()).Addr().Unmap()
	name, _, _ := strings.Cut(text, " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	request := Request{Time: time.Now(), Protocol: protocol, From: from, Name: name, Text: text}
	s.requests = append(s.requests, request)
	return from
}

// Requests returns the requests so far of clients whose names have a prefix.
func (s *Server) Requests(prefix string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var requests []Request
	for _, request := range s.requests {
		if strings.HasPrefix(request.Name, prefix) {
			requests = append(requests, request)
		}
	}
	return requests
}

// Sources counts these requests by the address that they came from.
func (s *Server) Sources(prefix string) map[string]int {
	sources := map[string]int{}
	for _, request := range s.Requests(prefix) {
		sources[request.From.String()]++
	}
	return sources
}
