// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// Numbers of the tests.
const (
	judgedPod    = 11 // subject
	judgedRouted = 12 // the same, that an egress policy selects
	judgedRules  = 31 // ruleset of both
	peerClass    = 21
)

// subject has the pod be of a subject, and begins a generation.
func (f *fixture) subject(subject, generation uint32) {
	f.Helper()
	require.NoError(f, errors.Join(
		f.SetSubject(judgedPod, judgedRules),
		f.SetSubject(judgedRouted, judgedRules),
		f.SetRoute(judgedRouted, packettest.EgressRuleset),
		f.SetPod(f.Pod, f.LocalPod(subject)),
		f.SetGeneration(generation),
	))
}

// newSubject returns the node with a pod that policies select, and a peer outside of a
// class of its own.
func newSubject(t testing.TB, w packettest.Addresses) *fixture {
	f := newFixture(t, w)
	f.subject(judgedPod, packettest.Generation)
	f.peer(f.Server, peerClass, 0)
	return f
}

// judged are the protocols whose connections policies judge.
var judged = append(slices.Clone(transports), "SCTP")

func eachSubject(t *testing.T, test func(f *fixture, transport string, d bpf.Direction)) {
	for _, w := range both {
		for _, transport := range judged {
			for _, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
				t.Run(fmt.Sprint(w.Family, " ", transport, " ", d), func(t *testing.T) { test(newSubject(t, w), transport, d) })
			}
		}
	}
}

func (f *fixture) peer(a netip.Addr, class uint32, flags bpf.IPCacheFlags) {
	f.Helper()
	require.NoError(f, f.SetPeer(netip.PrefixFrom(a, a.BitLen()), class, flags))
}

// setOf is the verdict set of the pod's ruleset and a class.
func setOf(class uint32, d bpf.Direction) uint32 { return 100 + 2*class + uint32(d) }

func policyOf(class uint32, d bpf.Direction) bpf.PolicyKey {
	return bpf.PolicyKey{Ruleset: judgedRules, Class: class, Direction: d}
}

// policy writes a verdict of the pod's ruleset. Protocol 0 is any traffic.
func (f *fixture) policy(
	class uint32, d bpf.Direction, protocol uint8, port uint16, bits int, v bpf.VerdictValue,
) {
	f.Helper()
	set := setOf(class, d)
	require.NoError(f, f.SetVerdict(bpf.VerdictKeyOf(set, protocol, port, bits), v))
	require.NoError(f, f.SetPolicy(policyOf(class, d), set))
}

// unpolicy has the pod's ruleset say nothing special of a class.
func (f *fixture) unpolicy(class uint32, d bpf.Direction) {
	f.Helper()
	require.NoError(f, f.RemovePolicy(policyOf(class, d)))
}

// Verdicts of the tests, each by a rule of its own.
var (
	denyDefault  = bpf.VerdictValue{Default: 1, Cookie: 100, Deny: 1}
	allowDefault = bpf.VerdictValue{Default: 1}
	allowRule    = bpf.VerdictValue{Cookie: 101}
	allowOther   = bpf.VerdictValue{Cookie: 102}
	denyRule     = bpf.VerdictValue{Cookie: 103, Deny: 1}
)

// begin has a flow begin between the pod and a peer, in a direction.
func (f *fixture) begin(transport string, d bpf.Direction, peer netip.Addr) *packettest.Result {
	f.Helper()
	if d == bpf.DirectionEgress {
		return f.fromPod(request(transport, f.Pod, peer)...)
	}
	return f.toPod(request(transport, peer, f.Pod)...)
}

// answer has the other side of such a flow answer.
func (f *fixture) answer(transport string, d bpf.Direction, peer netip.Addr) *packettest.Result {
	f.Helper()
	id := uint16(podPort)
	if transport == "ICMP" {
		id = echoID
	}
	if d == bpf.DirectionEgress {
		return f.toPod(response(transport, peer, f.Pod, id)...)
	}
	return f.fromPod(response(transport, f.Pod, peer, id)...)
}

// tracked returns the connection of such a flow, nil if there is none.
func (f *fixture) tracked(transport string, d bpf.Direction, peer netip.Addr) *packettest.Connection {
	f.Helper()
	if d == bpf.DirectionEgress {
		return f.connection(connectionOf(transport, f.Pod, peer))
	}
	key := connectionOf(transport, peer, f.Pod)
	key.Flags = packettest.In
	return f.connection(key)
}

// decided asserts what a verdict's events say, and that its rules were counted.
func (f *fixture) decided(res *packettest.Result, cookie uint32, packets uint64) {
	f.Helper()
	require.Len(f, res.Events, 1)
	require.Equal(f, cookie, res.Events[0].Cookie, "cookie of the event")
	counted, err := f.Decided(cookie)
	require.NoError(f, err)
	require.Equal(f, packets, counted.Packets, "packets that the rules decided")
}

// protocolAndPort are those of request, as policies have them.
func protocolAndPort(transport string, of netip.Addr) (protocol uint8, port uint16) {
	switch transport {
	case "TCP":
		return unix.IPPROTO_TCP, serverPort
	case "UDP":
		return unix.IPPROTO_UDP, serverPort
	case "SCTP":
		return unix.IPPROTO_SCTP, serverPort
	}
	if of.Is4() {
		return unix.IPPROTO_ICMP, 8
	}
	return unix.IPPROTO_ICMPV6, 128
}

// TestVerdicts: what decides on a new flow, and what it says of itself.
func TestVerdicts(t *testing.T) {
	type entry struct {
		peer  uint32
		key   string // any, protocol, port, other port, other protocol
		value bpf.VerdictValue
	}
	for name, test := range map[string]struct {
		entries []entry
		reason  bpf.Reason
		cookie  uint32
	}{
		"nothing matches":                {nil, bpf.ReasonPolicyDenied, 0},
		"default deny":                   {[]entry{{0, "any", denyDefault}}, bpf.ReasonPolicyDenied, denyDefault.Cookie},
		"default allow":                  {[]entry{{0, "any", allowDefault}}, 0, 0},
		"allowed":                        {[]entry{{0, "any", denyDefault}, {peerClass, "port", allowRule}}, 0, allowRule.Cookie},
		"allowed to all":                 {[]entry{{0, "any", denyDefault}, {0, "port", allowRule}}, 0, allowRule.Cookie},
		"another port":                   {[]entry{{peerClass, "any", denyDefault}, {peerClass, "other port", allowRule}}, bpf.ReasonPolicyDenied, denyDefault.Cookie},
		"another protocol":               {[]entry{{peerClass, "any", denyDefault}, {peerClass, "other protocol", allowRule}}, bpf.ReasonPolicyDenied, denyDefault.Cookie},
		"another peer":                   {[]entry{{0, "any", denyDefault}, {peerClass + 1, "any", allowRule}}, bpf.ReasonPolicyDenied, denyDefault.Cookie},
		"protocol":                       {[]entry{{0, "any", denyDefault}, {peerClass, "protocol", allowRule}}, 0, allowRule.Cookie},
		"range of ports":                 {[]entry{{0, "any", denyDefault}, {peerClass, "range", allowRule}}, 0, allowRule.Cookie},
		"denied by a rule":               {[]entry{{0, "any", allowDefault}, {peerClass, "port", denyRule}}, bpf.ReasonPolicyRule, denyRule.Cookie},
		"what is said of a class is all": {[]entry{{0, "any", allowRule}, {peerClass, "other port", allowOther}}, bpf.ReasonPolicyDenied, 0},
		"it allows what all may not":     {[]entry{{0, "any", denyRule}, {peerClass, "port", allowRule}}, 0, allowRule.Cookie},
		"it denies what all may":         {[]entry{{0, "port", allowRule}, {peerClass, "any", denyRule}}, bpf.ReasonPolicyRule, denyRule.Cookie},
		"longest of a set":               {[]entry{{peerClass, "any", denyRule}, {peerClass, "port", allowRule}}, 0, allowRule.Cookie},
		"alike, the peer's own":          {[]entry{{0, "any", allowOther}, {peerClass, "any", allowRule}}, 0, allowRule.Cookie},
		"of the peer alone":              {[]entry{{peerClass, "any", allowRule}}, 0, allowRule.Cookie},
	} {
		t.Run(name, func(t *testing.T) {
			eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
				protocol, port := protocolAndPort(transport, f.Pod)
				for _, e := range test.entries {
					switch e.key {
					case "any":
						f.policy(e.peer, d, 0, 0, 0, e.value)
					case "protocol":
						f.policy(e.peer, d, protocol, 0, 0, e.value)
					case "port":
						f.policy(e.peer, d, protocol, port, 16, e.value)
					case "range":
						f.policy(e.peer, d, protocol, port, 13, e.value)
					case "other port":
						f.policy(e.peer, d, protocol, port^1, 16, e.value)
					case "other protocol":
						f.policy(e.peer, d, unix.IPPROTO_DCCP, port, 16, e.value)
					}
				}
				res := f.begin(transport, d, f.Server)
				if test.reason != 0 {
					f.dropped(res, test.reason)
					require.Nil(f, f.tracked(transport, d, f.Server))
				} else {
					f.passed(res)
					require.Equal(f, test.cookie, f.tracked(transport, d, f.Server).Cookie)
				}
				if test.cookie != 0 {
					f.decided(res, test.cookie, 1)
				}
				// The other direction has no say in it.
				require.Equal(f, d, res.Events[0].Direction)
			})
		})
	}
}

// TestOtherDirection: what is said of one direction is not of the other.
func TestOtherDirection(t *testing.T) {
	eachSubject(t, func(f *fixture, transport string, d bpf.Direction) {
		f.policy(0, 1-d, 0, 0, 0, allowRule)
		f.dropped(f.begin(transport, d, f.Server), bpf.ReasonPolicyDenied)
	})
}

// TestHostReachesItsPods: this host reaches its pods, if that is not for policies; what
// others send with its addresses is not the host's.
func TestHostReachesItsPods(t *testing.T) {
	for _, w := range both {
		for _, transport := range judged {
			t.Run(w.Family+" "+transport, func(t *testing.T) {
				f := newSubject(t, w)
				f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
				packet := packettest.Build(append([]packettest.Layer{packettest.Ethernet{Dst: packettest.PodMAC, Src: f.MAC(packettest.PodDevice)}},
					request(transport, f.NodeIP, f.Pod)...)...)
				own := packettest.Input{Program: "to_pod", Device: packettest.PodDevice, Packet: packet}
				forwarded := own
				forwarded.Ingress = packettest.EgressDevice

				f.dropped(f.run(own), bpf.ReasonPolicyDenied)
				config := f.Config
				config.Flags |= bpf.ConfigAllowLocalhost
				require.NoError(f, f.SetConfig(config))
				f.dropped(f.run(forwarded), bpf.ReasonPolicyDenied)
				f.passed(f.run(own))
				f.passed(f.answer(transport, bpf.DirectionIngress, f.NodeIP))
				f.dropped(f.run(forwarded), bpf.ReasonPolicyDenied) // nor is what is sent in its flow

				other := own
				other.Packet = packettest.Build(append([]packettest.Layer{packettest.Ethernet{Dst: packettest.PodMAC, Src: f.MAC(packettest.PodDevice)}},
					request(transport, f.SecondNode, f.Pod)...)...)
				f.dropped(f.run(other), bpf.ReasonPolicyDenied)

				// A new generation changes nothing, whichever side sends next.
				f.subject(judgedPod, packettest.Generation+1)
				f.passed(f.answer(transport, bpf.DirectionIngress, f.NodeIP))
				f.dropped(f.run(forwarded), bpf.ReasonPolicyDenied)
				f.passed(f.run(own))

				f.subject(0, packettest.Generation+1)
				require.NoError(f, f.Clear("sluice_ct4_tcp"))
				f.passed(f.run(own))
			})
		}
	}
}

// TestPolicyWithGateway: what a policy forbids is not sent to a gateway, what it allows is.
func TestPolicyWithGateway(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.selected(f.remote(second()))
		f.peer(f.Uncovered, 0, 0)
		f.subject(judgedRouted, packettest.Generation)
		require.NoError(f, f.SetPeer(f.Covered, peerClass, 0))
		// What ipcache has a row of without flags is outside.
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.dropped(f.begin(transport, bpf.DirectionEgress, f.Server), bpf.ReasonPolicyDenied)
		f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowRule)
		f.toGateway(f.begin(transport, bpf.DirectionEgress, f.Server), second())
		c := f.tracked(transport, bpf.DirectionEgress, f.Server)
		require.Equal(f, allowRule.Cookie, c.Cookie)
		require.Equal(f, bpf.AddressFrom(second()), c.Gateway)
		f.toGateway(f.begin(transport, bpf.DirectionEgress, f.Server), second())

		f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, denyRule)
		f.subject(judgedRouted, packettest.Generation+1)
		f.dropped(f.begin(transport, bpf.DirectionEgress, f.Server), bpf.ReasonPolicyRule)
		f.policy(peerClass, bpf.DirectionEgress, 0, 0, 0, allowOther)
		f.toGateway(f.begin(transport, bpf.DirectionEgress, f.Server), second())
		require.EqualValues(
			f, packettest.Generation+1,
			f.tracked(transport, bpf.DirectionEgress, f.Server).Generation,
		)
	})
}

// TestServiceIsPostponed: where a service leads is judged there, so its address is none
// that policies are asked of.
func TestServiceIsPostponed(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.subject(judgedPod, packettest.Generation)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		for range 2 {
			res := f.begin(transport, bpf.DirectionEgress, f.Service)
			f.passed(res)
			require.EqualValues(f, packettest.MarkService, res.Mark&packettest.MarkMask)
		}
		f.passed(f.answer(transport, bpf.DirectionEgress, f.Service))
		f.subject(judgedPod, packettest.Generation+1)
		f.passed(f.answer(transport, bpf.DirectionEgress, f.Service))
		res := f.begin(transport, bpf.DirectionEgress, f.Service)
		f.passed(res)
		require.EqualValues(f, packettest.MarkService, res.Mark&packettest.MarkMask)

		// What no service has to do with it is marked as ever.
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
		f.checked(f.begin(transport, bpf.DirectionEgress, f.OtherPod))
		// A flow that was there before policies selected the pod goes their way too.
		f.subject(packettest.Plain, packettest.Generation)
		require.NoError(f, f.Reset())
		f.checked(f.begin(transport, bpf.DirectionEgress, f.Service))
		f.subject(judgedPod, packettest.Generation+1)
		res = f.begin(transport, bpf.DirectionEgress, f.Service)
		require.EqualValues(f, packettest.MarkService, res.Mark&packettest.MarkMask)
	})
}

// TestLinkLocal: what one on the link gets is subject to policy, as the metadata of a
// cloud are, and tracked then. What goes to many is not tracked.
func TestLinkLocal(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.checked(f.begin(transport, bpf.DirectionEgress, f.LinkLocal))
		require.Nil(f, f.tracked(transport, bpf.DirectionEgress, f.LinkLocal), "as ever, of a pod without policies")

		f.subject(judgedPod, packettest.Generation)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyDefault)
		f.dropped(f.begin(transport, bpf.DirectionEgress, f.LinkLocal), bpf.ReasonPolicyDenied)
		f.dropped(f.begin(transport, bpf.DirectionEgress, f.Multicast), bpf.ReasonPolicyDenied)

		f.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
		f.checked(f.begin(transport, bpf.DirectionEgress, f.Multicast))
		require.Nil(f, f.tracked(transport, bpf.DirectionEgress, f.Multicast))
		f.checked(f.begin(transport, bpf.DirectionEgress, f.LinkLocal))
		f.passed(f.answer(transport, bpf.DirectionEgress, f.LinkLocal))
		f.subject(judgedPod, packettest.Generation+1)
		f.checked(f.begin(transport, bpf.DirectionEgress, f.LinkLocal))
		require.EqualValues(
			f, packettest.Generation+1,
			f.tracked(transport, bpf.DirectionEgress, f.LinkLocal).Generation,
		)
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyRule)
		f.subject(judgedPod, packettest.Generation+2)
		f.dropped(f.begin(transport, bpf.DirectionEgress, f.LinkLocal), bpf.ReasonPolicyRule)
		// Nor is it a way out with an address that is not the pod's.
		f.dropped(f.fromPod(request(transport, f.UnassignedPod, f.LinkLocal)...), bpf.ReasonUnknownSource)
	})
}

// TestRepliesToMasqueraded: what the host forwards with its own address is not its own,
// and its replies are not, when policies forbid it; nor does the host make it so.
func TestRepliesToMasqueraded(t *testing.T) {
	eachTransport(t, func(f *fixture, transport string) {
		f.subject(judgedPod, packettest.Generation)
		config := f.Config
		config.Flags |= bpf.ConfigAllowLocalhost
		require.NoError(f, f.SetConfig(config))
		f.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, allowRule)
		f.passed(f.begin(transport, bpf.DirectionIngress, f.NodeIP))
		f.passed(f.answer(transport, bpf.DirectionIngress, f.NodeIP))
		f.policy(0, bpf.DirectionIngress, 0, 0, 0, denyRule)
		f.subject(judgedPod, packettest.Generation+1)
		require.Equal(f, packettest.Drop, f.answer(transport, bpf.DirectionIngress, f.NodeIP).Verdict)
		f.dropped(f.begin(transport, bpf.DirectionIngress, f.NodeIP), bpf.ReasonPolicyRule)

		// A connection of the host from before is its own by what it sends next.
		f.passed(f.run(packettest.Input{Program: "to_pod", Device: packettest.PodDevice,
			Packet: packettest.Build(append([]packettest.Layer{packettest.Ethernet{Dst: packettest.PodMAC, Src: f.MAC(packettest.PodDevice)}},
				request(transport, f.NodeIP, f.Pod)...)...)}))
		f.subject(judgedPod, packettest.Generation+2)
		f.passed(f.answer(transport, bpf.DirectionIngress, f.NodeIP))
	})
}
