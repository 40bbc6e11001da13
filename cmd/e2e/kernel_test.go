// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// layoutDir is where maps in slots are pinned.
const layoutDir = "layout_2"

// kernel is where the agent pins maps and links. It is there while agents come and go.
type kernel struct {
	a     *agent
	links string // directory of pinned links
}

func (a *agent) kernel() *kernel { return &kernel{a: a, links: a.pin("links")} }

// kernelMap is a pinned map, read by system calls.
type kernelMap[K comparable, V any] struct{ m *ebpf.Map }

// view are the maps that packets looked into when it was opened: all of one slot.
type view struct {
	pods     kernelMap[bpf.PodKey, bpf.PodValue]
	ipcache  kernelMap[bpf.IPCacheKey, bpf.IPCacheValue]
	sources  kernelMap[bpf.SourceKey, bpf.SourceValue]
	egress   kernelMap[bpf.EgressKey, bpf.EgressValue]
	gateways kernelMap[bpf.GatewayKey, bpf.GatewayValue]
	exits    kernelMap[bpf.ExitKey, bpf.ExitValue]
	covered  kernelMap[bpf.CoveredKey, bpf.CoveredValue]
	nodes    kernelMap[bpf.NodeKey, bpf.NodeValue]
	config   kernelMap[bpf.ConfigKey, bpf.ConfigValue]
}

// views is how often in a row the slots may flip while maps are opened.
const views = 3

// view opens the maps of the slot in force.
func (k *kernel) view() (v *view, err error) {
	for range views {
		var before, after uint64
		if before, err = k.slot(); err != nil {
			return nil, err
		}
		v, err = k.open()
		if after, _ = k.slot(); err == nil && after == before {
			return v, nil
		}
		v.close()
	}
	return nil, errors.Join(errors.New("the maps in force cannot be opened"), err)
}

// slot reads which slot is in force.
func (k *kernel) slot() (slot uint64, err error) {
	m, err := ebpf.LoadPinnedMap(k.a.pin(filepath.Join(layoutDir, bpf.StateMap)), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	return slot, m.Lookup(bpf.StateSlot.Index, &slot)
}

// open opens all maps; what it returns is to be closed even if there is an error.
func (k *kernel) open() (v *view, err error) {
	v = &view{}
	for name, m := range map[string]**ebpf.Map{
		"sluice_pods": &v.pods.m, "sluice_ipcache": &v.ipcache.m, "sluice_sources": &v.sources.m,
		"sluice_egress": &v.egress.m, "sluice_gateways": &v.gateways.m, "sluice_exits": &v.exits.m,
		"sluice_covered": &v.covered.m, "sluice_nodes": &v.nodes.m,
	} {
		var openErr error
		*m, openErr = bpf.OpenInForce(k.a.pin("."), name)
		err = errors.Join(err, openErr)
	}
	var openErr error
	v.config.m, openErr = ebpf.LoadPinnedMap(k.a.pin("sluice_config"), &ebpf.LoadPinOptions{ReadOnly: true})
	return v, errors.Join(err, openErr)
}

func (v *view) close() {
	for _, m := range []*ebpf.Map{
		v.pods.m, v.ipcache.m, v.sources.m, v.egress.m, v.gateways.m, v.exits.m, v.covered.m, v.nodes.m, v.config.m,
	} {
		m.Close()
	}
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
	Exits    map[bpf.ExitKey]bpf.ExitValue
	Covered  map[bpf.CoveredKey]bpf.CoveredValue
	Nodes    map[bpf.NodeKey]bpf.NodeValue
	Config   map[bpf.ConfigKey]bpf.ConfigValue
}

// dump returns all entries of the maps in force.
func (k *kernel) dump() (contents, error) {
	v, err := k.view()
	if err != nil {
		return contents{}, err
	}
	defer v.close()
	return v.dump()
}

// dump returns all entries of all maps. It fails if one changes meanwhile.
func (v *view) dump() (c contents, err error) {
	var errs [9]error
	c.Pods, errs[0] = v.pods.dump()
	c.IPCache, errs[1] = v.ipcache.dump()
	c.Sources, errs[2] = v.sources.dump()
	c.Egress, errs[3] = v.egress.dump()
	c.Gateways, errs[4] = v.gateways.dump()
	c.Exits, errs[5] = v.exits.dump()
	c.Covered, errs[6] = v.covered.dump()
	c.Nodes, errs[7] = v.nodes.dump()
	c.Config, errs[8] = v.config.dump()
	return c, errors.Join(errs[:]...)
}

// decision is what the maps make of packets from src to dst, in any bucket.
func (v *view) decision(src, dst netip.Addr, groups map[uint32]ways) (decision, error) {
	source := bpf.AddressFrom(src)
	pod, local, err := v.pods.lookup(bpf.PodKey{Addr: source})
	if err != nil {
		return decision{}, err
	}
	class, chosen, err := v.sources.lookup(bpf.SourceKey{Addr: source})
	switch {
	case err != nil:
		return decision{}, err
	case !chosen && local && pod.Flags != 0:
		_, covered, err := v.covered.lookup(bpf.CoveredKeyFrom(netip.PrefixFrom(dst, dst.BitLen())))
		if err == nil && covered {
			return decision{kind: held}, nil
		}
		return decision{kind: plain}, err
	case !chosen && local:
		return decision{kind: plain}, nil
	case !chosen:
		return decision{kind: unknown}, nil
	}
	rule, found, err := v.egress.lookup(bpf.EgressKeyFrom(class.Class, netip.PrefixFrom(dst, dst.BitLen())))
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
