// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// Live reads the maps that packets use. Its methods look up as the programs do.
type Live interface {
	// Backend names what holds the maps: kernel or memory; empty if they are not open.
	Backend() string

	// Slot returns the slot of maps in force, and the one that the other methods read.
	Slot() (inForce, own uint32, err error)

	Pod(bpf.PodKey) (bpf.PodValue, bool, error)
	Subject(bpf.SubjectKey) (bpf.SubjectValue, bool, error)
	Route(bpf.SubjectKey) (bpf.RouteValue, bool, error)
	IPCache(bpf.IPCacheKey) (bpf.IPCacheValue, bool, error)
	Frontend(bpf.FrontendKey) (bpf.FrontendValue, bool, error)
	Peer(bpf.PeerKey) (bpf.PeerValue, bool, error)
	Policy(bpf.PolicyKey) (bpf.PolicyValue, bool, error)
	Verdict(bpf.VerdictKey) (bpf.VerdictValue, bool, error)
	Config() (bpf.ConfigValue, bool, error)
	Egress(bpf.EgressKey) (bpf.EgressValue, bool, error)
	Gateway(bpf.GatewayKey) (bpf.GatewayValue, bool, error)
	Block(bpf.ExitKey) (bpf.BlockValue, bool, error)
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

// Slot implements [Live].
func (m LiveMaps) Slot() (inForce, own uint32, err error) { return m.Maps.Slot() }

// Subject implements [Live].
func (m LiveMaps) Subject(k bpf.SubjectKey) (bpf.SubjectValue, bool, error) {
	return bpf.Lookup(m.Maps.Subjects, k)
}

// Route implements [Live].
func (m LiveMaps) Route(k bpf.SubjectKey) (bpf.RouteValue, bool, error) {
	return bpf.Lookup(m.Maps.Routes, k)
}

// Peer implements [Live].
func (m LiveMaps) Peer(k bpf.PeerKey) (bpf.PeerValue, bool, error) {
	return bpf.Lookup(m.Maps.Peers, k)
}

// Verdict implements [Live].
func (m LiveMaps) Verdict(k bpf.VerdictKey) (bpf.VerdictValue, bool, error) {
	return bpf.Lookup(m.Maps.Verdicts, k)
}

// Pod implements [Live].
func (m LiveMaps) Pod(k bpf.PodKey) (bpf.PodValue, bool, error) {
	return bpf.Lookup(m.Maps.Pods, k)
}

// IPCache implements [Live].
func (m LiveMaps) IPCache(k bpf.IPCacheKey) (bpf.IPCacheValue, bool, error) {
	return bpf.Lookup(m.Maps.IPCache, k)
}

// Frontend implements [Live].
func (m LiveMaps) Frontend(k bpf.FrontendKey) (bpf.FrontendValue, bool, error) {
	return bpf.Lookup(m.Maps.Frontends, k)
}

// Policy implements [Live].
func (m LiveMaps) Policy(k bpf.PolicyKey) (bpf.PolicyValue, bool, error) {
	return bpf.Lookup(m.Maps.Policy, k)
}

// Config implements [Live].
func (m LiveMaps) Config() (bpf.ConfigValue, bool, error) {
	return bpf.Lookup(m.Maps.Config, bpf.ConfigKey{})
}

// Egress implements [Live].
func (m LiveMaps) Egress(k bpf.EgressKey) (bpf.EgressValue, bool, error) {
	return bpf.Lookup(m.Maps.Egress, k)
}

// Gateway implements [Live].
func (m LiveMaps) Gateway(k bpf.GatewayKey) (bpf.GatewayValue, bool, error) {
	return bpf.Lookup(m.Maps.Gateways, k)
}

// Block implements [Live].
func (m LiveMaps) Block(k bpf.ExitKey) (bpf.BlockValue, bool, error) {
	return bpf.Lookup(m.Maps.Blocks, k)
}

// Covered implements [Live].
func (m LiveMaps) Covered(k bpf.CoveredKey) (bpf.CoveredValue, bool, error) {
	return bpf.Lookup(m.Maps.Covered, k)
}

// present is the view of the live maps. The maps do not have the rules of a cookie.
type present struct {
	*Explainer
	txn statedb.ReadTxn
	err error
}

func (p *present) failed() error { return p.err }

// read looks up in a map. It keeps an error for later: what cannot be read is as if it were
// not there.
func read[K, V any](p *present, lookup func(K) (V, bool, error), key K) (V, bool) {
	v, ok, err := lookup(key)
	p.err = errors.Join(p.err, err)
	return v, ok && err == nil
}

func (p *present) pod(addr netip.Addr) (bpf.PodValue, bool) {
	return read(p, p.Live.Pod, bpf.PodKey{Addr: bpf.AddressFrom(addr)})
}

func (p *present) slots() Slots {
	inForce, own, err := p.Live.Slot()
	p.err = errors.Join(p.err, err)
	return Slots{inForce, own}
}

func (p *present) subject(number uint32) (bpf.SubjectValue, bool) {
	return read(p, p.Live.Subject, bpf.SubjectKey{Subject: number})
}

func (p *present) route(subject uint32) (bpf.RouteValue, bool) {
	return read(p, p.Live.Route, bpf.SubjectKey{Subject: subject})
}

func (p *present) known(prefix netip.Prefix) (bpf.IPCacheValue, bool) {
	return read(p, p.Live.IPCache, bpf.IPCacheKeyFrom(prefix))
}

func (p *present) frontend(key bpf.FrontendKey) (bpf.FrontendValue, bool) {
	return read(p, p.Live.Frontend, key)
}

func (p *present) peer(member uint32) (bpf.PeerValue, bool) {
	return read(p, p.Live.Peer, bpf.PeerKey{Member: member})
}

func (p *present) policy(key bpf.PolicyKey) (bpf.PolicyValue, *Entry, bool) {
	v, ok := read(p, p.Live.Policy, key)
	if !ok {
		return v, nil, false
	}
	return v, &Entry{Map: mapPolicy, Key: key.String(), Value: v.String()}, true
}

func (p *present) verdict(key bpf.VerdictKey) (*found, bool) {
	v, ok := read(p, p.Live.Verdict, key)
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
		if other, ok, err := p.Live.Verdict(shorter); err != nil || !ok || other != v {
			break
		}
		key = shorter
	}
	return key
}

func (p *present) config() bpf.ConfigValue {
	v, _, err := p.Live.Config()
	p.err = errors.Join(p.err, err)
	return v
}

func (p *present) egress(ruleset uint32, destination netip.Prefix) (bpf.EgressValue, *Entry, bool) {
	key := bpf.EgressKeyFrom(ruleset, destination)
	v, ok := read(p, p.Live.Egress, key)
	if !ok {
		return v, nil, false
	}
	key = bpf.EgressKeyFrom(ruleset, netip.PrefixFrom(destination.Addr(), int(v.Bits)).Masked())
	return v, &Entry{Map: mapEgress, Key: key.String(), Value: v.String()}, true
}

func (p *present) gateway(key bpf.GatewayKey) (bpf.GatewayValue, bool) {
	return read(p, p.Live.Gateway, key)
}

func (p *present) block(egress bpf.Address) (bpf.BlockValue, bool) {
	return read(p, p.Live.Block, bpf.ExitKey{Addr: egress})
}

func (p *present) covered(prefix netip.Prefix) bool {
	_, ok := read(p, p.Live.Covered, bpf.CoveredKeyFrom(prefix))
	return ok
}
