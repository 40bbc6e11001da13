// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// present is the view of the live maps. The maps do not have the rules of a cookie.
type present struct {
	*Explainer
	txn statedb.ReadTxn
	err error
}

func (p *present) failed() error { return p.err }

// read looks up in a map. It keeps an error for later: what cannot be read is as if it were
// not there.
func read[K, V comparable](p *present, m bpf.Map[K, V], key K) (V, bool) {
	v, ok, err := bpf.Lookup(m, key)
	p.err = errors.Join(p.err, err)
	return v, ok && err == nil
}

func (p *present) pod(addr netip.Addr) (bpf.PodValue, bool) {
	return read(p, p.maps.Pods, bpf.PodKey{Addr: bpf.AddressFrom(addr)})
}

func (p *present) slots() Slots {
	active, own, err := p.maps.Slot()
	p.err = errors.Join(p.err, err)
	return Slots{active, own}
}

func (p *present) subject(number uint32) (bpf.SubjectValue, bool) {
	return read(p, p.maps.Subjects, bpf.SubjectKey{Subject: number})
}

func (p *present) route(subject uint32) (bpf.RouteValue, bool) {
	return read(p, p.maps.Routes, bpf.SubjectKey{Subject: subject})
}

func (p *present) known(prefix netip.Prefix) (bpf.IPCacheValue, bool) {
	return read(p, p.maps.IPCache, bpf.IPCacheKeyFrom(prefix))
}

func (p *present) frontend(key bpf.FrontendKey) (bpf.FrontendValue, bool) {
	return read(p, p.maps.Frontends, key)
}

func (p *present) peer(member uint32) (bpf.PeerValue, bool) {
	return read(p, p.maps.Peers, bpf.PeerKey{Member: member})
}

func (p *present) policy(key bpf.PolicyKey) (bpf.PolicyValue, *Entry, bool) {
	v, ok := read(p, p.maps.Policy, key)
	if !ok {
		return v, nil, false
	}
	return v, &Entry{Map: mapPolicy, Key: key.String(), Value: v.String()}, true
}

func (p *present) verdict(key bpf.VerdictKey) (*found, bool) {
	v, ok := read(p, p.maps.Verdicts, key)
	if !ok {
		return nil, false
	}
	entry := &Entry{Map: mapVerdicts, Key: p.matched(key, v).String(), Value: v.String()}
	return &found{v, p.rulesOfCookie(p.txn, v), entry}, true
}

// matched returns the key of the entry that answered a lookup. The kernel does not return it: it is
// the shortest key with the same answer.
func (p *present) matched(key bpf.VerdictKey, v bpf.VerdictValue) bpf.VerdictKey {
	for shorter := range verdicts.Around(key) {
		if other, ok, err := bpf.Lookup(p.maps.Verdicts, shorter); err != nil || !ok || other != v {
			break
		}
		key = shorter
	}
	return key
}

func (p *present) config() bpf.ConfigValue {
	v, _ := read(p, p.maps.Config, bpf.ConfigKey{})
	return v
}

func (p *present) egress(ruleset uint32, destination netip.Prefix) (bpf.EgressValue, *Entry, bool) {
	key := bpf.EgressKeyFrom(ruleset, destination)
	v, ok := read(p, p.maps.Egress, key)
	if !ok {
		return v, nil, false
	}
	key = bpf.EgressKeyFrom(ruleset, netip.PrefixFrom(destination.Addr(), int(v.Bits)).Masked())
	return v, &Entry{Map: mapEgress, Key: key.String(), Value: v.String()}, true
}

func (p *present) gateway(key bpf.GatewayKey) (bpf.GatewayValue, bool) {
	return read(p, p.maps.Gateways, key)
}

func (p *present) block(egress bpf.Address) (bpf.BlockValue, bool) {
	return read(p, p.maps.Blocks, bpf.ExitKey{Addr: egress})
}

func (p *present) covered(prefix netip.Prefix) bool {
	_, ok := read(p, p.maps.Covered, bpf.CoveredKeyFrom(prefix))
	return ok
}
