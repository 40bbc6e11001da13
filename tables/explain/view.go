// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// view is what decisions are looked up in. Each method does a lookup of the programs. A view that
// cannot be read says so in failed, and finds nothing.
type view interface {
	pod(netip.Addr) (bpf.PodValue, bool)
	subject(number uint32) (bpf.SubjectValue, bool)
	route(subject uint32) (bpf.RouteValue, bool)
	known(netip.Prefix) (bpf.IPCacheValue, bool)
	frontend(bpf.FrontendKey) (bpf.FrontendValue, bool)
	peer(member uint32) (bpf.PeerValue, bool)
	policy(bpf.PolicyKey) (bpf.PolicyValue, *Entry, bool)
	verdict(bpf.VerdictKey) (found *found, ok bool)
	config() bpf.ConfigValue
	egress(ruleset uint32, destination netip.Prefix) (bpf.EgressValue, *Entry, bool)
	gateway(bpf.GatewayKey) (bpf.GatewayValue, bool)
	block(egress bpf.Address) (bpf.BlockValue, bool)
	covered(netip.Prefix) bool
	failed() error
}

// found is an entry of the map of verdicts.
type found struct {
	value bpf.VerdictValue
	rules []Rule
	entry *Entry
}

// wanted is the view of the tables.
type wanted struct {
	*Explainer
	txn statedb.ReadTxn
}

func (w *wanted) failed() error { return nil }

// row is the desired value of a map under a key.
type row[K, V any] interface {
	comparable
	MapKey() K
	MapValue() V
	GetStatus() reconciler.Status
}

// valueOf returns the desired value of the row that a query finds.
func valueOf[K, V any, R row[K, V]](
	w *wanted, table statedb.Table[R], query statedb.Query[R],
) (v V, ok bool) {
	r, _, ok := table.Get(w.txn, query)
	if ok {
		v = r.MapValue()
	}
	return v, ok
}

// entryOf returns the desired entry of a row.
func entryOf[K, V fmt.Stringer, R row[K, V]](name string, r R) *Entry {
	status := r.GetStatus()
	return &Entry{
		Map: name, Key: r.MapKey().String(), Value: r.MapValue().String(),
		Status: status.Kind.String(), Error: status.GetError(),
	}
}

func (w *wanted) pod(addr netip.Addr) (bpf.PodValue, bool) {
	return valueOf[bpf.PodKey, bpf.PodValue](w, w.t.Pods, tables.PodByAddr(addr))
}

func (w *wanted) subject(number uint32) (bpf.SubjectValue, bool) {
	return valueOf[bpf.SubjectKey, bpf.SubjectValue](
		w, w.t.Subjects, tables.SubjectByNumber(number),
	)
}

func (w *wanted) route(subject uint32) (bpf.RouteValue, bool) {
	return valueOf[bpf.SubjectKey, bpf.RouteValue](w, w.t.Routes, tables.RouteBySubject(subject))
}

func (w *wanted) known(prefix netip.Prefix) (v bpf.IPCacheValue, ok bool) {
	row := longest(w.txn, w.t.IPCache, tables.IPCacheByPrefix, prefix)
	if row == nil {
		return v, false
	}
	return row.MapValue(), true
}

func (w *wanted) frontend(key bpf.FrontendKey) (bpf.FrontendValue, bool) {
	row, _, found := w.t.Frontends.Get(w.txn, tables.FrontendByKey(key))
	if !found || row.Refused {
		return bpf.FrontendValue{}, false
	}
	return row.MapValue(), true
}

func (w *wanted) peer(member uint32) (bpf.PeerValue, bool) {
	return valueOf[bpf.PeerKey, bpf.PeerValue](w, w.t.Members, tables.MemberByNumber(member))
}

// longest returns the row of the longest prefix that covers one.
func longest[Row comparable](
	txn statedb.ReadTxn, table statedb.Table[Row], query func(netip.Prefix) statedb.Query[Row],
	prefix netip.Prefix,
) (none Row) {
	for bits := prefix.Bits(); bits >= 0; bits-- {
		if row, _, ok := table.Get(txn, query(netip.PrefixFrom(prefix.Addr(), bits).Masked())); ok {
			return row
		}
	}
	return none
}

func (w *wanted) policy(key bpf.PolicyKey) (v bpf.PolicyValue, e *Entry, ok bool) {
	row, _, ok := w.t.Entries.Get(w.txn, tables.PolicyEntryByKey(key))
	if !ok {
		return v, nil, false
	}
	return row.MapValue(), entryOf[bpf.PolicyKey, bpf.PolicyValue](mapPolicy, row), true
}

func (w *wanted) verdict(key bpf.VerdictKey) (*found, bool) {
	for around := range verdicts.Around(key) {
		if row, _, ok := w.t.Verdicts.Get(w.txn, tables.VerdictByKey(around)); ok {
			return &found{
				row.Value, rulesBy(row.Rules, row.Value),
				entryOf[bpf.VerdictKey, bpf.VerdictValue](mapVerdicts, row),
			}, true
		}
	}
	return nil, false
}

const (
	mapPolicy   = "sluice_policy"
	mapVerdicts = "sluice_verdicts"
	mapEgress   = "sluice_egress"
)

func (w *wanted) config() (v bpf.ConfigValue) {
	if row, _, ok := w.t.Configs.Get(w.txn, tables.DatapathConfigByIndex(0)); ok {
		v = row.MapValue()
	}
	return v
}

func (w *wanted) egress(
	ruleset uint32, destination netip.Prefix,
) (v bpf.EgressValue, e *Entry, ok bool) {
	row := w.egressRule(ruleset, destination)
	if row == nil {
		return v, nil, false
	}
	return row.MapValue(), entryOf[bpf.EgressKey, bpf.EgressValue](mapEgress, row), true
}

func (w *wanted) egressRule(ruleset uint32, destination netip.Prefix) *tables.EgressRule {
	return longest(w.txn, w.t.EgressRules, func(p netip.Prefix) statedb.Query[*tables.EgressRule] {
		return tables.EgressRuleByKey(tables.EgressRuleKey{Ruleset: ruleset, Destination: p})
	}, destination)
}

func (w *wanted) gateway(key bpf.GatewayKey) (bpf.GatewayValue, bool) {
	return valueOf[bpf.GatewayKey, bpf.GatewayValue](
		w, w.t.Gateways, tables.EgressGatewayByKey(key),
	)
}

func (w *wanted) block(egress bpf.Address) (bpf.BlockValue, bool) {
	return valueOf[bpf.ExitKey, bpf.BlockValue](
		w, w.t.Blocks, tables.EgressBlockByAddr(egress.Addr()),
	)
}

func (w *wanted) covered(prefix netip.Prefix) bool {
	return longest(w.txn, w.t.Covered, tables.CoveredPrefixByPrefix, prefix) != nil
}
