// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Failed is the answer that Send writes for a request that had none.
const Failed = "failed"

// Client asks a server. It writes a line for each answer to Out: SEQUENCE
// PROTOCOL ANSWER.
type Client struct {
	Out       io.Writer
	Name      string
	Server    string
	Protocols []string      // tcp, udp
	Interval  time.Duration // after each request
	Timeout   time.Duration // of a connection, and of an answer
	Insist    bool          // Send counts what was answered over all protocols only
}

// Send asks count times, or forever if count is 0: over TCP each time with a
// connection of its own. The first request is the first thing that it does.
func (c *Client) Send(count int) {
	done := 0
	for sequence := 1; count == 0 || done < count; sequence++ {
		answered := true
		for _, protocol := range c.Protocols {
			answer, err := c.ask(protocol, fmt.Sprintf("%s %d", c.Name, sequence))
			if err != nil {
				answer, answered = Failed+": "+err.Error(), false
			}
			fmt.Fprintln(c.Out, sequence, protocol, answer)
		}
		if answered || !c.Insist {
			done++
		}
		time.Sleep(c.Interval)
	}
}

func (c *Client) ask(protocol, request string) (answer string, err error) {
	conn, err := net.DialTimeout(protocol, c.Server, c.Timeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return "", err
	}
	if protocol == "tcp" {
		request += "\n"
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return "", err
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	return strings.TrimSpace(string(buffer[:n])), err
}

// HoldAll holds several connections at once, each with a name of its own: Name-1,
// Name-2 and so on. It returns when one of them fails.
func (c *Client) HoldAll(connections int) error {
	failed := make(chan error, connections)
	for number := 1; number <= connections; number++ {
		one := *c
		one.Name = fmt.Sprintf("%s-%d", c.Name, number)
		go func() { failed <- one.Hold() }()
	}
	return <-failed
}

// Hold asks all the time over one connection of TCP. It returns when that fails.
func (c *Client) Hold() error {
	conn, err := net.DialTimeout("tcp", c.Server, c.Timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewScanner(conn)
	for sequence := 1; ; sequence++ {
		if _, err := fmt.Fprintln(conn, c.Name, sequence); err != nil {
			return err
		}
		if !answers.Scan() {
			return fmt.Errorf("no answer to %d: %w", sequence, answers.Err())
		}
		fmt.Fprintln(c.Out, sequence, "tcp", answers.Text())
		time.Sleep(c.Interval)
	}
}

// sweepInterval is between two datagrams of Sweep to the same address.
const sweepInterval = 50 * time.Millisecond

// Sweep sends datagrams to every address of prefixes, again and again: to pods
// that are not there yet, and so also in the first instant of their life.
func Sweep(name string, prefixes []netip.Prefix, port uint16) error {
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for sequence := 1; ; sequence++ {
		datagram := fmt.Appendf(nil, "%s %d", name, sequence)
		for _, prefix := range prefixes {
			// Not to the last, which is that of broadcasts.
			for ip := prefix.Addr(); prefix.Contains(ip.Next()); ip = ip.Next() {
				// Fails where there is no neighbor of that address: there is no pod.
				_, _ = conn.WriteToUDPAddrPort(datagram, netip.AddrPortFrom(ip, port))
			}
		}
		time.Sleep(sweepInterval)
	}
}
