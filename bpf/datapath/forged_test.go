// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestStrayErrors: a pod reports no errors about packets of others, however it hides the packet
// from the programs: receivers look into later fragments, behind extension headers, and into
// what they have put together.
func TestStrayErrors(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		ip := func(from, to netip.Addr, offset int) []packettest.Layer {
			switch {
			case offset == 0:
				return []packettest.Layer{packettest.IP(from, to)}
			case from.Is4():
				return []packettest.Layer{packettest.IPv4{Src: from, Dst: to, Offset: offset}}
			}
			return []packettest.Layer{
				packettest.IP(from, to), packettest.Options{Kind: packettest.Destination},
			}
		}
		sent := func(from, to netip.Addr, offset int) packettest.Payload {
			return about(0, append(ip(from, to, offset),
				packettest.UDP{Src: podPort, Dst: serverPort}, packettest.Pattern(40))...)
		}
		first := []packettest.Layer{packettest.IPv4{Src: f.Pod, Dst: f.OtherPod, ID: 7, More: true}}
		if f.Pod.Is6() {
			first = []packettest.Layer{
				packettest.IP(f.Pod, f.OtherPod), packettest.Fragment{ID: 7, More: true},
			}
		}
		errors := icmpErrors(f)
		if f.Pod.Is6() {
			errors["unknown"] = packettest.ICMP{Version: 6, Type: 100}
		}
		for _, message := range errors {
			for _, offset := range []int{0, 8} {
				refused := f.fromPod(packettest.IP(f.Pod, f.OtherPod), message,
					sent(f.OtherPod, f.Server, offset))
				f.dropped(refused, bpf.ReasonUnknownSource)
				f.checked(f.fromPod(packettest.IP(f.Pod, f.OtherPod), message,
					sent(f.OtherPod, f.Pod, offset)))
			}
			refused := f.fromPod(append(first, message, sent(f.OtherPod, f.Server, 0))...)
			f.dropped(refused, bpf.ReasonUnknownSource)
		}
	})
}

// TestAnswersFromTheLink: no pod gives addresses, also from an address that does not say that it
// is a pod's. Policies of receivers do not judge such answers.
func TestAnswersFromTheLink(t *testing.T) {
	for _, w := range both {
		f := newFixture(t, w)
		from, to := "169.254.7.7", "255.255.255.255"
		answer := packettest.UDP{Src: 67, Dst: 68}
		if w.Pod.Is6() {
			from, to = "fe80::7", "ff02::1"
			answer = packettest.UDP{Src: 547, Dst: 546}
		}
		ip := packettest.IP(netip.MustParseAddr(from), netip.MustParseAddr(to))
		f.dropped(f.fromPod(ip, answer, packettest.Pattern(250)), bpf.ReasonUnknownSource)
		answer.Src++
		f.checked(f.fromPod(ip, answer, packettest.Pattern(250)))
	}
}

// TestAddressOfNoPod: a pod that is known does not send from an address of the node's prefixes
// that no pod has, nor from one of a pod with other labels whose device is not known yet.
func TestAddressOfNoPod(t *testing.T) {
	for _, w := range both {
		for _, transport := range judged {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				f := newHold(t, w, 0)
				free := w.Pod.Prev().Prev()
				send := func() *packettest.Result {
					return f.fromPod(request(transport, free, f.Uncovered)...)
				}
				f.dropped(send(), bpf.ReasonUnknownSource)
				claimed := bpf.PodValue{Subject: packettest.Routed, Flags: bpf.PodLocal}
				require.NoError(t, f.SetPod(free, claimed))
				f.dropped(send(), bpf.ReasonUnknownSource)
				claimed.Subject = packettest.Plain
				require.NoError(t, f.SetPod(free, claimed))
				f.passed(send()) // it may be another address of the pod

				require.NoError(t, f.RemovePod(free))
				config := f.Config
				config.Flags &^= bpf.ConfigStrictSource
				require.NoError(t, f.SetConfig(config))
				f.passed(send())
			})
		}
	}
}

// TestPortsOfFrontends: a pod gets no port of an egress address that the host leads to a backend.
// What clients send there would be taken for replies to the pod.
func TestPortsOfFrontends(t *testing.T) {
	const port = packettest.SharedFirst + 3
	for _, w := range both {
		loopback, anywhere := netip.MustParseAddr("127.0.0.1"), netip.IPv4Unspecified()
		if w.Pod.Is6() {
			loopback, anywhere = netip.IPv6Loopback(), netip.IPv6Unspecified()
		}
		for name, at := range map[string]netip.Addr{
			"hostPort": loopback, "NodePort": anywhere, "external IP": w.SharedEgress,
		} {
			t.Run(w.Family+" "+name, func(t *testing.T) {
				f := newFixture(t, w)
				f.selected(f.Here(f.SharedEgress))
				key := bpf.FrontendKeyFrom(at, unix.IPPROTO_TCP, port)
				require.NoError(t, f.SetFrontend(key, bpf.FrontendValue{}))
				p := f.translated(f.fromPod(
					tcp(f.Pod, f.Server, port, serverPort, packettest.SYN)...), f.SharedEgress)
				require.NotEqual(t, uint16(port), p.SrcPort)
				f.passed(f.fromNetdev(
					tcp(f.Server, f.SharedEgress, serverPort, port, packettest.ACK)...))
				// The port of another protocol is free.
				p = f.translated(f.fromPod(udp(f.Pod, f.Server, port, serverPort)...), f.SharedEgress)
				require.Equal(t, uint16(port), p.SrcPort)
			})
		}
	}
}

// TestFragmentsInOthersName: a first fragment in the name of another pod does not change which
// ports the pod's own fragments are taken to have.
func TestFragmentsInOthersName(t *testing.T) {
	for _, w := range both {
		f := newSubject(t, w)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(peerClass, bpf.DirectionEgress, unix.IPPROTO_UDP, serverPort, 16, allowRule)
		first := func(dport uint16) []packettest.Layer {
			header := []packettest.Layer{
				packettest.IP(w.Pod, w.Server), packettest.Fragment{ID: 9, More: true},
			}
			if w.Pod.Is4() {
				header = []packettest.Layer{packettest.IPv4{Src: w.Pod, Dst: w.Server, ID: 9, More: true}}
			}
			return append(header, packettest.UDP{Src: podPort, Dst: dport, Length: 136},
				packettest.Pattern(64))
		}
		later := []packettest.Layer{packettest.IP(w.Pod, w.Server),
			packettest.Fragment{ID: 9, Offset: 72, Next: unix.IPPROTO_UDP}, packettest.Pattern(64)}
		if w.Pod.Is4() {
			later = []packettest.Layer{packettest.IPv4{Src: w.Pod, Dst: w.Server, ID: 9, Offset: 72,
				Protocol: unix.IPPROTO_UDP}, packettest.Pattern(64)}
		}
		f.checked(f.fromPod(first(serverPort)...))
		f.dropped(f.fromOtherPod(first(serverPort+1)...), bpf.ReasonUnknownSource)
		f.checked(f.fromPod(later...))
		f.dropped(f.fromPod(first(serverPort+1)...), bpf.ReasonPolicyDenied)
		f.dropped(f.fromPod(later...), bpf.ReasonPolicyDenied)
	}
}
