// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func values[K comparable](m map[K]uint32) map[uint32]bool {
	set := map[uint32]bool{}
	for _, v := range m {
		set[v] = true
	}
	return set
}

func (d *derivation) isReferred(txn statedb.ReadTxn, k kind, n uint32) bool {
	switch k {
	case aSet:
		return false // it lives only while it is desired
	case aRuleset:
		return some(
			d.SubjectMirror.List(txn, tables.MirrorsTo[bpf.SubjectKey, bpf.SubjectValue](n)),
		)
	case aClass:
		return some(d.PeerMirror.List(txn, tables.MirrorsTo[bpf.PeerKey, bpf.PeerValue](n)))
	case aMember:
		return some(
			d.IPCacheMirror.List(txn, tables.MirrorsTo[bpf.IPCacheKey, bpf.IPCacheValue](n)),
		)
	case aSubject:
		return some(d.PodMirror.List(txn, tables.MirrorsTo[bpf.PodKey, bpf.PodValue](n)))
	case anEgressRuleset:
		return some(d.RouteMirror.List(txn, tables.MirrorsTo[bpf.SubjectKey, bpf.RouteValue](n)))
	}
	return some(d.EgressMirror.List(txn, tables.MirrorsTo[bpf.EgressKey, bpf.EgressValue](n)))
}

func some[R any](rows func(func(R, statedb.Revision) bool)) bool {
	for range rows {
		return true
	}
	return false
}

// check returns what is wrong in the kernel: an entry refers to what is not complete there,
// or a mirror does not tell of one.
func (d *derivation) check(r bpf.Reader) string {
	subjects := maps.Collect(bpf.All[bpf.SubjectKey, bpf.SubjectValue](r, "sluice_subjects"))
	peers := maps.Collect(bpf.All[bpf.PeerKey, bpf.PeerValue](r, "sluice_peers"))
	policy := maps.Collect(bpf.All[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy"))
	size := map[uint32]int{}
	for key := range bpf.All[bpf.VerdictKey, bpf.VerdictValue](r, "sluice_verdicts") {
		size[key.Set]++
	}
	for key, v := range bpf.All[bpf.EgressKey, bpf.EgressValue](r, "sluice_egress") {
		size[key.Ruleset]++
		if _, found := bpf.Get[bpf.GatewayKey, bpf.GatewayValue](r, "sluice_gateways", bpf.GatewayKey{Group: v.Group, Bucket: 255}); v.Group != 0 &&
			!found {
			return fmt.Sprintf("%v leads to group %d, which is not complete", key, v.Group)
		}
	}
	for key, v := range bpf.All[bpf.PodKey, bpf.PodValue](r, "sluice_pods") {
		if _, found := subjects[bpf.SubjectKey{Subject: v.Subject}]; !found {
			return fmt.Sprintf("%v has no entry of its subject %d", key, v.Subject)
		}
	}
	for key, v := range bpf.All[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache") {
		if _, found := peers[bpf.PeerKey{Member: v.Member}]; !found {
			return fmt.Sprintf("%v has no entry of its member %d", key, v.Member)
		}
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	for key, v := range bpf.All[bpf.SubjectKey, bpf.RouteValue](r, "sluice_routes") {
		if n := v.EgressRuleset; size[n] != d.size[n] {
			return fmt.Sprintf("%v leads to egress ruleset %d with %d of %d entries",
				key, n, size[n], d.size[n])
		}
	}
	for _, s := range subjects {
		for _, class := range append(slices.Collect(maps.Values(peers)), bpf.PeerValue{}) {
			for key, set := range d.speaks[[2]uint32{s.Ruleset, class.Class}] {
				if v, found := policy[key]; !found || v.Set != set {
					return fmt.Sprintf("%v is in use and not in the kernel", key)
				}
				if size[set] != d.size[set] {
					return fmt.Sprintf("%v leads to verdict set %d with %d of %d entries",
						key, set, size[set], d.size[set])
				}
			}
		}
	}
	return ""
}

// unmirrored returns an entry that the kernel has and its mirror does not tell of.
func unmirrored[K, V tables.MapPart](
	txn statedb.ReadTxn, r bpf.Reader, name string, mirror statedb.RWTable[*tables.Mirror[K, V]],
) string {
	for key, v := range bpf.All[K, V](r, name) {
		if m, _, found := mirror.Get(txn, tables.MirrorByKey[K, V](key)); !found ||
			!slices.Contains(m.Values(), v) {
			return fmt.Sprintf("%s: the mirror does not tell of %v -> %v", name, key, v)
		}
	}
	return ""
}

func settled[R interface{ GetStatus() reconciler.Status }, K, V tables.MapPart](
	txn statedb.ReadTxn, desired statedb.RWTable[R], mirror statedb.RWTable[*tables.Mirror[K, V]],
) bool {
	for row := range desired.All(txn) {
		if row.GetStatus().Kind != reconciler.StatusKindDone {
			return false
		}
	}
	return desired.NumObjects(txn) == mirror.NumObjects(txn)
}

func (d *derivation) garbage() bool {
	for _, marked := range d.marked {
		for _, is := range marked {
			if is {
				return true
			}
		}
	}
	return false
}
