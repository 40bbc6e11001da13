// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// kernelMap is a pinned map, read by system calls.
type kernelMap[K comparable, V any] struct{ m *ebpf.Map }

// kernel are the agent's maps. They stay open while agents come and go.
type kernel struct {
	pods     kernelMap[bpf.PodKey, bpf.PodValue]
	ipcache  kernelMap[bpf.IPCacheKey, bpf.IPCacheValue]
	sources  kernelMap[bpf.SourceKey, bpf.SourceValue]
	egress   kernelMap[bpf.EgressKey, bpf.EgressValue]
	gateways kernelMap[bpf.GatewayKey, bpf.GatewayValue]
	classes  kernelMap[bpf.ClassKey, bpf.ClassValue]
	exits    kernelMap[bpf.ExitKey, bpf.ExitValue]
	covered  kernelMap[bpf.CoveredKey, bpf.CoveredValue]
	nodes    kernelMap[bpf.NodeKey, bpf.NodeValue]
	config   kernelMap[bpf.ConfigKey, bpf.ConfigValue]
	links    string // directory of pinned links
}

// kernel opens the maps that the agent has pinned.
func (a *agent) kernel() *kernel {
	a.t.Helper()
	return &kernel{
		pods:     open[bpf.PodKey, bpf.PodValue](a, "sluice_pods"),
		ipcache:  open[bpf.IPCacheKey, bpf.IPCacheValue](a, "sluice_ipcache"),
		sources:  open[bpf.SourceKey, bpf.SourceValue](a, "sluice_sources"),
		egress:   open[bpf.EgressKey, bpf.EgressValue](a, "sluice_egress"),
		gateways: open[bpf.GatewayKey, bpf.GatewayValue](a, "sluice_gateways"),
		classes:  open[bpf.ClassKey, bpf.ClassValue](a, "sluice_classes"),
		exits:    open[bpf.ExitKey, bpf.ExitValue](a, "sluice_exits"),
		covered:  open[bpf.CoveredKey, bpf.CoveredValue](a, "sluice_covered"),
		nodes:    open[bpf.NodeKey, bpf.NodeValue](a, "sluice_nodes"),
		config:   open[bpf.ConfigKey, bpf.ConfigValue](a, "sluice_config"),
		links:    a.pin("links"),
	}
}

func open[K comparable, V any](a *agent, name string) kernelMap[K, V] {
	a.t.Helper()
	m, err := ebpf.LoadPinnedMap(a.pin(name), &ebpf.LoadPinOptions{ReadOnly: true})
	require.NoError(a.t, err)
	a.t.Cleanup(func() { m.Close() })
	return kernelMap[K, V]{m}
}

// lookup finds what the kernel finds: in a prefix map the longest match.
func (m kernelMap[K, V]) lookup(key K) (value V, found bool, err error) {
	err = m.m.Lookup(&key, &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return value, false, nil
	}
	return value, err == nil, err
}

// dump returns all entries.
func (m kernelMap[K, V]) dump() (map[K]V, error) {
	var key K
	var value V
	entries := map[K]V{}
	iterator := m.m.Iterate()
	for iterator.Next(&key, &value) {
		entries[key] = value
	}
	return entries, iterator.Err()
}

// contents are all entries of all maps.
type contents struct {
	Pods     map[bpf.PodKey]bpf.PodValue
	IPCache  map[bpf.IPCacheKey]bpf.IPCacheValue
	Sources  map[bpf.SourceKey]bpf.SourceValue
	Egress   map[bpf.EgressKey]bpf.EgressValue
	Gateways map[bpf.GatewayKey]bpf.GatewayValue
	Classes  map[bpf.ClassKey]bpf.ClassValue
	Exits    map[bpf.ExitKey]bpf.ExitValue
	Covered  map[bpf.CoveredKey]bpf.CoveredValue
	Nodes    map[bpf.NodeKey]bpf.NodeValue
	Config   map[bpf.ConfigKey]bpf.ConfigValue
}

// dump returns all entries of all maps. It fails if one changes meanwhile.
func (k *kernel) dump() (c contents, err error) {
	var errs [10]error
	c.Pods, errs[0] = k.pods.dump()
	c.IPCache, errs[1] = k.ipcache.dump()
	c.Sources, errs[2] = k.sources.dump()
	c.Egress, errs[3] = k.egress.dump()
	c.Gateways, errs[4] = k.gateways.dump()
	c.Classes, errs[5] = k.classes.dump()
	c.Exits, errs[6] = k.exits.dump()
	c.Covered, errs[7] = k.covered.dump()
	c.Nodes, errs[8] = k.nodes.dump()
	c.Config, errs[9] = k.config.dump()
	return c, errors.Join(errs[:]...)
}

// decision is what the maps make of packets from src to dst, in any bucket.
func (k *kernel) decision(src, dst netip.Addr, groups map[uint32]ways) (decision, error) {
	source := bpf.AddressFrom(src)
	pod, local, err := k.pods.lookup(bpf.PodKey{Addr: source})
	if err != nil {
		return decision{}, err
	}
	class, chosen, err := k.sources.lookup(bpf.SourceKey{Addr: source})
	switch {
	case err != nil:
		return decision{}, err
	case !chosen && local && pod.Flags != 0:
		_, covered, err := k.covered.lookup(bpf.CoveredKeyFrom(netip.PrefixFrom(dst, dst.BitLen())))
		if err == nil && covered {
			return decision{kind: held}, nil
		}
		return decision{kind: plain}, err
	case !chosen && local:
		return decision{kind: plain}, nil
	case !chosen:
		return decision{kind: unknown}, nil
	}
	rule, found, err := k.egress.lookup(bpf.EgressKeyFrom(class.Class, netip.PrefixFrom(dst, dst.BitLen())))
	switch {
	case err != nil:
		return decision{}, err
	case !found || rule.Group == bpf.GroupExcluded:
		return decision{kind: plain}, nil
	case groups[rule.Group] == nil:
		return decision{}, fmt.Errorf("%s to %s: class %d leads to group %d, which has no buckets", src, dst, class.Class, rule.Group)
	}
	return decision{kind: redirected, ways: groups[rule.Group].String()}, nil
}

// groups returns the ways out of each gateway group, every bucket of which has
// to be there.
func groups(gateways map[bpf.GatewayKey]bpf.GatewayValue) (map[uint32]ways, error) {
	groups := map[uint32]ways{}
	buckets := map[uint32]int{}
	for key, value := range gateways {
		if groups[key.Group] == nil {
			groups[key.Group] = ways{}
		}
		groups[key.Group][value] = true
		buckets[key.Group]++
	}
	for group, n := range buckets {
		if n != bpf.GatewayBuckets {
			return nil, fmt.Errorf("group %d has %d of its %d buckets", group, n, bpf.GatewayBuckets)
		}
	}
	return groups, nil
}
