// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// policyTables are what the engine of network policies derives.
type policyTables struct {
	cell.In

	Compute   policy.Tables
	Entries   statedb.Table[*tables.PolicyEntry]
	Kernel    statedb.Table[*tables.PolicyMapEntry]
	Cookies   statedb.Table[*tables.RuleCookie]
	Readiness statedb.Table[*tables.PolicyReadiness]
	Selectors statedb.Table[*tables.Selector]
}

// compareEntries says where, at rest, the entries of all pairs of classes are not
// what is computed of each pair alone, or the kernel has others; and where an
// entry does not name the rule that decides by the policies.
func (c *cluster) compareEntries(txn statedb.ReadTxn) (err error) {
	differ := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	want := map[bpf.PolicyKey]*tables.PolicyEntry{}
	computer := policy.NewComputer(c.policy.Compute)
	classes := func(role bpf.Role) (numbers []uint32) {
		for row := range c.policy.Compute.Members.List(txn, tables.ClassRowsOfRole(role)) {
			numbers = append(numbers, row.Class)
			if row.Ended() || len(row.Leaving) > 0 {
				differ("at rest somebody is leaving %s/%d, or nobody knows what it is", role, row.Class)
			}
			if r, _, found := c.policy.Readiness.Get(txn, tables.PolicyReadinessByKey(bpf.ClassKey{Role: role, Number: row.Class})); !found || !r.Ready || !r.Settled() {
				differ("at rest %s/%d is not ready", role, row.Class)
			}
		}
		return numbers
	}
	subjects, peers := classes(bpf.RoleSubject), append(classes(bpf.RolePeer), bpf.AnyPeerClass)
	for _, subject := range subjects {
		for _, peer := range peers {
			for direction := range bpf.Direction(bpf.Directions) {
				for _, e := range computer.Entries(txn, tables.PolicyPair{Subject: subject, Direction: direction, Peer: peer}) {
					want[e.Key] = e
				}
			}
		}
	}
	for e := range c.policy.Entries.All(txn) {
		if w := want[e.Key]; w == nil || !w.Equal(e) {
			differ("entry %s %s: computed alone it is %v", e.Key, e.Value, w)
		}
		if k, _, found := c.policy.Kernel.Get(txn, tables.MapEntryByKey[bpf.PolicyKey, bpf.PolicyValue](e.Key)); !found || k.Value != e.Value {
			differ("entry %s %s: the kernel has %v", e.Key, e.Value, k)
		}
		cookie, _, found := c.policy.Cookies.Get(txn, tables.RuleCookieByNumber(e.Value.Cookie))
		if e.Value.Cookie != tables.CookieOf(e.Rules) || len(e.Rules) > 0 && (!found || !slices.Equal(cookie.Rules, e.Rules)) {
			differ("entry %s of %v: its cookie %d is of %v", e.Key, e.Rules, e.Value.Cookie, cookie)
		}
		delete(want, e.Key)
	}
	for key, e := range want {
		differ("no entry %s %s", key, e.Value)
	}
	c.memory.Read(func(r bpf.Reader) {
		for key, value := range bpf.All[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy") {
			if e, _, found := c.policy.Entries.Get(txn, tables.PolicyEntryByKey(key)); !found || e.Value != value {
				differ("the map has %s %s, which is not wanted", key, value)
			}
		}
		err = errors.Join(err, c.compareReasons(txn, r))
	})
	for s := range c.policy.Selectors.All(txn) {
		if !c.named(txn, s) {
			differ("selector %s of %s is kept by %v, though no policy names it", s.Text, s.Role, slices.Collect(tables.EnforcedPoliciesBySelector(txn, c.policy.Compute.Rules, s.ID)))
		}
	}
	return err
}

// named reports whether a selector of network policies is of some policy, or one
// of those that are always there.
func (c *cluster) named(txn statedb.ReadTxn, s *tables.Selector) bool {
	if s.Role == bpf.RoleEgress || s.Peer.Kind == tables.PeerEntity || s.ID == tables.SubjectSelectorID(tables.EgressSelector{}) {
		return true
	}
	for p := range c.base.Policies.All(txn) {
		if slices.Contains(p.SelectorIDs(), s.ID) {
			return true
		}
	}
	return false
}

// compareReasons says where the entry that decides does not name the rule that
// does so by the policies.
func (c *cluster) compareReasons(txn statedb.ReadTxn, r bpf.Reader) (err error) {
	w := c.world(txn)
	for _, p := range w.Packets(rand.New(rand.NewPCG(3, uint64(len(w.Policies)))), comparedPackets/2) {
		allow, why := w.Verdict(p)
		pod, _ := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(p.Subject)})
		peer, _ := bpf.Match[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache", bpf.IPCacheKeyFrom(netip.PrefixFrom(p.Peer, p.Peer.BitLen())))
		if pod.SubjectClass == bpf.NoSubjectClass || w.IsHeld(p.Subject) || w.HostAllowed && p.Direction == bpf.DirectionIngress && peer.Value.Flags&bpf.IPCacheHost != 0 {
			continue
		}
		decides, _, found := policy.Lookup(func(k bpf.PolicyKey) (bpf.PolicyValue, bool) {
			return bpf.Get[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy", k)
		}, pod.SubjectClass, peer.Value.PeerClass, p.Direction, p.Protocol, p.Port)
		if !found || (decides.Deny == 0) != allow {
			err = errors.Join(err, fmt.Errorf("%s: Lookup finds %s, by the policies %s, %s", p, decides, verdictText(allow), why))
			continue
		}
		if reasons := c.reasons(txn, r, pod.SubjectClass, peer.Value.PeerClass, decides.Precedence, p); !slices.Contains(reasons, why) && isRule(why) {
			err = errors.Join(err, fmt.Errorf("%s: decided by %v, by the policies %s, %s", p, reasons, verdictText(allow), why))
		}
	}
	return err
}

// isRule reports whether a reason is an item of a policy, not a default.
func isRule(why string) bool {
	return slices.ContainsFunc([]tables.PolicyKind{tables.PolicyKubernetes, tables.PolicyCilium, tables.PolicyCiliumClusterwide},
		func(k tables.PolicyKind) bool { return strings.HasPrefix(why, k.String()+"/") })
}

// reasons are the rules that the entries name which are found for a packet, with
// the precedence that decides.
func (c *cluster) reasons(txn statedb.ReadTxn, r bpf.Reader, subject, peer, precedence uint32, p policytest.Packet) (texts []string) {
	for _, class := range []uint32{peer, bpf.AnyPeerClass} {
		e, found := bpf.Match[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy", bpf.PolicyKeyOf(subject, class, p.Direction, p.Protocol, p.Port, 16))
		if !found || e.Value.Precedence != precedence {
			continue
		}
		cookie, _, found := c.policy.Cookies.Get(txn, tables.RuleCookieByNumber(e.Value.Cookie))
		if !found {
			continue
		}
		for i, rule := range cookie.Rules {
			texts = append(texts, rule.Policy.String()+" "+cookie.Fields[i])
		}
	}
	return texts
}
