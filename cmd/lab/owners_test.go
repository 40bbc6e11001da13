// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// use is a frame by which a host uses an address: it says that it has it, or sends with it.
type use struct {
	at   time.Time // when the kernel of the world received it
	addr netip.Addr
	mac  string
	what string
}

// What a use is.
const (
	useARP    = "ARP"    // the address is the sender's: an answer, or an announcement
	useNDP    = "NDP"    // likewise, of IPv6
	usePacket = "packet" // from the address
)

// uses are those of some addresses that the world has received, in order.
type uses struct {
	file *os.File
	done sync.WaitGroup

	mu   sync.Mutex
	seen []use
}

// watchUses records at the world's port which hosts use addresses.
func watchUses(t *testing.T, w *World, addrs ...netip.Addr) *uses {
	t.Helper()
	link, err := w.link(worldDevice)
	require.NoError(t, err)
	u, wanted := &uses{}, map[netip.Addr]bool{}
	for _, a := range addrs {
		wanted[a] = true
	}
	require.NoError(t, w.Run(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		u.file = os.NewFile(uintptr(fd), "frames")
		all := uint16(unix.ETH_P_ALL)
		for _, err := range []error{
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: link.Attrs().Index}),
		} {
			if err != nil {
				return err
			}
		}
		return nil
	}))
	u.done.Go(func() { u.read(wanted) })
	t.Cleanup(func() {
		_ = u.file.Close()
		u.done.Wait()
	})
	return u
}

func (u *uses) read(wanted map[netip.Addr]bool) {
	raw, err := u.file.SyscallConn()
	if err != nil {
		return
	}
	frame, control := make([]byte, snapLength), make([]byte, 128)
	for {
		var n, controls int
		readErr := raw.Read(func(fd uintptr) bool {
			n, controls, _, _, err = unix.Recvmsg(int(fd), frame, control, 0)
			return err != unix.EAGAIN
		})
		if readErr != nil || err != nil {
			return // closed, or the device is gone
		}
		used, ok := parseUse(frame[:n])
		if !ok || !wanted[used.addr] {
			continue
		}
		used.at = timestamp(control[:controls])
		u.mu.Lock()
		u.seen = append(u.seen, used)
		u.mu.Unlock()
	}
}

// timestamp returns when the kernel has received a message.
func timestamp(control []byte) time.Time {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			var ts unix.Timespec
			_ = binary.Read(bytes.NewReader(m.Data), binary.NativeEndian, &ts) // its size is fixed
			return time.Unix(ts.Unix())
		}
	}
	return time.Now()
}

// parseUse returns which address a frame uses, if one.
func parseUse(frame []byte) (u use, ok bool) {
	const (
		ethernet       = 14
		arpSender      = 14 // in the message
		advertisement  = 136
		targetOfNDP    = 8
		advertisements = targetOfNDP + 16
	)
	if len(frame) < ethernet {
		return use{}, false
	}
	u.mac = net.HardwareAddr(frame[6:12]).String()
	body := frame[ethernet:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		if len(body) < arpSender+4 {
			return use{}, false
		}
		u.what, u.addr = useARP, netip.AddrFrom4([4]byte(body[arpSender:]))
		return u, true
	case unix.ETH_P_IP, unix.ETH_P_IPV6:
		p, parsed := parsePacket(body)
		u.what, u.addr = usePacket, p.Source
		if parsed && p.icmpType() == advertisement && len(p.Payload) >= advertisements &&
			p.Source.Is6() {
			u.what, u.addr = useNDP, netip.AddrFrom16([16]byte(p.Payload[targetOfNDP:]))
		}
		return u, parsed
	}
	return use{}, false
}

// all returns the uses so far.
func (u *uses) all() []use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]use{}, u.seen...)
}

// onItsWay bounds for how long a frame that a node has sent is between its programs and the world's
// port, beyond what other frames are.
const onItsWay = 30 * time.Millisecond

// misuse returns an error if two nodes have used an address by turns faster than it can move there
// and back: a vote for one of them has to run out in between.
func misuse(all []use, addr netip.Addr, lease time.Duration, nodes map[string]string) error {
	byNode := map[string][]use{}
	for _, u := range all {
		if u.addr != addr {
			continue
		}
		node := nodes[u.mac]
		if node == "" {
			return fmt.Errorf("%s of %s by %s, which is no node", u.what, addr, u.mac)
		}
		byNode[node] = append(byNode[node], u)
	}
	for node, uses := range byNode {
		for other, between := range byNode {
			if other == node {
				continue
			}
			if a, b, c, found := turns(uses, between, lease/2); found {
				return fmt.Errorf("%s of %s by %s at %s, though %s has used it at %s, and %s before at %s",
					c.what, addr, node, c.at.Format(time.StampMicro), other,
					b.at.Format(time.StampMicro), node, a.at.Format(time.StampMicro))
			}
		}
	}
	return nil
}

// turns returns two uses of a node within some time, and one of another node between them that is
// farther from both than frames are on their way. It takes for each use of the other node the last
// one before and the first one after that are far enough.
func turns(uses, between []use, within time.Duration) (a, b, c use, found bool) {
	before, after := 0, 0 // how many of uses are far enough before; the first that is after
	for _, b := range between {
		for before < len(uses) && b.at.Sub(uses[before].at) > onItsWay {
			before++
		}
		for after < len(uses) && uses[after].at.Sub(b.at) <= onItsWay {
			after++
		}
		if before == 0 || after == len(uses) {
			continue
		}
		if a, c := uses[before-1], uses[after]; c.at.Sub(a.at) < within {
			return a, b, c, true
		}
	}
	return a, b, c, false
}
