// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// What the maps make of a packet, as far as network policies are concerned.
const (
	allowed = "allowed"
	denied  = "denied"
	heldNew = "held"    // new flows are dropped, as the pod's policies are not known yet
	notHere = "unknown" // no pod of this node
	noMatch = "no match"
)

// policyInKernel is what the maps make of a packet, by look-ups as the programs do them, and
// the verdict that decides, if one does.
func policyInKernel(
	r bpf.Reader, p policytest.Packet, hostAllowed bool,
) (string, bpf.VerdictValue) {
	pod, found := bpf.Get[bpf.PodKey, bpf.PodValue](
		r, "sluice_pods", bpf.PodKey{Addr: bpf.AddressFrom(p.Subject)})
	if !found || pod.Flags&bpf.PodLocal == 0 {
		return notHere, bpf.VerdictValue{}
	}
	peer, found := bpf.Match[bpf.IPCacheKey, bpf.IPCacheValue](
		r, "sluice_ipcache", bpf.IPCacheKeyFrom(netip.PrefixFrom(p.Peer, p.Peer.BitLen())))
	if hostAllowed && p.Direction == bpf.DirectionIngress && peer.Value.Flags&bpf.IPCacheHost != 0 {
		return allowed, bpf.VerdictValue{}
	}
	if pod.Subject == 0 {
		config, _ := bpf.Get[bpf.ConfigKey, bpf.ConfigValue](r, "sluice_config", bpf.ConfigKey{})
		if config.Flags&bpf.ConfigNetworkPolicies == 0 {
			return allowed, bpf.VerdictValue{}
		}
		return heldNew, bpf.VerdictValue{}
	}
	subject, known := bpf.Get[bpf.SubjectKey, bpf.SubjectValue](
		r, "sluice_subjects", bpf.SubjectKey{Subject: pod.Subject})
	if known && subject.Ruleset == bpf.EmptyRuleset {
		return allowed, bpf.VerdictValue{}
	}
	class, inClass := bpf.Get[bpf.PeerKey, bpf.PeerValue](
		r, "sluice_peers", bpf.PeerKey{Member: peer.Value.Member})
	if !known || !found || !inClass {
		return noMatch, bpf.VerdictValue{}
	}
	key := bpf.PolicyKey{Ruleset: subject.Ruleset, Class: class.Class, Direction: p.Direction}
	entry, found := bpf.Get[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy", key)
	if !found {
		key.Class = bpf.AnyClass
		entry, found = bpf.Get[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy", key)
	}
	verdict, matches := bpf.Match[bpf.VerdictKey, bpf.VerdictValue](
		r, "sluice_verdicts", bpf.VerdictKeyOf(entry.Set, p.Protocol, p.Port, 16))
	switch {
	case !found || !matches:
		return noMatch, bpf.VerdictValue{}
	case verdict.Value.Deny != 0:
		return denied, verdict.Value
	}
	return allowed, verdict.Value
}

// policyOptions are what the flags of the agent say of verdicts.
func (c *cluster) policyOptions() policytest.Options {
	o := policytest.Options{HostAllowed: true}
	for _, arg := range c.args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--enforcement":
			o.Enforcement = value
		case "--allow-localhost":
			o.HostAllowed = value == "always"
		case "--policy-cidr-match":
			o.CIDRPods, o.CIDRNodes = strings.Contains(value, "pods"), strings.Contains(value, "nodes")
		case "--cluster-cidrs":
			for text := range strings.SplitSeq(value, ",") {
				o.ClusterCIDRs = append(o.ClusterCIDRs, netip.MustParsePrefix(text))
			}
		}
	}
	return o
}

// world is what the base tables have.
func (c *cluster) world(txn statedb.ReadTxn) *policytest.World {
	return c.base.World(txn, c.policyOptions())
}

// comparedPackets is how many packets of a world are compared at a rest.
const comparedPackets = 1000

// comparePolicies says where the maps make something else of packets than the
// policies do.
func (c *cluster) comparePolicies(txn statedb.ReadTxn) (err error) {
	w := c.world(txn)
	packets := w.Packets(rand.New(rand.NewPCG(uint64(len(w.Policies)), uint64(len(w.Endpoints)))), comparedPackets)
	c.memory.Read(func(r bpf.Reader) {
		for _, p := range packets {
			want, why := w.Verdict(p)
			text := verdictText(want)
			if !want && w.IsHeld(p.Subject) {
				text = heldNew
			}
			got, verdict := policyInKernel(r, p, w.HostAllowed)
			if got != text {
				err = errors.Join(err, fmt.Errorf("%s: by the maps %s, by the policies %s, %s", p, got, text, why))
			} else if rules := c.rules(txn, verdict.Cookie); isRule(why) && !slices.Contains(rules, why) {
				err = errors.Join(err, fmt.Errorf(
					"%s: decided by %v, by the policies %s, %s", p, rules, text, why,
				))
			}
		}
	})
	return err
}

// rules are those for which a cookie stands.
func (c *cluster) rules(txn statedb.ReadTxn, cookie uint32) (texts []string) {
	row, _, found := c.cookies.Get(txn, tables.RuleCookieByNumber(cookie))
	if !found {
		return nil
	}
	return tables.RuleNames(row.Rules)
}

// isRule reports whether a reason is an item of a policy, not a default.
func isRule(why string) bool {
	kinds := []tables.PolicyKind{
		tables.PolicyKubernetes, tables.PolicyCilium, tables.PolicyCiliumClusterwide,
	}
	return slices.ContainsFunc(kinds, func(k tables.PolicyKind) bool {
		return strings.HasPrefix(why, k.String()+"/")
	})
}

func verdictText(allow bool) string {
	if allow {
		return allowed
	}
	return denied
}
