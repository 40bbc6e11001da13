// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
)

// view is what decisions are looked up in. Each method does what a look-up of
// the programs does. A view that cannot be read says so in failed, and finds nothing.
type view interface {
	pod(netip.Addr) (bpf.PodValue, bool)
	peer(netip.Prefix) (bpf.IPCacheValue, bool)
	policy(bpf.PolicyKey) (found *found, ok bool)
	config() bpf.ConfigValue
	source(netip.Addr) (bpf.SourceValue, bool)
	egress(class uint32, destination netip.Prefix) (bpf.EgressValue, *Entry, bool)
	gateway(bpf.GatewayKey) (bpf.GatewayValue, bool)
	covered(netip.Prefix) bool
	failed() error
}

// found is an entry of the map of policies. What it stands for is asked of the
// one that decides only.
type found struct {
	value   bpf.PolicyValue
	explain func() ([]Rule, *Entry)
}

// wanted is the view of the tables.
type wanted struct {
	*Explainer
	txn statedb.ReadTxn
}

func (w *wanted) failed() error { return nil }

func (w *wanted) pod(addr netip.Addr) (v bpf.PodValue, ok bool) {
	row, _, ok := w.t.Locals.Get(w.txn, tables.LocalEndpointByAddr(addr))
	if ok {
		v = row.MapValue()
	}
	return v, ok
}

func (w *wanted) peer(prefix netip.Prefix) (v bpf.IPCacheValue, ok bool) {
	row := longest(w.txn, w.t.IPCache, tables.IPCacheByPrefix, prefix)
	if row == nil {
		return v, false
	}
	return row.MapValue(), true
}

// longest returns the row of the longest prefix that covers one.
func longest[Row comparable](txn statedb.ReadTxn, table statedb.Table[Row], query func(netip.Prefix) statedb.Query[Row], prefix netip.Prefix) (none Row) {
	for bits := prefix.Bits(); bits >= 0; bits-- {
		if row, _, ok := table.Get(txn, query(netip.PrefixFrom(prefix.Addr(), bits).Masked())); ok {
			return row
		}
	}
	return none
}

func (w *wanted) policy(key bpf.PolicyKey) (*found, bool) {
	for cover := range policy.Covering(key) {
		if row, _, ok := w.t.Entries.Get(w.txn, tables.PolicyEntryByKey(cover)); ok {
			return &found{row.Value, func() ([]Rule, *Entry) {
				return w.rulesOf(w.txn, row), &Entry{
					Map: mapPolicy, Key: row.Key.String(), Value: row.Value.String(),
					Status: row.Status.Kind.String(), Error: row.Status.GetError(),
				}
			}}, true
		}
	}
	return nil, false
}

const (
	mapPolicy = "sluice_policy"
	mapEgress = "sluice_egress"
)

func (w *wanted) config() (v bpf.ConfigValue) {
	if row, _, ok := w.t.Configs.Get(w.txn, tables.DatapathConfigByIndex(0)); ok {
		v = row.MapValue()
	}
	return v
}

func (w *wanted) source(addr netip.Addr) (v bpf.SourceValue, ok bool) {
	row, _, ok := w.t.Sources.Get(w.txn, tables.EgressSourceByAddr(addr))
	if ok {
		v = row.MapValue()
	}
	return v, ok
}

func (w *wanted) egress(class uint32, destination netip.Prefix) (v bpf.EgressValue, e *Entry, ok bool) {
	row := w.egressRule(class, destination)
	if row == nil {
		return v, nil, false
	}
	return row.MapValue(), &Entry{
		Map: mapEgress, Key: row.MapKey().String(), Value: row.MapValue().String(),
		Status: row.Status.Kind.String(), Error: row.Status.GetError(),
	}, true
}

func (w *wanted) egressRule(class uint32, destination netip.Prefix) *tables.EgressRule {
	for bits := destination.Bits(); bits >= 0; bits-- {
		row, _, ok := w.t.EgressRules.Get(w.txn, tables.EgressRuleByKey(class, netip.PrefixFrom(destination.Addr(), bits).Masked()))
		if ok {
			return row
		}
	}
	return nil
}

func (w *wanted) gateway(key bpf.GatewayKey) (v bpf.GatewayValue, ok bool) {
	row, _, ok := w.t.Gateways.Get(w.txn, tables.EgressGatewayByKey(key))
	if ok {
		v = row.MapValue()
	}
	return v, ok
}

func (w *wanted) covered(prefix netip.Prefix) bool {
	return longest(w.txn, w.t.Covered, tables.CoveredPrefixByPrefix, prefix) != nil
}
