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

// icmpTypes are a question other than echo, its answer, and another question.
func icmpTypes(of netip.Addr) (version, protocol, question, answer, other uint8) {
	if of.Is4() {
		return 4, unix.IPPROTO_ICMP, 13, 14, 17
	}
	return 6, unix.IPPROTO_ICMPV6, 139, 140, 144
}

// TestTypesOfICMP: a flow of ICMP without an identifier says nothing of the type of its
// next packet, and what asks is no reply to it.
func TestTypesOfICMP(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		version, protocol, question, answer, other := icmpTypes(f.Pod)
		f.subject(judgedPod, packettest.Generation)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionEgress, protocol, uint16(question), 16, allowRule)
		message := func(from, to netip.Addr, kind uint8) []packettest.Layer {
			return []packettest.Layer{packettest.IP(from, to), packettest.ICMP{Version: version, Type: kind}, packettest.Pattern(20)}
		}
		echo := func(from, to netip.Addr, id uint16) []packettest.Layer {
			return []packettest.Layer{packettest.IP(from, to), packettest.Echo(from, false, id, 1), packettest.Pattern(20)}
		}
		for range 2 {
			f.checked(f.fromPod(message(f.Pod, f.Server, question)...))
			f.dropped(f.fromPod(message(f.Pod, f.Server, other)...), bpf.ReasonPolicyDenied)
			f.dropped(f.fromPod(echo(f.Pod, f.Server, 0)...), bpf.ReasonPolicyDenied)
			f.dropped(f.fromPod(echo(f.Pod, f.Server, 7)...), bpf.ReasonPolicyDenied)
			f.passed(f.toPod(message(f.Server, f.Pod, answer)...))
			f.dropped(f.toPod(message(f.Server, f.Pod, question)...), bpf.ReasonPolicyDenied)
			f.dropped(f.toPod(echo(f.Server, f.Pod, 0)...), bpf.ReasonPolicyDenied)
		}

		// The same the other way round.
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		require.NoError(f, f.RemoveVerdict(
			bpf.VerdictKeyOf(setOf(0, bpf.DirectionEgress), protocol, uint16(question), 16),
		))
		f.policy(0, bpf.DirectionIngress, protocol, uint16(question), 16, allowRule)
		f.passed(f.toPod(message(f.Server2, f.Pod, question)...))
		f.dropped(f.toPod(message(f.Server2, f.Pod, other)...), bpf.ReasonPolicyDenied)
		f.checked(f.fromPod(message(f.Pod, f.Server2, answer)...))
		f.dropped(f.fromPod(message(f.Pod, f.Server2, question)...), bpf.ReasonPolicyDenied)
	})
}

// fragment returns the IP headers of a fragment.
func fragment(from, to netip.Addr, protocol uint8, id uint32, offset int, more bool) []packettest.Layer {
	if from.Is4() {
		return []packettest.Layer{packettest.IPv4{Src: from, Dst: to, ID: uint16(id), Offset: offset, More: more, Protocol: protocol}}
	}
	return []packettest.Layer{packettest.IPv6{Src: from, Dst: to}, packettest.Fragment{ID: id, Offset: offset, More: more, Next: protocol}}
}

// TestFragmentsUnderPolicy: a fragment has the ports of its first; where that was not
// seen, nothing is known that policies could allow.
func TestFragmentsUnderPolicy(t *testing.T) {
	for _, w := range both {
		for _, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
			t.Run(w.Family+" "+d.String(), func(t *testing.T) {
				f := newSubject(t, w)
				send, from, to := f.fromPod, f.Pod, f.Server
				if d == bpf.DirectionIngress {
					send, from, to = f.toPod, f.Server, f.Pod
				}
				f.policy(0, d, 0, 0, 0, denyDefault)
				f.policy(peerClass, d, unix.IPPROTO_UDP, serverPort, 16, allowRule)
				f.policy(peerClass, d, unix.IPPROTO_ICMP, 0, 0, allowRule)
				f.policy(peerClass, d, unix.IPPROTO_ICMPV6, 0, 0, allowRule)
				f.policy(peerClass, d, unix.IPPROTO_GRE, 0, 0, allowRule)
				first := func(id uint32, dport uint16) []packettest.Layer {
					return append(fragment(from, to, unix.IPPROTO_UDP, id, 0, true), packettest.UDP{Src: podPort, Dst: dport, Length: 2000}, packettest.Pattern(800))
				}
				later := func(protocol uint8, id uint32) []packettest.Layer {
					return append(fragment(from, to, protocol, id, 808, false), packettest.Pattern(100))
				}
				f.passed(send(first(1, serverPort)...))
				f.passed(send(later(unix.IPPROTO_UDP, 1)...))
				f.dropped(send(later(unix.IPPROTO_UDP, 2)...), bpf.ReasonUnknownFragment)
				f.dropped(send(first(3, serverPort+1)...), bpf.ReasonPolicyDenied)
				f.dropped(send(later(unix.IPPROTO_UDP, 3)...), bpf.ReasonPolicyDenied)

				protocol, _ := protocolAndPort("ICMP", w.Pod)
				f.dropped(send(later(protocol, 4)...), bpf.ReasonUnknownFragment)
				f.passed(send(append(fragment(from, to, protocol, 5, 0, true), packettest.Echo(from, false, echoID, 1), packettest.Pattern(800))...))
				f.passed(send(later(protocol, 5)...))

				// A protocol without ports has none to miss.
				f.passed(send(later(unix.IPPROTO_GRE, 6)...))
				f.dropped(send(later(unix.IPPROTO_ESP, 7)...), bpf.ReasonPolicyDenied)
			})
		}
	}
}

// TestProtocolsUnderPolicy: those without ports are judged by themselves, and ports are
// found behind extension headers.
func TestProtocolsUnderPolicy(t *testing.T) {
	for _, w := range both {
		f := newSubject(t, w)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(peerClass, bpf.DirectionEgress, unix.IPPROTO_GRE, 0, 0, allowRule)
		f.policy(peerClass, bpf.DirectionEgress, unix.IPPROTO_TCP, serverPort, 16, allowRule)
		f.policy(peerClass, bpf.DirectionEgress, unix.IPPROTO_SCTP, serverPort, 16, allowRule)
		of := func(protocol uint8, payload []byte) []packettest.Layer {
			if w.Pod.Is4() {
				return []packettest.Layer{packettest.IPv4{Src: f.Pod, Dst: f.Server, Protocol: protocol}, packettest.Payload(payload)}
			}
			return []packettest.Layer{packettest.IPv6{Src: f.Pod, Dst: f.Server, NextHeader: protocol}, packettest.Payload(payload)}
		}
		for range 2 {
			f.checked(f.fromPod(of(unix.IPPROTO_GRE, packettest.Pattern(40))...))
		}
		f.dropped(f.fromPod(of(unix.IPPROTO_ESP, packettest.Pattern(40))...), bpf.ReasonPolicyDenied)
		sctp := append([]byte{0x9c, 0x40, serverPort >> 8, serverPort & 0xff}, packettest.Pattern(28)...)
		f.checked(f.fromPod(of(unix.IPPROTO_SCTP, sctp)...))
		sctp[3]++
		f.dropped(f.fromPod(of(unix.IPPROTO_SCTP, sctp)...), bpf.ReasonPolicyDenied)
		if w.Pod.Is6() {
			behind := func(dport uint16) []packettest.Layer {
				return []packettest.Layer{packettest.IP(f.Pod, f.Server), packettest.Options{Kind: packettest.HopByHop},
					packettest.TCP{Src: podPort, Dst: dport, Flags: packettest.SYN}}
			}
			f.checked(f.fromPod(behind(serverPort)...))
			f.dropped(f.fromPod(behind(serverPort+1)...), bpf.ReasonPolicyDenied)
		}
	}
}

// TestRestOfForbiddenConnection: a connection that policies have cut, and whose entry is
// gone, does not begin again as one of the other side.
func TestRestOfForbiddenConnection(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.subject(judgedPod, packettest.Generation)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, allowDefault)
		for range 2 {
			f.passed(f.toPod(tcp(f.RemotePod, f.Pod, serverPort, podPort, packettest.ACK)...))
			f.dropped(f.fromPod(tcp(f.Pod, f.RemotePod, podPort, serverPort, packettest.ACK)...), bpf.ReasonPolicyDenied)
		}
	})
}

// TestErrorsOfPods: what a pod tells of its own flows and those to it passes.
func TestErrorsOfPods(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		f.subject(judgedPod, packettest.Generation)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, unix.IPPROTO_UDP, serverPort, 16, allowRule)
		received := udp(f.Server, f.Pod, podPort, serverPort)
		f.dropped(f.fromPod(unreachable(f.Pod, f.Server, received)...), bpf.ReasonPolicyDenied)
		f.passed(f.toPod(received...))
		f.checked(f.fromPod(unreachable(f.Pod, f.Server, received)...))
		f.subject(judgedPod, packettest.Generation+1)
		f.checked(f.fromPod(unreachable(f.Pod, f.Server, received)...))
	})
}

// TestErrorsOfNoFlow: an error about no flow that is known is a packet as others are:
// from its sender, and of its type.
func TestErrorsOfNoFlow(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		protocol, kind := uint8(unix.IPPROTO_ICMP), uint16(3)
		if f.Pod.Is6() {
			protocol, kind = unix.IPPROTO_ICMPV6, 1
		}
		f.subject(judgedPod, packettest.Generation)
		f.peer(f.Uncovered, peerClass, 0)
		f.policy(peerClass, bpf.DirectionIngress, protocol, kind, 16, allowRule)
		about := tcp(f.Pod, f.Server, podPort, serverPort, packettest.ACK)
		f.passed(f.toPod(unreachable(f.Uncovered, f.Pod, about)...))
		f.dropped(f.toPod(unreachable(f.Server, f.Pod, about)...), bpf.ReasonPolicyDenied)
		f.policy(peerClass, bpf.DirectionIngress, protocol, kind, 16, denyRule)
		f.dropped(f.toPod(unreachable(f.Uncovered, f.Pod, about)...), bpf.ReasonPolicyRule)
	})
}
