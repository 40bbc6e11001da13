// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// asPeer follows a party from its address to its class, and adds the selectors that select it.
func (e *Explainer) asPeer(txn statedb.ReadTxn, p *Party) {
	known := longest(txn, e.t.IPCache, tables.IPCacheByPrefix, p.place())
	if known == nil {
		return
	}
	p.Member = known.Member
	p.waits(known.Prefix.String(), known.Status)
	member, _, found := e.t.Members.Get(txn, tables.MemberByNumber(p.Member))
	if !found {
		return
	}
	p.Class, p.Scope = member.Class, string(member.Scope)
	p.waits(fmt.Sprintf("member %d", p.Member), member.Status)
	class, _, found := e.t.Classes.Get(txn, tables.ClassByNumber(p.Class))
	if !found {
		return
	}
	p.Precision = class.Precision
	for _, number := range class.Selectors {
		if s, _, ok := e.t.Selectors.Get(txn, tables.SelectorByNumber(number)); ok {
			p.PeerSelectors = append(p.PeerSelectors, s.Text)
		}
	}
	slices.Sort(p.PeerSelectors)
	p.PeerSelectors = slices.Compact(p.PeerSelectors) // two may differ by whose they are
}

// asPod follows a party from its address to its ruleset, and adds the policies of that.
func (e *Explainer) asPod(txn statedb.ReadTxn, p *Party) {
	pod, _, found := e.t.Pods.Get(txn, tables.PodByAddr(p.Address))
	if !found {
		return
	}
	p.waits("pod "+pod.Endpoint.String(), pod.Status)
	if route, _, ok := e.t.Routes.Get(txn, tables.RouteBySubject(pod.Subject)); ok {
		p.waits(fmt.Sprintf("route of subject %d", pod.Subject), route.Status)
	}
	if p.Here = pod.Local; !p.Here {
		return
	}
	p.Subject = &pod.Subject
	subject, _, found := e.t.Subjects.Get(txn, tables.SubjectByNumber(pod.Subject))
	if !found {
		return
	}
	p.Ruleset = subject.Ruleset
	p.waits(fmt.Sprintf("subject %d", pod.Subject), subject.Status)
	if ruleset, _, ok := e.t.Rulesets.Get(txn, tables.RulesetByNumber(p.Ruleset)); ok {
		p.TooLarge = ruleset.TooLarge
		for _, id := range ruleset.Policies {
			p.Policies = append(p.Policies, id.String())
		}
	}
}

// waits notes an entry that the kernel does not have as desired. The status says what it waits for,
// or why it was refused.
func (p *Party) waits(what string, s reconciler.Status) {
	if s.Kind == reconciler.StatusKindDone || s.Kind == reconciler.StatusKindRefreshing {
		return
	}
	if text := s.GetError(); text != "" {
		what += ": " + text
	} else {
		what += ": not written yet"
	}
	p.Waits = append(p.Waits, what)
}
