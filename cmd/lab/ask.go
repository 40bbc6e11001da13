// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Dial connects from a namespace. The network is "tcp" or "udp".
func (n *Namespace) Dial(ctx context.Context, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = n.Run(func() error {
		conn, err = (&net.Dialer{KeepAlive: noKeepAlive}).DialContext(ctx, network, to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect from %s: %w", n.Name, err)
	}
	return conn, nil
}

// Ask asks the server at an address which source it sees, by a connection of its
// own or a datagram.
func (n *Namespace) Ask(ctx context.Context, network string, server netip.Addr) (netip.AddrPort, error) {
	conn, err := n.Dial(ctx, network, netip.AddrPortFrom(server, Port))
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer conn.Close()
	return AskOn(ctx, conn)
}

// AskOn asks the server by a connection that [Namespace.Dial] made.
func AskOn(ctx context.Context, conn net.Conn) (netip.AddrPort, error) {
	deadline, _ := ctx.Deadline() // zero is none
	if err := conn.SetDeadline(deadline); err != nil {
		return netip.AddrPort{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, datagrams := conn.(*net.UDPConn); datagrams {
		return askByDatagram(conn)
	}
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask server: %w", err)
	}
	line, err := readLine(conn)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the server's answer: %w", err)
	}
	return netip.ParseAddrPort(line)
}

// readLine reads a line and not a byte more, which would be lost.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
	}
}

func askByDatagram(conn net.Conn) (netip.AddrPort, error) {
	if _, err := io.WriteString(conn, "who"); err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask server: %w", err)
	}
	buffer := make([]byte, 64)
	n, err := conn.Read(buffer)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the server's answer: %w", err)
	}
	_, source, ok := cutSource(buffer[:n])
	if !ok {
		return netip.AddrPort{}, errors.New("read the server's answer: it has no address")
	}
	return source, nil
}

// Upload sends n bytes to the server and checks that it got just these.
func Upload(conn net.Conn, n int64) error {
	sum := crc32.NewIEEE()
	if _, err := fmt.Fprintf(conn, "take %d\n", n); err != nil {
		return err
	}
	out := bufio.NewWriterSize(conn, 64<<10)
	if _, err := io.CopyN(io.MultiWriter(out, sum), &pattern{}, n); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	line, err := readLine(conn)
	if err != nil {
		return fmt.Errorf("upload: read checksum: %w", err)
	}
	if want := fmt.Sprintf("%08x", sum.Sum32()); line != want {
		return fmt.Errorf("upload: the server got other bytes: checksum %s, not %s", line, want)
	}
	return nil
}

// Download gets n bytes from the server and checks them.
func Download(conn net.Conn, n int64) error {
	if _, err := fmt.Fprintf(conn, "give %d\n", n); err != nil {
		return err
	}
	got, want := crc32.NewIEEE(), crc32.NewIEEE()
	if _, err := io.CopyN(got, conn, n); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	_, _ = io.CopyN(want, &pattern{}, n) // neither fails
	if got.Sum32() != want.Sum32() {
		return errors.New("download: other bytes came than the server sent")
	}
	return nil
}

// nonceLength is of what a ping is known by.
const nonceLength = 16

// Ping sends an ICMP echo request with a payload of some size, at least 16
// bytes, and waits for the reply.
func (n *Namespace) Ping(ctx context.Context, to netip.Addr, size int) error {
	_, err := n.ping(ctx, to, size)
	return err
}

func (n *Namespace) ping(ctx context.Context, to netip.Addr, size int) (nonce string, err error) {
	payload := make([]byte, max(size, nonceLength))
	_, _ = rand.Read(payload) // never fails
	network, address, protocol := "udp4", "0.0.0.0", 1
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{Seq: 1, Data: payload}}
	if to.Is6() {
		network, address, protocol = "udp6", "::", 58
		request.Type = ipv6.ICMPTypeEchoRequest
	}
	var conn *icmp.PacketConn
	if err := n.Run(func() error { conn, err = icmp.ListenPacket(network, address); return err }); err != nil {
		return "", fmt.Errorf("ping from %s: %w", n.Name, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	packet, err := request.Marshal(nil)
	if err != nil {
		return "", err
	}
	if _, err := conn.WriteTo(packet, &net.UDPAddr{IP: to.AsSlice()}); err != nil {
		return "", fmt.Errorf("ping from %s: %w", n.Name, err)
	}
	for buffer := make([]byte, 1<<16); ; {
		got, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return "", fmt.Errorf("ping from %s to %s: no reply: %w", n.Name, to, err)
		}
		reply, err := icmp.ParseMessage(protocol, buffer[:got])
		if err != nil {
			continue
		}
		if echo, is := reply.Body.(*icmp.Echo); is && bytes.Equal(echo.Data, payload) {
			return string(payload[:nonceLength]), nil
		}
	}
}

// PingWorld pings an address of the world and returns which source that saw.
func (c *Cluster) PingWorld(ctx context.Context, from *Namespace, to netip.Addr, size int) (netip.Addr, error) {
	if c.World.capture == nil {
		return netip.Addr{}, errors.New("ping the world: the cluster does not capture packets")
	}
	nonce, err := from.ping(ctx, to, size)
	if err != nil {
		return netip.Addr{}, err
	}
	var source netip.Addr
	err = eventually(ctx, "the ping is captured", func() error {
		var seen bool
		if source, seen = c.World.capture.pingSource(nonce); !seen {
			return errors.New("not yet")
		}
		return nil
	})
	return source, err
}

// eventually tries until there is no error or the context ends; then it returns
// what was waited for, and the last error.
func eventually(ctx context.Context, what string, check func() error) error {
	const interval = 5 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", strings.TrimSpace(what), context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
