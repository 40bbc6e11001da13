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
const layoutDir = "layout_4"

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
	subjects kernelMap[bpf.SubjectKey, bpf.SubjectValue]
	routes   kernelMap[bpf.SubjectKey, bpf.RouteValue]
	peers    kernelMap[bpf.PeerKey, bpf.PeerValue]
	policy   kernelMap[bpf.PolicyKey, bpf.PolicyValue]
	verdicts kernelMap[bpf.VerdictKey, bpf.VerdictValue]
	egress   kernelMap[bpf.EgressKey, bpf.EgressValue]
	gateways kernelMap[bpf.GatewayKey, bpf.GatewayValue]
	exits    kernelMap[bpf.ExitKey, bpf.ExitValue]
	covered  kernelMap[bpf.CoveredKey, bpf.CoveredValue]
	nodes    kernelMap[bpf.NodeKey, bpf.NodeValue]
	config   kernelMap[bpf.ConfigKey, bpf.ConfigValue]
}

// inSlots are the maps of a view of which each agent fills others.
func (v *view) inSlots() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		"sluice_pods": &v.pods.m, "sluice_ipcache": &v.ipcache.m, "sluice_subjects": &v.subjects.m,
		"sluice_routes": &v.routes.m, "sluice_peers": &v.peers.m, "sluice_policy": &v.policy.m,
		"sluice_verdicts": &v.verdicts.m, "sluice_egress": &v.egress.m,
		"sluice_gateways": &v.gateways.m,
	}
}

// inNoSlot are the other maps of a view.
func (v *view) inNoSlot() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		"sluice_exits": &v.exits.m, "sluice_covered": &v.covered.m, "sluice_nodes": &v.nodes.m,
		"sluice_config": &v.config.m,
	}
}

// views is how often in a row the slots may flip while maps are opened.
const views = 3

// view opens the maps of the active slot.
func (k *kernel) view() (v *view, err error) {
	for range views {
		var before, after bpf.StateValue
		if before, err = k.state(); err != nil {
			return nil, err
		}
		v, err = k.open()
		if after, _ = k.state(); err == nil && after.Slot == before.Slot {
			return v, nil
		}
		v.close()
	}
	return nil, errors.Join(errors.New("the maps in force cannot be opened"), err)
}

// state reads which slot is active, and which generation.
func (k *kernel) state() (state bpf.StateValue, err error) {
	path := k.a.pin(filepath.Join(layoutDir, bpf.StateMap))
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return state, err
	}
	defer m.Close()
	return state, m.Lookup(bpf.StateKey{}, &state)
}

// open opens all maps; what it returns is to be closed even if there is an error.
func (k *kernel) open() (v *view, err error) {
	v = &view{}
	open := func(to **ebpf.Map, m *ebpf.Map, openErr error) {
		*to, err = m, errors.Join(err, openErr)
	}
	for name, to := range v.inSlots() {
		m, openErr := bpf.OpenActive(k.a.pin("."), name)
		open(to, m, openErr)
	}
	for name, to := range v.inNoSlot() {
		m, openErr := ebpf.LoadPinnedMap(k.a.pin(name), &ebpf.LoadPinOptions{ReadOnly: true})
		open(to, m, openErr)
	}
	return v, err
}

func (v *view) close() {
	for _, maps := range []map[string]**ebpf.Map{v.inSlots(), v.inNoSlot()} {
		for _, m := range maps {
			(*m).Close()
		}
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
	Subjects map[bpf.SubjectKey]bpf.SubjectValue
	Routes   map[bpf.SubjectKey]bpf.RouteValue
	Peers    map[bpf.PeerKey]bpf.PeerValue
	Policy   map[bpf.PolicyKey]bpf.PolicyValue
	Verdicts map[bpf.VerdictKey]bpf.VerdictValue
	Egress   map[bpf.EgressKey]bpf.EgressValue
	Gateways map[bpf.GatewayKey]bpf.GatewayValue
	Exits    map[bpf.ExitKey]bpf.ExitValue
	Covered  map[bpf.CoveredKey]bpf.CoveredValue
	Nodes    map[bpf.NodeKey]bpf.NodeValue
	Config   map[bpf.ConfigKey]bpf.ConfigValue
}

// dump returns all entries of the active maps.
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
	var errs [13]error
	c.Pods, errs[0] = v.pods.dump()
	c.IPCache, errs[1] = v.ipcache.dump()
	c.Subjects, errs[2] = v.subjects.dump()
	c.Routes, errs[3] = v.routes.dump()
	c.Peers, errs[4] = v.peers.dump()
	c.Policy, errs[5] = v.policy.dump()
	c.Verdicts, errs[6] = v.verdicts.dump()
	c.Egress, errs[7] = v.egress.dump()
	c.Gateways, errs[8] = v.gateways.dump()
	c.Exits, errs[9] = v.exits.dump()
	c.Covered, errs[10] = v.covered.dump()
	c.Nodes, errs[11] = v.nodes.dump()
	c.Config, errs[12] = v.config.dump()
	return c, errors.Join(errs[:]...)
}

// decision is what the maps make of packets from src to dst, in any bucket.
func (v *view) decision(src, dst netip.Addr, groups map[uint32]ways) (decision, error) {
	pod, found, err := v.pods.lookup(bpf.PodKey{Addr: bpf.AddressFrom(src)})
	switch {
	case err != nil:
		return decision{}, err
	case !found:
		return decision{kind: unknown}, nil
	case pod.Subject == 0:
		_, covered, err := v.covered.lookup(bpf.CoveredKeyFrom(netip.PrefixFrom(dst, dst.BitLen())))
		if err == nil && covered {
			return decision{kind: held}, nil
		}
		return decision{kind: plain}, err
	}
	route, selected, err := v.routes.lookup(bpf.SubjectKey{Subject: pod.Subject})
	if err != nil || !selected {
		return decision{kind: plain}, err
	}
	rule, found, err := v.egress.lookup(
		bpf.EgressKeyFrom(route.EgressRuleset, netip.PrefixFrom(dst, dst.BitLen())))
	switch {
	case err != nil:
		return decision{}, err
	case !found || rule.Group == bpf.GroupExcluded:
		return decision{kind: plain}, nil
	case groups[rule.Group] == nil:
		return decision{}, fmt.Errorf("%s to %s: ruleset %d leads to group %d, which has no buckets",
			src, dst, route.EgressRuleset, rule.Group)
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
