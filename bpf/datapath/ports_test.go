// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestPorts: which port a connection leaves with.
func TestPorts(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.Egress))
		require.NoError(f, f.SetRemotePod(f.RemotePod))
		send := func(sport uint16) uint16 {
			return f.translated(f.fromPod(udp(f.Pod, f.Server, sport, 53)...), f.Egress).SrcPort
		}
		for _, port := range []uint16{1024, 5353, 30000, 65535} {
			require.Equal(f, port, send(port), "a free port is kept")
		}
		for _, port := range []uint16{1, 53, 123, 1023} {
			require.GreaterOrEqual(f, send(port), uint16(1024), "a privileged port is not given out")
		}
		// Another pod with the same port gets another towards the same server,
		// and keeps it towards another one.
		p := f.translated(f.fromOverlay(second(), udp(f.RemotePod, f.Server, 5353, 53)...), f.Egress)
		require.NotEqual(f, uint16(5353), p.SrcPort)
		require.GreaterOrEqual(f, p.SrcPort, uint16(1024))
		p = f.translated(f.fromOverlay(second(), udp(f.RemotePod, f.Server2, 5353, 53)...), f.Egress)
		require.EqualValues(f, 5353, p.SrcPort)
		// So does another protocol.
		p = f.translated(f.fromOverlay(second(), tcp(f.RemotePod, f.Server, 5353, 53, packettest.SYN)...), f.Egress)
		require.EqualValues(f, 5353, p.SrcPort)
	})
}

// TestSharedPorts: of an address that the host uses, pods get the ports that are
// set aside for them.
func TestSharedPorts(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.SharedEgress))
		for _, port := range []uint16{80, 5353, 40000, 60000} {
			p := f.translated(f.fromPod(udp(f.Pod, f.Server, port, 53)...), f.SharedEgress)
			require.GreaterOrEqual(f, p.SrcPort, uint16(packettest.SharedFirst))
			require.LessOrEqual(f, p.SrcPort, uint16(packettest.SharedLast))
		}
		p := f.translated(f.fromPod(udp(f.Pod, f.Server2, packettest.SharedFirst+7, 53)...), f.SharedEgress)
		require.EqualValues(f, packettest.SharedFirst+7, p.SrcPort, "one of those is kept")
	})
}

// fill takes ports of an egress address towards the server for another pod, whose
// connections begin now.
func (f *fixture) fill(protocol uint8, ports []uint16) {
	f.Helper()
	now, err := ctmap.Now()
	require.NoError(f, err)
	f.fillSince(protocol, ports, now+3600)
}

// fillSince does the same with translations that were last used at a time of
// CLOCK_MONOTONIC, in seconds.
func (f *fixture) fillSince(protocol uint8, ports []uint16, used uint32) {
	f.Helper()
	egress, tuples, to := f.SharedEgress, []packettest.Tuple(nil), []packettest.Translation(nil)
	if ports[len(ports)-1] > packettest.SharedLast {
		egress = f.Egress
	}
	for _, port := range ports {
		tuples = append(tuples, packettest.Tuple{Daddr: egress, Saddr: f.Server, Dport: port, Sport: serverPort, Protocol: protocol, Flags: packettest.In})
		to = append(to, packettest.Translation{Addr: f.OtherPod, Port: port, NeedsCT: 1, Used: used})
	}
	require.NoError(f, f.SetTranslations(tuples, to))
}

func portRange(first, last int) (ports []uint16) {
	for p := first; p <= last; p++ {
		ports = append(ports, uint16(p))
	}
	return ports
}

// TestPortsExhausted: without a free port a connection is refused, leaves nothing
// behind, and is served as soon as there is one.
func TestPortsExhausted(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.SharedEgress))
		f.fill(packettest.TCPProtocol, portRange(packettest.SharedFirst, packettest.SharedLast))
		before, err := f.Translations()
		require.NoError(f, err)
		for range 2 {
			f.dropped(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...), bpf.ReasonNoSNATPort)
		}
		after, err := f.Translations()
		require.NoError(f, err)
		require.Equal(f, before, after)
		connections, err := f.Connections()
		require.NoError(f, err)
		require.Empty(f, connections)

		// Another server's ports are free.
		f.translated(f.fromPod(tcp(f.Pod, f.Server2, podPort, serverPort, packettest.SYN)...), f.SharedEgress)

		const free = packettest.SharedFirst + 20
		freed := inTuple("TCP", f.Server, f.SharedEgress, free)
		require.NoError(f, f.DeleteTranslation(freed))
		p := f.translated(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...), f.SharedEgress)
		require.EqualValues(f, free, p.SrcPort)
	})
}

// TestPortsOfEndedConnections: the port of a connection that is no longer tracked
// is given to another; that of a live one is not.
func TestPortsOfEndedConnections(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.selected(f.Here(f.SharedEgress))
		const live = packettest.SharedFirst + 7
		p := f.translated(f.fromPod(tcp(f.Pod, f.Server, live, serverPort, packettest.SYN)...), f.SharedEgress)
		require.EqualValues(f, live, p.SrcPort)
		now, err := ctmap.Now()
		require.NoError(f, err)
		f.fillSince(packettest.TCPProtocol, portRange(packettest.SharedFirst, live-1), now-10)
		f.fillSince(packettest.TCPProtocol, portRange(live+1, packettest.SharedLast), now-10)

		for sport := uint16(packettest.SharedFirst); sport <= packettest.SharedLast; sport++ {
			if sport == live {
				continue
			}
			p := f.translated(f.fromPod(tcp(f.Pod, f.Server, sport, serverPort, packettest.SYN)...), f.SharedEgress)
			require.EqualValues(f, sport, p.SrcPort, "its own port was that of an ended connection")
		}
		f.dropped(f.fromPod(tcp(f.Pod, f.Server, podPort, serverPort, packettest.SYN)...), bpf.ReasonNoSNATPort)
		p = f.translated(f.fromPod(tcp(f.Pod, f.Server, live, serverPort, packettest.SYN)...), f.SharedEgress)
		require.EqualValues(f, live, p.SrcPort)
	})
}

// hostSocket opens a socket of the host with a port of the shared address: one that
// listens to all, or that has a connection with the server.
func (f *fixture) hostSocket(transport string, port uint16, connected bool) (closeSocket func()) {
	f.Helper()
	fd := -1
	require.NoError(f, f.Within(func() (err error) {
		domain, kind := unix.AF_INET, unix.SOCK_DGRAM
		if f.SharedEgress.Is6() {
			domain = unix.AF_INET6
		}
		if transport == "TCP" {
			kind = unix.SOCK_STREAM
		}
		if fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Bind(fd, socketAddress(f.SharedEgress, port)); err != nil {
			return err
		}
		if connected {
			// There is no answer. The attempt has the ports as a connection has.
			if err := unix.Connect(fd, socketAddress(f.Server, serverPort)); err != unix.EINPROGRESS {
				return err
			}
			return nil
		}
		if transport == "TCP" {
			return unix.Listen(fd, 1)
		}
		return nil
	}))
	return sync.OnceFunc(func() { require.NoError(f, unix.Close(fd)) })
}

func socketAddress(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}

// TestPortsOfHostSockets: of an address that the host uses, a port for which it has a
// socket is not given out, though it has sent nothing since the programs are here.
func TestPortsOfHostSockets(t *testing.T) {
	for _, connected := range []bool{false, true} {
		for _, transport := range []string{"TCP", "UDP"} {
			t.Run(fmt.Sprintf("%s connected=%t", transport, connected), func(t *testing.T) {
				eachFamily(t, func(f *fixture) {
					f.selected(f.Here(f.SharedEgress))
					send := func(to netip.Addr, sport uint16) *packettest.Result {
						if transport == "TCP" {
							return f.fromPod(tcp(f.Pod, to, sport, serverPort, packettest.SYN)...)
						}
						return f.fromPod(udp(f.Pod, to, sport, serverPort)...)
					}
					const free, given = packettest.SharedFirst + 20, packettest.SharedFirst + 3
					sockets := map[uint16]func(){}
					for _, port := range portRange(packettest.SharedFirst, packettest.SharedLast) {
						if port != free {
							sockets[port] = f.hostSocket(transport, port, connected)
							defer sockets[port]()
						}
					}
					require.EqualValues(f, free, f.translated(send(f.Server, given), f.SharedEgress).SrcPort)
					f.dropped(send(f.Server, given+1), bpf.ReasonNoSNATPort)
					if connected { // towards another server no flow has it
						require.EqualValues(f, given+1, f.translated(send(f.Server2, given+1), f.SharedEgress).SrcPort)
					}
					sockets[given+1]()
					require.EqualValues(f, given+1, f.translated(send(f.Server, given+1), f.SharedEgress).SrcPort)

					// The host has nothing with an address that is for pods only.
					require.NoError(f, f.SetGateway(packettest.Group, f.Here(f.Egress)))
					require.EqualValues(f, given+2, f.translated(send(f.Server, given+2), f.Egress).SrcPort)
				})
			})
		}
	}
}

// TestPortsAlmostExhausted: with 99 of 100 ports taken, 99 of 100 connections find
// one. Allowed is what chance makes of 2,000 attempts.
func TestPortsAlmostExhausted(t *testing.T) {
	f := newFixture(t, packettest.World4)
	f.selected(f.Here(f.Egress))
	const (
		attempts = 2000
		seed     = 3
	)
	random := rand.New(rand.NewPCG(seed, seed))
	all := portRange(1024, 65535)
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	taken := all[:len(all)*99/100]
	// The last one says which address it is; it has to be a high one.
	for i, port := range taken {
		if port > packettest.SharedLast {
			taken[i], taken[len(taken)-1] = taken[len(taken)-1], port
			break
		}
	}
	f.fill(packettest.TCPProtocol, taken)
	failed := 0
	for i := range attempts {
		sport := taken[i]
		res := f.fromPod(tcp(f.Pod, f.Server, sport, serverPort, packettest.SYN)...)
		out := packettest.Tuple{Daddr: f.Server, Saddr: f.Pod, Sport: sport, Dport: serverPort, Protocol: packettest.TCPProtocol}
		if res.Verdict == packettest.Drop {
			f.dropped(res, bpf.ReasonNoSNATPort)
			failed++
			continue
		}
		port := f.translated(res, f.Egress).SrcPort
		require.NoError(t, f.DeleteTranslation(out))
		require.NoError(t, f.DeleteTranslation(inTuple("TCP", f.Server, f.Egress, port)))
	}
	t.Logf("at 99 %% occupancy %d of %d found no port: %.2f %%", failed, attempts, 100*float64(failed)/attempts)
	require.LessOrEqual(t, failed, attempts*3/200)
}
