// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
)

// Live reads the maps that packets meet. Its methods look up as the programs do.
type Live interface {
	// Backend names what holds the maps: kernel or memory; empty if they are not open.
	Backend() string

	Pod(bpf.PodKey) (bpf.PodValue, bool, error)
	IPCache(bpf.IPCacheKey) (bpf.IPCacheValue, bool, error)
	Policy(bpf.PolicyKey) (bpf.PolicyValue, bool, error)
	Config() (bpf.ConfigValue, bool, error)
	Source(bpf.SourceKey) (bpf.SourceValue, bool, error)
	Egress(bpf.EgressKey) (bpf.EgressValue, bool, error)
	Gateway(bpf.GatewayKey) (bpf.GatewayValue, bool, error)
	Covered(bpf.CoveredKey) (bpf.CoveredValue, bool, error)
}

// LiveMaps are the agent's maps.
type LiveMaps struct{ Maps *bpf.Maps }

// Backend implements [Live].
func (m LiveMaps) Backend() string {
	if b := m.Maps.Backend(); b != nil {
		return b.Name()
	}
	return ""
}

// Pod implements [Live].
func (m LiveMaps) Pod(k bpf.PodKey) (bpf.PodValue, bool, error) { return bpf.Lookup(m.Maps.Pods, k) }

// IPCache implements [Live].
func (m LiveMaps) IPCache(k bpf.IPCacheKey) (bpf.IPCacheValue, bool, error) {
	return bpf.Lookup(m.Maps.IPCache, k)
}

// Policy implements [Live].
func (m LiveMaps) Policy(k bpf.PolicyKey) (bpf.PolicyValue, bool, error) {
	return bpf.Lookup(m.Maps.Policy, k)
}

// Config implements [Live].
func (m LiveMaps) Config() (bpf.ConfigValue, bool, error) {
	return bpf.Lookup(m.Maps.Config, bpf.ConfigKey{})
}

// Source implements [Live].
func (m LiveMaps) Source(k bpf.SourceKey) (bpf.SourceValue, bool, error) {
	return bpf.Lookup(m.Maps.Sources, k)
}

// Egress implements [Live].
func (m LiveMaps) Egress(k bpf.EgressKey) (bpf.EgressValue, bool, error) {
	return bpf.Lookup(m.Maps.Egress, k)
}

// Gateway implements [Live].
func (m LiveMaps) Gateway(k bpf.GatewayKey) (bpf.GatewayValue, bool, error) {
	return bpf.Lookup(m.Maps.Gateways, k)
}

// Covered implements [Live].
func (m LiveMaps) Covered(k bpf.CoveredKey) (bpf.CoveredValue, bool, error) {
	return bpf.Lookup(m.Maps.Covered, k)
}

// present is the view of the live maps. What rules a cookie stands for, the
// maps do not have.
type present struct {
	*Explainer
	txn statedb.ReadTxn
	err error
}

func (p *present) failed() error { return p.err }

// note keeps an error for later: what cannot be read is as if it were not there.
func note[V any](p *present, v V, ok bool, err error) (V, bool) {
	p.err = errors.Join(p.err, err)
	return v, ok && err == nil
}

func (p *present) pod(addr netip.Addr) (bpf.PodValue, bool) {
	v, ok, err := p.Live.Pod(bpf.PodKey{Addr: bpf.AddressFrom(addr)})
	return note(p, v, ok, err)
}

func (p *present) peer(prefix netip.Prefix) (bpf.IPCacheValue, bool) {
	v, ok, err := p.Live.IPCache(bpf.IPCacheKeyFrom(prefix))
	return note(p, v, ok, err)
}

func (p *present) policy(key bpf.PolicyKey) (*found, bool) {
	v, ok, err := p.Live.Policy(key)
	if _, ok = note(p, v, ok, err); !ok {
		return nil, false
	}
	return &found{v, func() ([]Rule, *Entry) {
		return p.rulesOfCookie(p.txn, v), &Entry{Map: mapPolicy, Key: p.matched(key, v).String(), Value: v.String()}
	}}, true
}

// matched returns the key of the entry with which a look-up was answered, which
// the kernel does not tell: the shortest that is answered so too.
func (p *present) matched(key bpf.PolicyKey, v bpf.PolicyValue) bpf.PolicyKey {
	for shorter := range policy.Covering(key) {
		if other, ok, err := p.Live.Policy(shorter); err != nil || !ok || other != v {
			break
		}
		key = shorter
	}
	return key
}

func (p *present) config() bpf.ConfigValue {
	v, ok, err := p.Live.Config()
	v, _ = note(p, v, ok, err)
	return v
}

func (p *present) source(addr netip.Addr) (bpf.SourceValue, bool) {
	v, ok, err := p.Live.Source(bpf.SourceKey{Addr: bpf.AddressFrom(addr)})
	return note(p, v, ok, err)
}

func (p *present) egress(class uint32, destination netip.Prefix) (bpf.EgressValue, *Entry, bool) {
	key := bpf.EgressKeyFrom(class, destination)
	v, ok, err := p.Live.Egress(key)
	if v, ok = note(p, v, ok, err); !ok {
		return v, nil, false
	}
	for bits := destination.Bits() - 1; bits >= 0; bits-- {
		shorter := bpf.EgressKeyFrom(class, netip.PrefixFrom(destination.Addr(), bits).Masked())
		if other, ok, err := p.Live.Egress(shorter); err != nil || !ok || other != v {
			break
		}
		key = shorter
	}
	return v, &Entry{Map: mapEgress, Key: key.String(), Value: v.String()}, true
}

func (p *present) gateway(key bpf.GatewayKey) (bpf.GatewayValue, bool) {
	v, ok, err := p.Live.Gateway(key)
	return note(p, v, ok, err)
}

func (p *present) covered(prefix netip.Prefix) bool {
	v, ok, err := p.Live.Covered(bpf.CoveredKeyFrom(prefix))
	_, ok = note(p, v, ok, err)
	return ok
}

// rulesOf returns the rules of an entry that is wanted.
func (e *Explainer) rulesOf(txn statedb.ReadTxn, entry *tables.PolicyEntry) []Rule {
	rules := make([]Rule, 0, len(entry.Rules))
	for i, id := range entry.Rules {
		rule := Rule{Policy: id.Policy.String(), Verdict: verdictOf(entry.Value)}
		if r := tables.EnforcedRuleByID(txn, e.t.Rules, id); r != nil {
			rule.Field, rule.Verdict = r.Field, r.Verdict()
		} else if c, _, ok := e.t.Cookies.Get(txn, tables.RuleCookieByNumber(entry.Value.Cookie)); ok && i < len(c.Fields) {
			rule.Field = c.Fields[i]
		}
		rules = append(rules, rule)
	}
	return rules
}

// rulesOfCookie returns the rules of an entry of the kernel.
func (e *Explainer) rulesOfCookie(txn statedb.ReadTxn, v bpf.PolicyValue) []Rule {
	if v.Cookie == 0 {
		return []Rule{}
	}
	row, _, ok := e.t.Cookies.Get(txn, tables.RuleCookieByNumber(v.Cookie))
	if !ok {
		return []Rule{{Policy: "unknown", Field: "cookie " + utoa(v.Cookie), Verdict: verdictOf(v)}}
	}
	rules := make([]Rule, 0, len(row.Rules))
	for i, id := range row.Rules {
		rules = append(rules, Rule{Policy: id.Policy.String(), Field: row.Fields[i], Verdict: verdictOf(v)})
	}
	return rules
}

// verdictOf is in the words of [tables.EnforcedRule.Verdict].
func verdictOf(v bpf.PolicyValue) string {
	switch {
	case v.Deny == 0:
		return "allow"
	case v.Precedence == bpf.PrecedenceDefault:
		return "default deny"
	}
	return "deny"
}
