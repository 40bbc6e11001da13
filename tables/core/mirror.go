// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/hex"
	"unsafe"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Mirror is one entry of a BPF map as its reconciler knows it. The tables of mirrors, one
// for each map, have names that begin with "map-", and only reconcilers write them.
//
// A reconciler announces a write, looks at the tables once more, writes, and confirms: so
// the kernel never has a value that the mirror does not tell of.
type Mirror[K, V tables.MapPart] struct {
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

	// Desired is false while the entry waits to be deleted.
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
	return []string{m.Key.String(), value, writing, desired, tables.OrDash(m.Error)}
}

// The mirrors of the maps of rulesets and egress gateways.
type (
	PodMirror     = Mirror[bpf.PodKey, PodValue]
	IPCacheMirror = Mirror[bpf.IPCacheKey, IPCacheValue]
	SubjectMirror = Mirror[SubjectKey, SubjectValue]
	RouteMirror   = Mirror[SubjectKey, RouteValue]
	PeerMirror    = Mirror[PeerKey, PeerValue]
	PolicyMirror  = Mirror[PolicyKey, PolicyValue]
	VerdictMirror = Mirror[VerdictKey, VerdictValue]
	EgressMirror  = Mirror[EgressKey, bpf.EgressValue]
	GatewayMirror = Mirror[bpf.GatewayKey, bpf.GatewayValue]
)

const (
	mirrorKeyName       = "key"
	mirrorRefersToName  = "refers-to"
	mirrorUndesiredName = "undesired"
)

func mirrorUndesired[K, V tables.MapPart]() statedb.Index[*Mirror[K, V], bool] {
	return statedb.Index[*Mirror[K, V], bool]{
		Name: mirrorUndesiredName, FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(m *Mirror[K, V]) index.KeySet { return marked(!m.Desired) },
	}
}

// MirrorsUndesired queries the entries that wait to be deleted.
func MirrorsUndesired[K, V tables.MapPart]() statedb.Query[*Mirror[K, V]] {
	return statedb.Index[*Mirror[K, V], bool]{Name: mirrorUndesiredName}.QueryFromKey(index.Bool(true))
}

func mirrorKey[K, V tables.MapPart]() statedb.Index[*Mirror[K, V], K] {
	return statedb.Index[*Mirror[K, V], K]{
		Name: mirrorKeyName, Unique: true, FromKey: keyBytes[K],
		FromString: func(s string) (index.Key, error) { return hex.DecodeString(s) },
		FromObject: func(m *Mirror[K, V]) index.KeySet { return index.NewKeySet(keyBytes(m.Key)) },
	}
}

// MirrorByKey queries the mirror of the entry under a key of the map.
func MirrorByKey[K, V tables.MapPart](key K) statedb.Query[*Mirror[K, V]] {
	return statedb.Index[*Mirror[K, V], K]{Name: mirrorKeyName}.QueryFromKey(keyBytes(key))
}

// MirrorsTo queries the entries that refer to a numbered object, in the kernel or by a write
// under way, in a table that was created with a function that tells to which.
func MirrorsTo[K, V tables.MapPart](number uint32) statedb.Query[*Mirror[K, V]] {
	return statedb.Index[*Mirror[K, V], uint32]{
		Name: mirrorRefersToName,
	}.QueryFromKey(
		index.Uint32(number),
	)
}

// NewMirrorTable creates the mirror of a map, of which refersTo, unless it is nil, tells the
// number of the object that a value refers to, 0 for none.
func NewMirrorTable[K, V tables.MapPart](
	db *statedb.DB, name string, refersTo func(V) uint32, secondary ...statedb.Indexer[*Mirror[K, V]],
) (statedb.RWTable[*Mirror[K, V]], error) {
	if refersTo != nil {
		secondary = append(secondary, statedb.Index[*Mirror[K, V], uint32]{
			Name: mirrorRefersToName, FromKey: index.Uint32, FromString: index.Uint32String,
			FromObject: func(m *Mirror[K, V]) index.KeySet {
				var keys []index.Key
				for i, v := range m.Values() {
					if n := refersTo(v); n != 0 && (i == 0 || n != refersTo(m.Value)) {
						keys = append(keys, index.Uint32(n))
					}
				}
				return index.NewKeySet(keys...)
			},
		})
	}
	return statedb.NewTable(db, name, mirrorKey[K, V](), append(secondary, mirrorUndesired[K, V]())...)
}

// keyBytes returns a copy of the bytes of a key as the kernel sees them.
func keyBytes[K comparable](key K) index.Key {
	b := make([]byte, unsafe.Sizeof(key))
	copy(b, unsafe.Slice((*byte)(unsafe.Pointer(&key)), len(b)))
	return b
}

// NewPodMirrorTable creates the mirror of sluice_pods.
func NewPodMirrorTable(db *statedb.DB) (statedb.RWTable[*PodMirror], error) {
	return NewMirrorTable[bpf.PodKey](db, "map-pods", func(v PodValue) uint32 { return v.Subject })
}

// NewIPCacheMirrorTable creates the mirror of sluice_ipcache.
func NewIPCacheMirrorTable(db *statedb.DB) (statedb.RWTable[*IPCacheMirror], error) {
	return NewMirrorTable[bpf.IPCacheKey](
		db,
		"map-ipcache",
		func(v IPCacheValue) uint32 { return v.Member },
	)
}

// NewSubjectMirrorTable creates the mirror of sluice_subjects.
func NewSubjectMirrorTable(db *statedb.DB) (statedb.RWTable[*SubjectMirror], error) {
	return NewMirrorTable[SubjectKey](
		db,
		"map-subjects",
		func(v SubjectValue) uint32 { return v.Ruleset },
	)
}

// NewRouteMirrorTable creates the mirror of sluice_routes.
func NewRouteMirrorTable(db *statedb.DB) (statedb.RWTable[*RouteMirror], error) {
	return NewMirrorTable[SubjectKey](
		db,
		"map-routes",
		func(v RouteValue) uint32 { return v.EgressRuleset },
	)
}

// NewPeerMirrorTable creates the mirror of sluice_peers.
func NewPeerMirrorTable(db *statedb.DB) (statedb.RWTable[*PeerMirror], error) {
	return NewMirrorTable[PeerKey](db, "map-peers", func(v PeerValue) uint32 { return v.Class })
}

// NewPolicyMirrorTable creates the mirror of sluice_policy.
func NewPolicyMirrorTable(db *statedb.DB) (statedb.RWTable[*PolicyMirror], error) {
	return NewMirrorTable[PolicyKey](db, "map-policy", func(v PolicyValue) uint32 { return v.Set })
}

// NewVerdictMirrorTable creates the mirror of sluice_verdicts. Its entries refer to cookies.
func NewVerdictMirrorTable(db *statedb.DB) (statedb.RWTable[*VerdictMirror], error) {
	return NewMirrorTable[VerdictKey](
		db,
		"map-verdicts",
		func(v VerdictValue) uint32 { return v.Cookie },
	)
}

// NewEgressMirrorTable creates the mirror of sluice_egress.
func NewEgressMirrorTable(db *statedb.DB) (statedb.RWTable[*EgressMirror], error) {
	return NewMirrorTable[EgressKey](
		db,
		"map-egress",
		func(v bpf.EgressValue) uint32 { return v.Group },
	)
}

// NewGatewayMirrorTable creates the mirror of sluice_gateways.
func NewGatewayMirrorTable(db *statedb.DB) (statedb.RWTable[*GatewayMirror], error) {
	return NewMirrorTable[bpf.GatewayKey, bpf.GatewayValue](db, "map-gateways", nil)
}
