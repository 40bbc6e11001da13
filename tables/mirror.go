// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/hex"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// MapPart is the key or the value of a BPF map: without implicit padding, so that its bytes
// are its identity.
type MapPart interface {
	comparable
	fmt.Stringer
}

// Mirror is one entry of a BPF map as its reconciler knows it. The tables of mirrors, one
// for each map, have names that begin with "map-", and only reconcilers write them.
//
// A reconciler announces a write, checks the tables again, writes, and confirms: so the kernel
// never has a value that is not in the mirror.
type Mirror[K, V MapPart] struct {
	Key K `json:"key"`

	// Value is what the kernel accepted last, if Present.
	Value   V    `json:"value"`
	Present bool `json:"present"`

	// Writing is what the kernel may have from now on, or no entry if Deleting, while Busy.
	Writing  V    `json:"writing,omitzero"`
	Busy     bool `json:"busy,omitempty"`
	Deleting bool `json:"deleting,omitempty"`

	// Made is that of the desired row whose value the kernel accepted last: see
	// [SelectorMatch]. 0 of rows that have none.
	Made uint64 `json:"made,omitempty"`

	// Desired is false while the entry is being deleted, or waits to be.
	Desired bool `json:"desired"`

	Error string `json:"error,omitempty"` // why the last attempt to delete it failed
}

// Values returns the values that the kernel may have.
func (m *Mirror[K, V]) Values() []V {
	var values []V
	if m.Present {
		values = append(values, m.Value)
	}
	if m.Busy && !m.Deleting {
		values = append(values, m.Writing)
	}
	return values
}

// TableHeader implements [statedb.TableWritable].
func (*Mirror[K, V]) TableHeader() []string {
	return []string{"Key", "Value", "Writing", "Desired", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (m *Mirror[K, V]) TableRow() []string {
	value, writing := "-", "-"
	if m.Present {
		value = m.Value.String()
	}
	if m.Busy {
		if writing = m.Writing.String(); m.Deleting {
			writing = "delete"
		}
	}
	desired := "true"
	if !m.Desired {
		desired = "-"
	}
	return []string{m.Key.String(), value, writing, desired, orDash(m.Error)}
}

// The mirrors of the maps of rulesets and egress gateways.
type (
	PodMirror      = Mirror[bpf.PodKey, bpf.PodValue]
	IPCacheMirror  = Mirror[bpf.IPCacheKey, bpf.IPCacheValue]
	FrontendMirror = Mirror[bpf.FrontendKey, bpf.FrontendValue]
	SubjectMirror  = Mirror[bpf.SubjectKey, bpf.SubjectValue]
	RouteMirror    = Mirror[bpf.SubjectKey, bpf.RouteValue]
	PeerMirror     = Mirror[bpf.PeerKey, bpf.PeerValue]
	PolicyMirror   = Mirror[bpf.PolicyKey, bpf.PolicyValue]
	VerdictMirror  = Mirror[bpf.VerdictKey, bpf.VerdictValue]
	EgressMirror   = Mirror[bpf.EgressKey, bpf.EgressValue]
	GatewayMirror  = Mirror[bpf.GatewayKey, bpf.GatewayValue]
	ExitMirror     = Mirror[bpf.ExitKey, bpf.ExitValue]
	BlockMirror    = Mirror[bpf.ExitKey, bpf.BlockValue]
	OwnerMirror    = Mirror[bpf.OwnerKey, bpf.OwnerValue]
	LimitMirror    = Mirror[bpf.LimitKey, bpf.LimitValue]
	CoveredMirror  = Mirror[bpf.CoveredKey, bpf.CoveredValue]
	NodeMirror     = Mirror[bpf.NodeKey, bpf.NodeValue]
	DeviceMirror   = Mirror[bpf.DeviceKey, bpf.DeviceValue]
	ConfigMirror   = Mirror[bpf.ConfigKey, bpf.ConfigValue]
	KeysMirror     = Mirror[bpf.OverlayKeysKey, bpf.OverlayKeysValue]
)

// The names of the indexes of mirrors.
const (
	mirrorKeyName      = "key"
	mirrorRefersToName = "refers-to"
)

func mirrorKey[K, V MapPart]() statedb.Index[*Mirror[K, V], K] {
	return UniqueIndex(mirrorKeyName, KeysOf(keyBytes[K], hexKey),
		func(m *Mirror[K, V]) K { return m.Key })
}

func mirrorRefersTo[K, V MapPart](refersTo func(V) uint32) statedb.Index[*Mirror[K, V], uint32] {
	return mirrorValues[K](mirrorRefersToName, refersTo)
}

// mirrorValues is an index by a number in the values that the kernel may have, if not 0.
func mirrorValues[K, V MapPart](
	name string, of func(V) uint32,
) statedb.Index[*Mirror[K, V], uint32] {
	return IndexEach(name, Uint32Keys, func(m *Mirror[K, V]) (numbers []uint32) {
		for _, v := range m.Values() {
			if n := of(v); n != 0 && !slices.Contains(numbers, n) {
				numbers = append(numbers, n)
			}
		}
		return numbers
	})
}

// MirrorByKey queries the mirror of the entry under a key of the map.
func MirrorByKey[K, V MapPart](key K) statedb.Query[*Mirror[K, V]] {
	return mirrorKey[K, V]().Query(key)
}

// MirrorsTo queries the entries that refer to a numbered object, in the kernel or by a write under
// way. The table must have been created with refersTo.
func MirrorsTo[K, V MapPart](number uint32) statedb.Query[*Mirror[K, V]] {
	return mirrorRefersTo[K, V](nil).Query(number)
}

// NewMirrorTable returns the constructor of the mirror of a map. refersTo, unless it is nil,
// returns the number of the object that a value refers to, 0 for none.
func NewMirrorTable[K, V MapPart](
	name string, refersTo func(V) uint32, secondary ...statedb.Indexer[*Mirror[K, V]],
) func(*statedb.DB) (statedb.RWTable[*Mirror[K, V]], error) {
	if refersTo != nil {
		secondary = append(secondary, mirrorRefersTo[K](refersTo))
	}
	return Declare(name, mirrorKey[K, V](), secondary...)
}

// keyBytes returns a copy of the bytes of a key as the kernel sees them.
func keyBytes[K comparable](key K) index.Key {
	b := make([]byte, unsafe.Sizeof(key))
	copy(b, unsafe.Slice((*byte)(unsafe.Pointer(&key)), len(b)))
	return b
}

func hexKey(s string) (index.Key, error) { return hex.DecodeString(s) }

// The constructors of the mirrors. Verdicts refer to cookies.
var (
	NewPodMirrorTable = NewMirrorTable[bpf.PodKey]("map-pods",
		func(v bpf.PodValue) uint32 { return v.Subject }, podMirrorIfIndex)
	NewIPCacheMirrorTable = NewMirrorTable[bpf.IPCacheKey]("map-ipcache",
		func(v bpf.IPCacheValue) uint32 { return v.Member },
		ipcacheMirrorUndesired)
	NewFrontendMirrorTable = NewMirrorTable[bpf.FrontendKey, bpf.FrontendValue]("map-services", nil)
	NewSubjectMirrorTable  = NewMirrorTable[bpf.SubjectKey]("map-subjects",
		func(v bpf.SubjectValue) uint32 { return v.Ruleset })
	NewRouteMirrorTable = NewMirrorTable[bpf.SubjectKey]("map-routes",
		func(v bpf.RouteValue) uint32 { return v.EgressRuleset })
	NewPeerMirrorTable = NewMirrorTable[bpf.PeerKey]("map-peers",
		func(v bpf.PeerValue) uint32 { return v.Class })
	NewPolicyMirrorTable  = NewMirrorTable[bpf.PolicyKey, bpf.PolicyValue]("map-policy", nil)
	NewVerdictMirrorTable = NewMirrorTable[bpf.VerdictKey]("map-verdicts",
		func(v bpf.VerdictValue) uint32 { return v.Cookie })
	NewEgressMirrorTable = NewMirrorTable[bpf.EgressKey]("map-egress",
		func(v bpf.EgressValue) uint32 { return v.Group })
	NewGatewayMirrorTable = NewMirrorTable[bpf.GatewayKey, bpf.GatewayValue]("map-gateways", nil)
	NewExitMirrorTable    = NewMirrorTable[bpf.ExitKey]("map-exits", nil, exitMirrorIfIndex)
	NewBlockMirrorTable   = NewMirrorTable[bpf.ExitKey, bpf.BlockValue]("map-blocks", nil)
	NewOwnerMirrorTable   = NewMirrorTable[bpf.OwnerKey, bpf.OwnerValue]("map-owners", nil)
	NewLimitMirrorTable   = NewMirrorTable[bpf.LimitKey, bpf.LimitValue]("map-limits", nil)
	NewCoveredMirrorTable = NewMirrorTable[bpf.CoveredKey, bpf.CoveredValue]("map-covered", nil)
	NewNodeMirrorTable    = NewMirrorTable[bpf.NodeKey, bpf.NodeValue]("map-nodes", nil)
	NewDeviceMirrorTable  = NewMirrorTable[bpf.DeviceKey, bpf.DeviceValue]("map-devices", nil)
	NewConfigMirrorTable  = NewMirrorTable[bpf.ConfigKey, bpf.ConfigValue]("map-config", nil)
	NewKeysMirrorTable    = NewMirrorTable[bpf.OverlayKeysKey, bpf.OverlayKeysValue]("map-keys", nil)
)

var (
	ipcacheMirrorUndesired = FlagIndex("undesired",
		func(m *IPCacheMirror) bool { return !m.Desired })
	podMirrorIfIndex = mirrorValues[bpf.PodKey]("ifindex",
		func(v bpf.PodValue) uint32 { return v.IfIndex })
	exitMirrorIfIndex = mirrorValues[bpf.ExitKey]("ifindex",
		func(v bpf.ExitValue) uint32 { return v.IfIndex })

	// IPCacheMirrorsUndesired queries, by true, the addresses and prefixes that wait to be deleted.
	IPCacheMirrorsUndesired = ipcacheMirrorUndesired.Query

	// PodMirrorsByIfIndex queries the addresses of pods to which the kernel knows a device to
	// lead, by its interface index.
	PodMirrorsByIfIndex = podMirrorIfIndex.Query

	// ExitMirrorsByIfIndex queries the egress addresses with which the kernel lets traffic
	// leave by a device, by its interface index.
	ExitMirrorsByIfIndex = exitMirrorIfIndex.Query
)
