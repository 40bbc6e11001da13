// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"errors"
	"hash/fnv"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// memoryPatience is how long a write waits for memory of the kernel.
const memoryPatience = time.Minute

// whileNoMemory writes to a map whose entries the kernel allocates when they are written.
// It takes them from a cache that it fills in the background, without waiting for memory
// that others have to give back: on a busy machine it has none for a moment.
func whileNoMemory(write func() error) error {
	for deadline := time.Now().Add(memoryPatience); ; time.Sleep(time.Millisecond) {
		if err := write(); !errors.Is(err, unix.ENOMEM) || time.Now().After(deadline) {
			return err
		}
	}
}

// put writes an entry that an agent would write.
func (n *Node) put(name string, key, value any) error {
	return whileNoMemory(func() error { return n.Map(name).Put(key, value) })
}

// SetPod writes a pod: one of the node if its flags say so.
func (n *Node) SetPod(a netip.Addr, v bpf.PodValue) error {
	return n.put("sluice_pods", &bpf.PodKey{Addr: bpf.AddressFrom(a)}, &v)
}

// LocalPod returns what is written of the pod at [PodDevice].
func (n *Node) LocalPod(subject uint32) bpf.PodValue {
	return bpf.PodValue{
		Subject: subject, IfIndex: n.Index(PodDevice), Flags: bpf.PodLocal, MAC: PodMAC,
	}
}

// SetRemotePod writes a pod of another node, that an egress policy selects.
func (n *Node) SetRemotePod(a netip.Addr) error {
	return errors.Join(
		n.SetRoute(Routed, EgressRuleset), n.SetPod(a, bpf.PodValue{Subject: Routed}),
	)
}

// RemovePod removes a pod.
func (n *Node) RemovePod(a netip.Addr) error {
	return n.Map("sluice_pods").Delete(bpf.PodKey{Addr: bpf.AddressFrom(a)})
}

// SetIPCache writes what is known of a prefix.
func (n *Node) SetIPCache(p netip.Prefix, flags bpf.IPCacheFlags, tunnel netip.Addr) error {
	key := bpf.IPCacheKeyFrom(p)
	return n.put("sluice_ipcache", &key, &bpf.IPCacheValue{
		Member: NoSelector, Flags: flags, Tunnel: bpf.AddressFrom(tunnel),
	})
}

// SetFrontend writes a port that is translated.
func (n *Node) SetFrontend(k bpf.FrontendKey, v bpf.FrontendValue) error {
	return n.put("sluice_services", &k, &v)
}

// SetNode writes a node of the cluster.
func (n *Node) SetNode(a netip.Addr, flags bpf.NodeFlags) error {
	return n.put("sluice_nodes", &bpf.NodeKey{Addr: bpf.AddressFrom(a)}, &bpf.NodeValue{Flags: flags})
}

// SetDevice writes the pod that a device leads to.
func (n *Node) SetDevice(device string, a netip.Addr) error {
	return n.put("sluice_devices", &bpf.DeviceKey{IfIndex: n.Index(device)},
		&bpf.DeviceValue{Addr: bpf.AddressFrom(a)})
}

// SetExit writes an egress address of the node.
func (n *Node) SetExit(a netip.Addr, v bpf.ExitValue) error {
	return n.put("sluice_exits", &bpf.ExitKey{Addr: bpf.AddressFrom(a)}, &v)
}

// Cover writes a destination of some egress policy.
func (n *Node) Cover(p netip.Prefix) error {
	key := bpf.CoveredKeyFrom(p)
	return n.put("sluice_covered", &key, &bpf.CoveredValue{Covered: 1})
}

// SetSubject writes the ruleset of a subject.
func (n *Node) SetSubject(subject, ruleset uint32) error {
	return n.put(
		"sluice_subjects", &bpf.SubjectKey{Subject: subject}, &bpf.SubjectValue{Ruleset: ruleset},
	)
}

// SetRoute writes the egress ruleset of a subject.
func (n *Node) SetRoute(subject, ruleset uint32) error {
	return n.put(
		"sluice_routes", &bpf.SubjectKey{Subject: subject}, &bpf.RouteValue{EgressRuleset: ruleset},
	)
}

// RemoveRoute takes a subject's egress ruleset away.
func (n *Node) RemoveRoute(subject uint32) error {
	return absent(n.Map("sluice_routes").Delete(&bpf.SubjectKey{Subject: subject}))
}

// EgressPolicy is the name of the policy whose rules [Node.SetEgress] writes.
const EgressPolicy = "policy"

// SetEgress writes the gateway group of a destination of an egress ruleset.
func (n *Node) SetEgress(ruleset uint32, p netip.Prefix, group uint32) error {
	key := bpf.EgressKeyFrom(ruleset, p)
	return n.put("sluice_egress", &key, &bpf.EgressValue{
		Group: group, Bits: uint8(p.Bits()), Policy: bpf.PolicyCookie(EgressPolicy),
	})
}

// RemoveEgress takes a destination of an egress ruleset away.
func (n *Node) RemoveEgress(ruleset uint32, p netip.Prefix) error {
	key := bpf.EgressKeyFrom(ruleset, p)
	return absent(n.Map("sluice_egress").Delete(&key))
}

// SetGateway writes one gateway for all sources of a group.
func (n *Node) SetGateway(group uint32, v bpf.GatewayValue) error {
	for bucket := range uint32(bpf.GatewayBuckets) {
		if err := n.SetBucket(group, bucket, v); err != nil {
			return err
		}
	}
	return nil
}

// SetBucket writes the gateway of one bucket of a group.
func (n *Node) SetBucket(group, bucket uint32, v bpf.GatewayValue) error {
	return n.put("sluice_gateways", &bpf.GatewayKey{Group: group, Bucket: bucket}, &v)
}

// Bucket returns the bucket of a source.
func Bucket(source netip.Addr) uint32 {
	h := fnv.New32a()
	b := source.As16()
	h.Write(b[:])
	return h.Sum32() % bpf.GatewayBuckets
}

// Here returns the gateway row of a group whose gateway is the node itself.
func (n *Node) Here(egress ...netip.Addr) bpf.GatewayValue {
	v := bpf.GatewayValue{Gateway: n.Config.Underlay, IfIndex: n.Index(EgressDevice)}
	for _, a := range egress {
		if a.Is4() {
			v.Egress4 = a.As4()
		} else {
			v.Egress6 = bpf.AddressFrom(a)
		}
	}
	return v
}

// Select makes an egress policy select the pod of a world, with a gateway.
func (n *Node) Select(w Addresses, v bpf.GatewayValue) error {
	return errors.Join(
		n.Cover(w.Covered),
		n.SetEgress(EgressRuleset, w.Covered, Group),
		n.SetEgress(EgressRuleset, w.CoveredExclusion, bpf.GroupExcluded),
		n.SetGateway(Group, v),
		n.SetRoute(Routed, EgressRuleset),
		n.SetPod(w.Pod, n.LocalPod(Routed)),
		n.SetGeneration(Generation+1),
	)
}

func absent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Clear removes what is in a map.
func (n *Node) Clear(name string) error { return n.empty(n.Map(name)) }

// empty removes what is in a map.
func (n *Node) empty(m *ebpf.Map) error {
	switch m.Type() {
	case ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie, ebpf.PerCPUHash:
		return emptyHash(m)
	case ebpf.Array:
		for i := range m.MaxEntries() {
			if err := m.Put(i, make([]byte, m.ValueSize())); err != nil {
				return err
			}
		}
	case ebpf.PerCPUArray:
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			return err
		}
		zero := make([][]byte, cpus)
		for i := range zero {
			zero[i] = make([]byte, m.ValueSize())
		}
		for i := range m.MaxEntries() {
			if err := m.Put(i, zero); err != nil {
				return err
			}
		}
	}
	return nil
}

func emptyHash(m *ebpf.Map) error {
	var keys [][]byte
	for {
		key, err := m.NextKeyBytes(lastOf(keys))
		if err != nil {
			return err
		}
		if key == nil {
			break
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		if err := absent(m.Delete(key)); err != nil {
			return err
		}
	}
	return nil
}

func lastOf(keys [][]byte) any {
	if len(keys) == 0 {
		return nil
	}
	return keys[len(keys)-1]
}

// memberOf is the number of a member of a class: classes and members are not the same.
func memberOf(class uint32) uint32 { return 1000 + class }

// SetPeer writes what is known of a prefix, with a class of its own.
func (n *Node) SetPeer(p netip.Prefix, class uint32, flags bpf.IPCacheFlags) error {
	key := bpf.IPCacheKeyFrom(p)
	return errors.Join(
		n.SetMember(memberOf(class), class),
		n.put("sluice_ipcache", &key, &bpf.IPCacheValue{Member: memberOf(class), Flags: flags}),
	)
}

// SetMember writes the class of a member.
func (n *Node) SetMember(member, class uint32) error {
	return n.put("sluice_peers", &bpf.PeerKey{Member: member}, &bpf.PeerValue{Class: class})
}

// SetPolicy writes the verdict set of a ruleset and a class.
func (n *Node) SetPolicy(k bpf.PolicyKey, set uint32) error {
	return n.put("sluice_policy", &k, &bpf.PolicyValue{Set: set})
}

// RemovePolicy takes such an entry away.
func (n *Node) RemovePolicy(k bpf.PolicyKey) error {
	return absent(n.Map("sluice_policy").Delete(&k))
}

// SetVerdict writes a verdict of a set.
func (n *Node) SetVerdict(k bpf.VerdictKey, v bpf.VerdictValue) error {
	return n.put("sluice_verdicts", &k, &v)
}

// RemoveVerdict takes a verdict away.
func (n *Node) RemoveVerdict(k bpf.VerdictKey) error {
	return absent(n.Map("sluice_verdicts").Delete(&k))
}

// forgetDecided removes the counters of all rules.
func (n *Node) forgetDecided() error {
	counts, found := bpf.RuleCountsOf(func(name string) *ebpf.Map { return n.programs.Maps[name] })
	if !found { // programs of before there were any
		return nil
	}
	all, err := counts.Read()
	for cookie := range all {
		err = errors.Join(err, counts.Remove(cookie))
	}
	return err
}

// forgetTraffic removes the counters of translated traffic.
func (n *Node) forgetTraffic() error {
	counts, found := bpf.TrafficCountsOf(func(name string) *ebpf.Map { return n.programs.Maps[name] })
	if !found { // programs of before there were any
		return nil
	}
	all, err := counts.Read()
	for _, t := range all {
		err = errors.Join(err, counts.Remove(t))
	}
	taken, readErr := counts.Taken()
	for _, counter := range taken {
		err = errors.Join(err, counts.Free(counter, 0))
	}
	return errors.Join(err, readErr)
}

// Traffic returns what has been translated, by policies and egress addresses.
func (n *Node) Traffic() ([]bpf.Traffic, error) {
	counts, _ := bpf.TrafficCountsOf(n.Map)
	return counts.Read()
}

// Decided returns what the rules with a cookie have decided.
func (n *Node) Decided(cookie uint32) (bpf.Metric, error) {
	counts, _ := bpf.RuleCountsOf(n.Map)
	all, err := counts.Read()
	return all[cookie], err
}
