// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-net/sluice/bpf"
)

// packet is what is decided on. Where an entity stands for many addresses, it
// is a prefix that stands for all of them.
type packet struct {
	from, to netip.Prefix
	traffic  Traffic
	backend  bool // the receiver is what a service led to
}

// keyOf returns the key that a single packet is looked up by: the longest that
// its protocol has.
func keyOf(subject, peer uint32, direction bpf.Direction, traffic Traffic) bpf.PolicyKey {
	bits := 0
	if traffic.hasPorts() || traffic.isICMP() {
		bits = 16
	}
	return bpf.PolicyKeyOf(subject, peer, direction, traffic.Protocol, traffic.Port, bits)
}

// judge decides as the programs at the devices of both pods do.
func judge(v view, p packet) Judged {
	judged := Judged{Directions: []Judgement{}}
	if p.from == p.to && p.from.IsSingleIP() && !p.backend { // it does not leave
		judged.Decision = Decision{Verdict: Allowed, Reason: ReasonItself, Rules: []Rule{}}
		return judged
	}
	if pod, ok := podOf(v, p.from); ok {
		judged.add(judgeEgress(v, p, pod))
	}
	if pod, ok := podOf(v, p.to); ok {
		judged.add(judgeIngress(v, p, pod))
	}
	judged.Decision = together(judged.Directions)
	return judged
}

func (j *Judged) add(direction bpf.Direction, subject, peer uint32, d Decision) {
	if d.Rules == nil {
		d.Rules = []Rule{}
	}
	j.Directions = append(j.Directions, Judgement{direction.String(), d, subject, peer})
}

func podOf(v view, p netip.Prefix) (bpf.PodValue, bool) {
	if !p.IsSingleIP() {
		return bpf.PodValue{}, false
	}
	return v.pod(p.Addr())
}

// together is the decision of all directions: the first that denies, or else
// all rules that allow.
func together(directions []Judgement) Decision {
	d := Decision{Verdict: Allowed, Reason: ReasonNotHere, Rules: []Rule{}}
	for _, j := range directions {
		if j.Verdict == Denied {
			return j.Decision
		}
		if d.Entry == nil || j.Entry != nil && len(j.Rules) > 0 {
			d.Reason, d.Entry = j.Reason, j.Entry
		}
		d.Rules = append(d.Rules, j.Rules...)
	}
	return d
}

func judgeEgress(v view, p packet, pod bpf.PodValue) (bpf.Direction, uint32, uint32, Decision) {
	peer, _ := v.peer(p.to)
	d := decided(pod, func() (Decision, bool) {
		switch {
		case isMulticast(p.to.Addr()):
			return Decision{Verdict: Allowed, Reason: ReasonUnjudged}, true
		case peer.Flags&bpf.IPCacheService != 0 && !p.backend && !unknown(pod):
			return Decision{Verdict: Allowed, Reason: ReasonService}, true
		}
		return Decision{}, false
	}, func() Decision { return lookUp(v, pod.SubjectClass, peer.PeerClass, bpf.DirectionEgress, p.traffic) })
	return bpf.DirectionEgress, pod.SubjectClass, peer.PeerClass, d
}

func judgeIngress(v view, p packet, pod bpf.PodValue) (bpf.Direction, uint32, uint32, Decision) {
	peer, _ := v.peer(p.from)
	d := decided(pod, func() (Decision, bool) {
		if peer.Flags&bpf.IPCacheHost != 0 && v.config().Flags&bpf.ConfigAllowLocalhost != 0 {
			return Decision{Verdict: Allowed, Reason: ReasonHost}, true
		}
		return Decision{}, false
	}, func() Decision { return lookUp(v, pod.SubjectClass, peer.PeerClass, bpf.DirectionIngress, p.traffic) })
	return bpf.DirectionIngress, pod.SubjectClass, peer.PeerClass, d
}

func unknown(pod bpf.PodValue) bool { return pod.Flags&bpf.PodPolicyUnknown != 0 }

// decided is what both directions have in common: exempt says what is not looked up.
func decided(pod bpf.PodValue, exempt func() (Decision, bool), lookUp func() Decision) Decision {
	if pod.SubjectClass == bpf.NoSubjectClass && !unknown(pod) {
		return Decision{Verdict: Allowed, Reason: ReasonNoPolicy}
	}
	if d, ok := exempt(); ok {
		return d
	}
	if unknown(pod) {
		return Decision{Verdict: Denied, Reason: ReasonNotReady}
	}
	return lookUp()
}

// isMulticast reports whether the programs let everybody send to an address.
func isMulticast(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// lookUp finds the verdict on the peer's class and that on any peer. The higher
// precedence decides, and of the same a deny.
func lookUp(v view, subject, peer uint32, direction bpf.Direction, traffic Traffic) Decision {
	var best *found
	for _, class := range []uint32{peer, bpf.AnyPeerClass} {
		f, ok := v.policy(keyOf(subject, class, direction, traffic))
		if ok && (best == nil || f.value.Precedence > best.value.Precedence ||
			f.value.Precedence == best.value.Precedence && f.value.Deny > best.value.Deny) {
			best = f
		}
		if peer == bpf.AnyPeerClass {
			break
		}
	}
	if best == nil {
		return Decision{Verdict: Denied, Reason: ReasonNoEntry}
	}
	d := Decision{Verdict: Allowed}
	d.Rules, d.Entry = best.explain()
	if best.value.Deny != 0 {
		d.Verdict = Denied
	}
	d.Reason = map[bool]map[bool]string{
		false: {false: ReasonAllowRule, true: ReasonDefaultAllow},
		true:  {false: ReasonDenyRule, true: ReasonDefaultDeny},
	}[best.value.Deny != 0][best.value.Precedence == bpf.PrecedenceDefault]
	return d
}

// differences says where the maps decide otherwise than the tables.
func differences(want, got Judged) []string {
	texts := []string{}
	for _, w := range want.Directions {
		i := slices.IndexFunc(got.Directions, func(g Judgement) bool { return g.Direction == w.Direction })
		if i < 0 {
			texts = append(texts, fmt.Sprintf("%s: by the tables %s, by the maps not judged: the pod is not in sluice_pods", w.Direction, w.text()))
			continue
		}
		texts = append(texts, w.differences(got.Directions[i])...)
	}
	for _, g := range got.Directions {
		if !slices.ContainsFunc(want.Directions, func(w Judgement) bool { return g.Direction == w.Direction }) {
			texts = append(texts, fmt.Sprintf("%s: by the tables not judged, by the maps %s", g.Direction, g.text()))
		}
	}
	return texts
}

func (w Judgement) differences(g Judgement) (texts []string) {
	if w.text() != g.text() {
		texts = append(texts, fmt.Sprintf("%s: by the tables %s, by the maps %s", w.Direction, w.text(), g.text()))
	}
	if w.SubjectClass != g.SubjectClass {
		texts = append(texts, fmt.Sprintf("%s: by the tables subject class %d, by the maps %d", w.Direction, w.SubjectClass, g.SubjectClass))
	}
	if w.PeerClass != g.PeerClass {
		texts = append(texts, fmt.Sprintf("%s: by the tables peer class %d, by the maps %d", w.Direction, w.PeerClass, g.PeerClass))
	}
	return texts
}

// text is as in "allowed (allowed by rule NetworkPolicy/shop/web spec.ingress[0])".
func (d Decision) text() string { return string(d.Verdict) + " (" + d.why() + ")" }

// why is the reason with the rules.
func (d Decision) why() string {
	if len(d.Rules) == 0 {
		return d.Reason
	}
	return d.Reason + " " + rulesText(d.Rules)
}

func rulesText(rules []Rule) string {
	texts := make([]string, len(rules))
	for i, r := range rules {
		texts[i] = r.String()
	}
	return strings.Join(texts, ", ")
}

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
