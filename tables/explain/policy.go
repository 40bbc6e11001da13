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

// packet is the packet to decide on. For an entity with many addresses, it has a prefix that stands
// for all of them.
type packet struct {
	from, to netip.Prefix
	traffic  Traffic
	backend  bool // the receiver is the backend of a service
}

// keyOf returns the key by which the traffic of a single packet is looked up in a verdict set.
func keyOf(set uint32, traffic Traffic) bpf.VerdictKey {
	return bpf.VerdictKeyOf(set, traffic.Protocol, traffic.Port, 16)
}

// judge decides as the programs at the devices of both pods do.
func judge(v view, p packet) Judged {
	judged := Judged{Directions: []Judgement{}}
	if p.from == p.to && p.from.IsSingleIP() && !p.backend { // it does not leave
		judged.Decision = Decision{Verdict: Allowed, Reason: ReasonItself, Rules: []Rule{}}
		return judged
	}
	if pod, ok := podOf(v, p.from); ok {
		judged.Directions = append(judged.Directions, judgeEgress(v, p, pod))
	}
	if pod, ok := podOf(v, p.to); ok {
		judged.Directions = append(judged.Directions, judgeIngress(v, p, pod))
	}
	judged.Decision = together(judged.Directions)
	return judged
}

// podOf returns the pod of this node at a place.
func podOf(v view, p netip.Prefix) (bpf.PodValue, bool) {
	if !p.IsSingleIP() {
		return bpf.PodValue{}, false
	}
	pod, ok := v.pod(p.Addr())
	return pod, ok && pod.Flags&bpf.PodLocal != 0
}

// together is the decision of all directions: the first that denies, or else
// all rules that allow.
func together(directions []Judgement) Decision {
	d := Decision{Verdict: NotJudged, Reason: ReasonNotHere, Rules: []Rule{}}
	for _, j := range directions {
		if j.Verdict == Denied {
			return j.Decision
		}
		d.Verdict = Allowed
		if d.Entry == nil || j.Entry != nil && len(j.Rules) > 0 {
			d.Reason, d.Pair, d.Entry = j.Reason, j.Pair, j.Entry
		}
		d.Rules = append(d.Rules, j.Rules...)
	}
	return d
}

func judgeEgress(v view, p packet, pod bpf.PodValue) Judgement {
	led, frontend := leadsNowhere, bpf.FrontendValue{}
	if !p.backend && pod.Subject != 0 {
		led, frontend = leadsOf(v, p, pod)
	}
	exempt := func(bpf.IPCacheValue) (Decision, bool) {
		if led == leadsOn {
			return Decision{Verdict: Allowed, Reason: ReasonService}, true
		}
		return Decision{}, false
	}
	j := judgeOf(v, pod, bpf.DirectionEgress, p.to, p.traffic, exempt)
	if led == leadsAtNode && j.Verdict == Allowed && j.Ruleset != bpf.EmptyRuleset {
		return judgeBackends(v, frontend, p, pod, j)
	}
	return j
}

func judgeIngress(v view, p packet, pod bpf.PodValue) Judgement {
	exempt := func(peer bpf.IPCacheValue) (Decision, bool) {
		host := peer.Flags&bpf.IPCacheHost != 0 && v.config().Flags&bpf.ConfigAllowLocalhost != 0
		return Decision{Verdict: Allowed, Reason: ReasonHost}, host
	}
	return judgeOf(v, pod, bpf.DirectionIngress, p.from, p.traffic, exempt)
}

// judgeOf is what both directions have in common: exempt says what is not looked up.
func judgeOf(
	v view, pod bpf.PodValue, direction bpf.Direction, place netip.Prefix, traffic Traffic,
	exempt func(bpf.IPCacheValue) (Decision, bool),
) Judgement {
	j := Judgement{Direction: direction.String(), Subject: pod.Subject}
	subject, complete := v.subject(pod.Subject)
	j.Ruleset = subject.Ruleset
	known, _ := v.known(place)
	peer, found := v.peer(known.Member)
	j.Member, j.Class = known.Member, peer.Class
	switch d, ok := exempt(known); {
	case j.Ruleset == bpf.EmptyRuleset:
		j.Decision = Decision{Verdict: Allowed, Reason: ReasonNoPolicy}
	case ok:
		j.Decision = d
	case pod.Subject == 0 && v.config().Flags&bpf.ConfigNetworkPolicies == 0:
		j.Decision = Decision{Verdict: Allowed, Reason: ReasonNoPolicies}
	case pod.Subject == 0:
		j.Decision = Decision{Verdict: Denied, Reason: ReasonNotReady}
	case !complete || !found:
		j.Decision = Decision{Verdict: Denied, Reason: ReasonNoEntry}
	default:
		j.Decision = lookUp(v, j.Ruleset, j.Class, direction, traffic)
	}
	if j.Rules == nil {
		j.Rules = []Rule{}
	}
	return j
}

// lookUp finds the verdict set of a class, or else that of any class, and what that says of
// the traffic.
func lookUp(v view, ruleset, class uint32, direction bpf.Direction, traffic Traffic) Decision {
	d := Decision{Verdict: Denied, Reason: ReasonNoEntry}
	key := bpf.PolicyKey{Ruleset: ruleset, Class: class, Direction: direction}
	pair, entry, ok := v.policy(key)
	if !ok && class != bpf.AnyClass {
		key.Class = bpf.AnyClass
		pair, entry, ok = v.policy(key)
	}
	d.Pair = entry
	if !ok {
		return d
	}
	f, ok := v.verdict(keyOf(pair.Set, traffic))
	if !ok {
		return d
	}
	d.Rules, d.Entry = f.rules, f.entry
	switch byDefault := f.value.Default != 0; {
	case f.value.Deny == 0 && byDefault:
		d.Verdict, d.Reason = Allowed, ReasonDefaultAllow
	case f.value.Deny == 0:
		d.Verdict, d.Reason = Allowed, ReasonAllowRule
	case byDefault:
		d.Reason = ReasonDefaultDeny
	default:
		d.Reason = ReasonDenyRule
	}
	return d
}

// differences says where the maps decide otherwise than the tables.
func differences(want, got Judged) []string {
	texts := []string{}
	for _, w := range want.Directions {
		i := slices.IndexFunc(
			got.Directions, func(g Judgement) bool { return g.Direction == w.Direction },
		)
		if i < 0 {
			texts = append(texts, fmt.Sprintf(
				"%s: by the tables %s, by the maps not judged: the pod is not in sluice_pods", w.Direction,
				w.text(),
			))
			continue
		}
		texts = append(texts, w.differences(got.Directions[i])...)
	}
	for _, g := range got.Directions {
		if !slices.ContainsFunc(
			want.Directions, func(w Judgement) bool { return g.Direction == w.Direction },
		) {
			texts = append(
				texts, fmt.Sprintf("%s: by the tables not judged, by the maps %s", g.Direction, g.text()),
			)
		}
	}
	return texts
}

func (w Judgement) differences(g Judgement) (texts []string) {
	if w.text() != g.text() {
		texts = append(
			texts, fmt.Sprintf("%s: by the tables %s, by the maps %s", w.Direction, w.text(), g.text()),
		)
	}
	for _, number := range []struct {
		of        string
		want, got uint32
	}{
		{"subject", w.Subject, g.Subject}, {"ruleset", w.Ruleset, g.Ruleset},
		{"member", w.Member, g.Member}, {"class", w.Class, g.Class},
	} {
		if number.want != number.got {
			texts = append(texts, fmt.Sprintf("%s: by the tables %s %d, by the maps %d",
				w.Direction, number.of, number.want, number.got))
		}
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
