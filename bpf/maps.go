// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// Maps are the maps of the agent. They are open while it runs.
type Maps struct {
	Pods     Map[PodKey, PodValue]         // pods of this node, and those it may be the gateway of
	IPCache  Map[IPCacheKey, IPCacheValue] // what is known of an address or prefix
	Subjects Map[SubjectKey, SubjectValue] // ruleset of a subject
	Routes   Map[SubjectKey, RouteValue]   // egress ruleset of a subject
	Peers    Map[PeerKey, PeerValue]       // class of a member
	Policy   Map[PolicyKey, PolicyValue]   // verdict set of a ruleset and a class
	Verdicts Map[VerdictKey, VerdictValue] // verdicts of a verdict set
	Egress   Map[EgressKey, EgressValue]   // gateway group of an egress ruleset's destinations
	Gateways Map[GatewayKey, GatewayValue] // gateways of a group

	Frontends Map[FrontendKey, FrontendValue] // what is translated to backends

	Exits   Map[ExitKey, ExitValue]               // egress addresses of this node
	Blocks  Map[ExitKey, BlockValue]              // where they are, and this node's ports of them
	Owners  Map[OwnerKey, OwnerValue]             // nodes that have blocks of their ports
	Limits  Map[LimitKey, LimitValue]             // bandwidth of egress policies
	Covered Map[CoveredKey, CoveredValue]         // destinations of egress policies
	Nodes   Map[NodeKey, NodeValue]               // nodes of the cluster
	Devices Map[DeviceKey, DeviceValue]           // the pod that a device leads to
	Config  Map[ConfigKey, ConfigValue]           // what programs must know of this node
	Keys    Map[OverlayKeysKey, OverlayKeysValue] // of the overlay
	State   Map[StateKey, StateValue]             // which slot is active, and which generation

	all        []opener
	backend    atomic.Pointer[Backend]
	own        atomic.Uint32 // the slot that is written to
	raising    sync.Mutex    // of the generation
	wrote      StateValue    // last to sluice_state; zero before the flip
	formerPods []netip.Addr
}

// opener is a [handle] of any types.
type opener interface {
	Spec() Spec
	isInSlots() bool
	open(Backend) error // unless it is in slots
	openSlot(backend Backend, slot uint32) error
	release(slot uint32) error
	close()
	kernel() *ebpf.Map
	lines() ([]string, error)
	corrupt(kind string) (what string, err error)
}

// newMaps returns the maps, not open yet.
func newMaps(cfg Config) *Maps {
	m := &Maps{}
	m.Pods = addInSlots[PodKey, PodValue](m, Spec{podsMap, TypeHash, cfg.MapSizePods})
	m.IPCache = addInSlots[IPCacheKey, IPCacheValue](
		m, Spec{"sluice_ipcache", TypeLPM, cfg.MapSizeIPCache},
	)
	m.Frontends = addInSlots[FrontendKey, FrontendValue](
		m, Spec{"sluice_services", TypeHash, cfg.MapSizeServices},
	)
	m.Subjects = addInSlots[SubjectKey, SubjectValue](
		m, Spec{"sluice_subjects", TypeHash, cfg.MapSizeSubjects},
	)
	m.Routes = addInSlots[SubjectKey, RouteValue](
		m, Spec{"sluice_routes", TypeHash, cfg.MapSizeSubjects},
	)
	m.Peers = addInSlots[PeerKey, PeerValue](m, Spec{"sluice_peers", TypeHash, cfg.MapSizePeers})
	m.Policy = addInSlots[PolicyKey, PolicyValue](
		m, Spec{"sluice_policy", TypeHash, cfg.MapSizePolicy},
	)
	m.Verdicts = addInSlots[VerdictKey, VerdictValue](
		m, Spec{"sluice_verdicts", TypeLPM, cfg.MapSizeVerdicts},
	)
	m.Egress = addInSlots[EgressKey, EgressValue](m, Spec{"sluice_egress", TypeLPM, cfg.MapSizeEgress})
	m.Gateways = addInSlots[GatewayKey, GatewayValue](
		m, Spec{"sluice_gateways", TypeHash, cfg.MapSizeGateways},
	)
	m.Exits = add[ExitKey, ExitValue](m, Spec{"sluice_exits", TypeHash, cfg.MapSizeExits})
	m.Blocks = add[ExitKey, BlockValue](m, Spec{"sluice_blocks", TypeHash, BlockEntries})
	m.Owners = add[OwnerKey, OwnerValue](m, Spec{"sluice_owners", TypeHash, OwnerEntries})
	m.Limits = add[LimitKey, LimitValue](m, Spec{LimitsMap, TypeHash, LimitEntries})
	m.Covered = add[CoveredKey, CoveredValue](m, Spec{"sluice_covered", TypeLPM, cfg.MapSizeCovered})
	m.Nodes = add[NodeKey, NodeValue](m, Spec{"sluice_nodes", TypeHash, cfg.MapSizeNodes})
	m.Devices = add[DeviceKey, DeviceValue](m, Spec{"sluice_devices", TypeHash, cfg.MapSizePods})
	m.Config = add[ConfigKey, ConfigValue](m, Spec{"sluice_config", TypeArray, 1})
	m.Keys = add[OverlayKeysKey, OverlayKeysValue](m, Spec{"sluice_keys", TypeHash, 1})
	m.State = add[StateKey, StateValue](m, Spec{StateMap, TypeArray, 1})
	return m
}

// add adds a map that is in no slot: its keys and values never change their meaning.
func add[K, V comparable](m *Maps, spec Spec) Map[K, V] {
	h := &handle[K, V]{spec: spec}
	m.all = append(m.all, h)
	return h
}

// addInSlots adds a map that each agent fills anew, as its numbers are the agent's own.
func addInSlots[K, V comparable](m *Maps, spec Spec) Map[K, V] {
	h := &handle[K, V]{spec: spec, inSlots: true}
	m.all = append(m.all, h)
	return h
}

// Names returns the names of the maps.
func (m *Maps) Names() []string {
	names := make([]string, len(m.all))
	for i, h := range m.all {
		names[i] = h.Spec().Name
	}
	return names
}

// Kernel returns the maps of the kernel by name as programs refer to them, those in slots
// as arrays of maps; none unless they are open and in the kernel. They stay the back end's:
// they must not be closed.
func (m *Maps) Kernel() map[string]*ebpf.Map {
	maps := map[string]*ebpf.Map{}
	for _, h := range m.all {
		if k := h.kernel(); k != nil {
			maps[h.Spec().Name] = k
		}
	}
	return maps
}

// Backend returns what holds the maps, nil unless the agent runs.
func (m *Maps) Backend() Backend {
	if b := m.backend.Load(); b != nil {
		return *b
	}
	return nil
}

// Dump returns the entries of the named map as sorted lines "key -> value".
func (m *Maps) Dump(name string) ([]string, error) {
	h, err := m.find(name)
	if err != nil {
		return nil, err
	}
	return h.lines()
}

func (m *Maps) find(name string) (opener, error) {
	for _, h := range m.all {
		if h.Spec().Name == name {
			return h, nil
		}
	}
	return nil, fmt.Errorf("no map %q: the maps are %v", name, m.Names())
}

// open opens all maps in a back end.
func (m *Maps) open(backend Backend) error {
	for _, h := range m.all {
		if err := h.open(backend); err != nil {
			return err
		}
	}
	if err := m.openSlots(backend); err != nil {
		return err
	}
	m.backend.Store(&backend)
	return nil
}

func (m *Maps) close() {
	for _, h := range m.all {
		h.close()
	}
	m.backend.Store(nil)
}

// handle is a map that exists before its back end does.
type handle[K, V comparable] struct {
	spec    Spec
	inSlots bool
	inner   atomic.Pointer[Map[K, V]]
}

func (h *handle[K, V]) isInSlots() bool { return h.inSlots }

func (h *handle[K, V]) open(backend Backend) error {
	if h.inSlots {
		return nil
	}
	m, err := Open[K, V](backend, h.spec)
	if err != nil {
		return err
	}
	h.inner.Store(&m)
	return nil
}

func (h *handle[K, V]) openSlot(backend Backend, slot uint32) error {
	if !h.inSlots {
		return nil
	}
	m, err := openSlot[K, V](backend, h.spec, slot)
	if err != nil {
		return err
	}
	h.inner.Store(&m)
	return nil
}

// release takes the map of a slot out of it.
func (h *handle[K, V]) release(slot uint32) error {
	slots := h.kernel()
	if !h.inSlots || slots == nil {
		return nil
	}
	if err := slots.Delete(slot); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("take map %s out of slot %d: %w", h.spec.Name, slot, err)
	}
	return nil
}

func (h *handle[K, V]) close() { h.inner.Store(nil) }

func (h *handle[K, V]) kernel() *ebpf.Map {
	if m := h.inner.Load(); m != nil {
		if t, ok := (*m).(*kernelMap[K, V]); ok {
			return cmp.Or(t.slots, t.m)
		}
	}
	return nil
}

func (h *handle[K, V]) Spec() Spec {
	if m := h.inner.Load(); m != nil {
		return (*m).Spec()
	}
	return h.spec
}

func (h *handle[K, V]) Backend() string {
	if m := h.inner.Load(); m != nil {
		return (*m).Backend()
	}
	return ""
}

func (h *handle[K, V]) Update(keys []K, values []V) (done int, err error) {
	if m := h.inner.Load(); m != nil {
		return (*m).Update(keys, values)
	}
	return 0, ErrNotOpen
}

func (h *handle[K, V]) Delete(keys []K) (done int, err error) {
	if m := h.inner.Load(); m != nil {
		return (*m).Delete(keys)
	}
	return 0, ErrNotOpen
}

func (h *handle[K, V]) Dump() ([]Entry[K, V], error) {
	if m := h.inner.Load(); m != nil {
		return (*m).Dump()
	}
	return nil, ErrNotOpen
}

func (h *handle[K, V]) lines() ([]string, error) {
	entries, err := h.Dump()
	if err != nil {
		return nil, err
	}
	return Lines(entries), nil
}

// Lines returns entries as sorted lines "key -> value".
func Lines[K, V comparable](entries []Entry[K, V]) []string {
	lines := make([]string, len(entries))
	for i, e := range entries {
		lines[i] = fmt.Sprintf("%v -> %v", e.Key, e.Value)
	}
	slices.Sort(lines)
	return lines
}
