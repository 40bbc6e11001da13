// SPDX-License-Identifier: Apache-2.0

package addresses

import "github.com/sluice-net/sluice/bpf"

// revokes reports whether some traffic is allowed by the verdicts of one pair of
// classes, and those of the subject whatever the peer, and forbidden by others.
//
// Between two keys of the four nothing differs, so it is enough to look at each
// key, as the traffic that it has in common with no longer one.
func revokes(was, wasAny, is, isAny traffic) bool {
	if decide(was, wasAny, bpf.PolicyKeyOf(0, 0, 0, 0, 0, 0)) && !decide(is, isAny, bpf.PolicyKeyOf(0, 0, 0, 0, 0, 0)) {
		return true
	}
	for _, verdicts := range []traffic{was, wasAny, is, isAny} {
		for key := range verdicts {
			if decide(was, wasAny, key) && !decide(is, isAny, key) {
				return true
			}
		}
	}
	return false
}

// decide reports whether traffic is allowed, as the programs find it: by the
// higher precedence of what is said of the peer and of all, where both say
// something alike by a denial, and not at all where nobody says anything.
func decide(peer, anyPeer traffic, key bpf.PolicyKey) bool {
	p, byPeer := peer.longest(key)
	a, byAny := anyPeer.longest(key)
	switch {
	case !byPeer && !byAny:
		return false
	case !byAny || byPeer && p.Precedence > a.Precedence:
		return p.Deny == 0
	case !byPeer || a.Precedence > p.Precedence:
		return a.Deny == 0
	}
	return p.Deny == 0 && a.Deny == 0
}

// longest returns the verdict of the longest key that covers a key.
func (t traffic) longest(key bpf.PolicyKey) (value bpf.PolicyValue, found bool) {
	if len(t) == 0 {
		return value, false
	}
	if !key.AnyProtocol() {
		first, _ := key.Ports()
		for bits := key.PortBits(); bits >= 0; bits-- {
			if value, found = t[bpf.PolicyKeyOf(0, 0, 0, key.Protocol, first, bits)]; found {
				return value, true
			}
		}
	}
	value, found = t[bpf.PolicyKeyOf(0, 0, 0, 0, 0, 0)]
	return value, found
}
