// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/sluice-net/sluice/bpf"
)

// Numbers of the world of a [Node].
const (
	Plain          = 1 // subject of pods that no policy selects
	Routed         = 2 // subject of pods that an egress policy selects
	NoSelector     = 1 // member and class of addresses that no rule selects as peers
	EgressRuleset  = 7 // of subject Routed
	Group          = 3 // gateway group of the policy
	VNI            = 7
	MarkShift      = 12
	MarkMask       = 3 << MarkShift
	MarkChecked    = 1 << MarkShift
	MarkTranslated = 2 << MarkShift
	MarkService    = 3 << MarkShift
	Generation     = 1<<31 + 5
	SharedFirst    = 20000
	SharedLast     = 20031
	LifetimeTCP    = 8000
	LifetimeAny    = 60
	LifetimeSYN    = 61 // not 60, so that a test sees which is used
	LifetimeStop   = 10
	Report         = 5
)

// Node has the programs loaded, with maps of their own, in a network namespace
// with the devices that they need.
type Node struct {
	*namespace
	programs *ebpf.Collection
	spec     *ebpf.CollectionSpec
	slots    [bpf.Slots]map[string]*ebpf.Map // by the names of the maps that they are in
	slot     map[string]*ebpf.Map            // that is active
	events   *ringbuf.Reader
	out      []byte
	Config   bpf.ConfigValue // as last written
}

// sizes of the maps, where what the programs declare is too small.
const (
	agentEntries  = 1 << 16
	packetEntries = 1 << 18
)

// NewNode loads the programs. The maps have the contents of [Node.Reset].
func NewNode(spec *ebpf.CollectionSpec) (*Node, error) { return NewNodeWith(spec, nil) }

// NewNodeWith is the same with so many entries in some maps, by their names.
func NewNodeWith(spec *ebpf.CollectionSpec, entries map[string]uint32) (*Node, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	n := &Node{namespace: ns, out: make([]byte, 1<<17)}
	if err := n.load(spec.Copy(), entries); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) load(spec *ebpf.CollectionSpec, entries map[string]uint32) (err error) {
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		switch {
		case entries[name] != 0:
			m.MaxEntries = entries[name]
		case m.Type == ebpf.LRUHash:
			m.MaxEntries = packetEntries
		case m.Type == ebpf.Hash || m.Type == ebpf.LPMTrie:
			m.MaxEntries = agentEntries
		}
	}
	if err := instrument(spec); err != nil {
		return err
	}
	if n.programs, err = ebpf.NewCollection(spec); err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	n.spec = spec
	if err := n.UseSlot(activeSlot); err != nil {
		return err
	}
	if n.events, err = ringbuf.NewReader(n.Map("sluice_events")); err != nil {
		return fmt.Errorf("open events: %w", err)
	}
	return n.Reset()
}

// Close ends what [NewNode] made.
func (n *Node) Close() {
	if n.events != nil {
		n.events.Close()
	}
	if n.programs != nil {
		n.programs.Close()
	}
	for _, slot := range n.slots {
		closeSlot(slot)
	}
	n.namespace.close()
}

// Map returns a map of the programs; of those in slots that of the active slot.
func (n *Node) Map(name string) *ebpf.Map {
	if m := n.slot[name]; m != nil {
		return m
	}
	m := n.programs.Maps[name]
	if m == nil {
		panic("no map " + name)
	}
	return m
}

// Program returns a program.
func (n *Node) Program(name string) *ebpf.Program { return n.programs.Programs[name] }

// Index returns the number of a device.
func (n *Node) Index(device string) uint32 { return uint32(n.devices[device].Attrs().Index) }

// MAC returns the address of a device.
func (n *Node) MAC(device string) MAC { return MAC(n.devices[device].Attrs().HardwareAddr) }

// Within runs a function in the network namespace of the node.
func (n *Node) Within(f func() error) error { return n.do(f) }

// Reset empties the maps and writes what is so on a node where no egress policy
// selects a pod: its pods, the cluster, the configuration.
func (n *Node) Reset() error {
	err := errors.Join(n.UseSlot(activeSlot), n.emptySlots(), n.forgetDecided(), n.forgetTraffic())
	if err != nil {
		return err
	}
	for name := range n.programs.Maps {
		m := n.Map(name)
		switch name {
		case bpf.RuleSlotsMap, bpf.DecidedMap, bpf.TrafficOwnersMap, bpf.TrafficCountsMap:
			continue // large, and nearly empty
		}
		if name == ".rodata" {
			continue // constants
		}
		if err := n.empty(m); err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
	}
	if _, err := n.Events(); err != nil {
		return err
	}
	if err := n.SetRoom(packetEntries); err != nil {
		return err
	}
	if err := n.SetConfig(n.defaultConfig()); err != nil {
		return err
	}
	if err := n.SetGeneration(Generation); err != nil {
		return err
	}
	if err := n.SetOverlayKeys(true); err != nil {
		return err
	}
	for _, w := range []Addresses{World4, World6} {
		if err := n.fill(w); err != nil {
			return err
		}
	}
	return nil
}

// SetRoom says how many entries each map of connections and translations may have for pods
// to share, whatever its size.
func (n *Node) SetRoom(entries uint32) error {
	var rooms [bpf.LimitedMaps]uint32
	for i := range rooms {
		rooms[i] = entries
	}
	return bpf.SetRooms(n.Map(bpf.SharesMap), rooms)
}

// SetOverlayKeys writes the keys of the overlay. There is none after a Reset, and packets without
// a proof are accepted.
func (n *Node) SetOverlayKeys(acceptUnsigned bool, keys ...bpf.OverlayKey) error {
	value := bpf.NewOverlayKeysValue(keys, acceptUnsigned)
	return n.Map("sluice_keys").Put(bpf.OverlayKeysKey{}, &value)
}

// SetGeneration begins a generation.
func (n *Node) SetGeneration(generation uint32) error {
	var state bpf.StateValue
	if err := n.Map(bpf.StateMap).Lookup(bpf.StateKey{}, &state); err != nil {
		return err
	}
	state.Generation = generation
	return n.Map(bpf.StateMap).Put(bpf.StateKey{}, state)
}

func (n *Node) defaultConfig() bpf.ConfigValue {
	return bpf.ConfigValue{
		Underlay:       bpf.AddressFrom(World4.NodeIP),
		OverlayIfIndex: n.Index(OverlayDevice),
		VNI:            VNI,
		Flags:          bpf.ConfigStrictSource | bpf.ConfigBackstop | bpf.ConfigFlowEvents,
		MarkMask:       MarkMask, MarkShift: MarkShift, OverlayPort: 8474,
		LifetimeTCP: LifetimeTCP, LifetimeAny: LifetimeAny, LifetimeSYN: LifetimeSYN,
		LifetimeClosing: LifetimeStop, ReportInterval: Report,
		SharedPorts: [bpf.SharedPortRanges]bpf.PortRange{
			{First: SharedFirst, Last: SharedFirst + 15}, {First: SharedLast - 15, Last: SharedLast},
		},
	}
}

// SetShares sets what pods may have, in percent of what is free.
func (n *Node) SetShares(connections, ports uint16) error {
	c := n.Config
	c.ConnectionShare, c.PortShare = connections, ports
	return n.SetConfig(c)
}

// Share returns how many entries of a map a pod has, or all if it is the zero address.
func (n *Node) Share(pod netip.Addr, limited, reached uint32) (uint32, error) {
	var v bpf.ShareValue
	key := bpf.ShareKey{Pod: bpf.AddressFrom(pod), Map: limited, Reached: reached}
	err := n.Map(bpf.SharesMap).Lookup(key, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	return v.Used, err
}

// AddFlags sets flags of the configuration.
func (n *Node) AddFlags(flags bpf.ConfigFlags) error {
	c := n.Config
	c.Flags |= flags
	return n.SetConfig(c)
}

// SetConfig writes the configuration.
func (n *Node) SetConfig(c bpf.ConfigValue) error {
	n.Config = c
	return n.Map("sluice_config").Put(uint32(0), &c)
}

func (n *Node) fill(w Addresses) error {
	steps := []error{
		n.SetSubject(Plain, bpf.EmptyRuleset), n.SetSubject(Routed, bpf.EmptyRuleset),
		n.SetMember(NoSelector, NoSelector),
		n.SetPod(w.Pod, n.LocalPod(Plain)),
		n.SetPod(w.OtherPod, bpf.PodValue{
			Subject: Plain, IfIndex: n.Index(OtherPodDevice), Flags: bpf.PodLocal, MAC: OtherPodMAC,
		}),
		n.SetIPCache(netip.PrefixFrom(w.Pod, 0).Masked(), 0, netip.Addr{}),
		n.SetIPCache(w.Cluster, bpf.IPCacheInCluster, netip.Addr{}),
		n.SetIPCache(w.Services, bpf.IPCacheInCluster|bpf.IPCacheService, netip.Addr{}),
		n.SetIPCache(host(w.Pod), bpf.IPCacheInCluster|bpf.IPCachePod, netip.Addr{}),
		n.SetIPCache(host(w.OtherPod), bpf.IPCacheInCluster|bpf.IPCachePod, netip.Addr{}),
		n.SetIPCache(host(w.RemotePod), bpf.IPCacheInCluster|bpf.IPCachePod, World4.SecondNode),
		n.SetIPCache(host(w.NodeIP), bpf.IPCacheInCluster|bpf.IPCacheNode|bpf.IPCacheHost, netip.Addr{}),
		n.SetIPCache(host(w.SecondNode), bpf.IPCacheInCluster|bpf.IPCacheNode, netip.Addr{}),
		n.SetIPCache(host(w.ThirdNode), bpf.IPCacheInCluster|bpf.IPCacheNode, netip.Addr{}),
		n.SetIPCache(host(w.SharedEgress), bpf.IPCacheHost, netip.Addr{}),
		n.SetIPCache(host(w.Egress), bpf.IPCacheHost, netip.Addr{}),
		n.SetNode(w.NodeIP, bpf.NodeAlive), n.SetNode(w.SecondNode, bpf.NodeAlive),
		n.SetNode(w.ThirdNode, bpf.NodeAlive),
		n.SetExit(w.Egress, bpf.ExitValue{IfIndex: n.Index(EgressDevice)}),
		n.SetExit(w.SharedEgress, bpf.ExitValue{IfIndex: n.Index(EgressDevice), Flags: bpf.ExitShared}),
	}
	for _, p := range w.LocalScope {
		steps = append(steps, n.SetIPCache(p, bpf.IPCacheLocalScope, netip.Addr{}))
	}
	for _, err := range steps {
		if err != nil {
			return err
		}
	}
	return nil
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
