// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// Wanted says how an entry of the kernel compares with what is desired of it.
type Wanted string

const (
	WantedSame   Wanted = "same"   // as it is
	WantedOther  Wanted = "other"  // with another value
	WantedAbsent Wanted = "absent" // not at all: it stays a row until the kernel has confirmed its removal
)

// MapEntry is one entry of a BPF map as the kernel last accepted it. The
// tables of entries, one per map, mirror the kernel; their names begin with
// "map-" and only reconcilers/bpfmap writes them. What waits for the kernel to
// have something reads these tables, never the status of desired rows.
//
// K and V are the map's key and value: without implicit padding, so that their
// bytes are their identity.
type MapEntry[K, V MapPart] struct {
	Key    K      `json:"key"`
	Value  V      `json:"value"`
	Wanted Wanted `json:"wanted"`
	Error  string `json:"error,omitempty"` // why it is not as wanted: the last attempt failed, or waits
}

// MapPart is the key or the value of a BPF map.
type MapPart interface {
	comparable
	fmt.Stringer
}

// TableHeader implements [statedb.TableWritable].
func (*MapEntry[K, V]) TableHeader() []string { return []string{"Key", "Value", "Wanted", "Error"} }

// TableRow implements [statedb.TableWritable].
func (e *MapEntry[K, V]) TableRow() []string {
	return []string{e.Key.String(), e.Value.String(), string(e.Wanted), orDash(e.Error)}
}

// MapEntryByKey queries the entry under a map key.
func MapEntryByKey[K, V MapPart](key K) statedb.Query[*MapEntry[K, V]] {
	return statedb.Index[*MapEntry[K, V], K]{Name: mapEntryKey}.QueryFromKey(mapKeyBytes(key))
}

const mapEntryKey = "key" // the index, which would take memory to make for each query

func mapEntryKeyIndex[K, V MapPart]() statedb.Index[*MapEntry[K, V], K] {
	return statedb.Index[*MapEntry[K, V], K]{
		Name:       mapEntryKey,
		FromObject: func(e *MapEntry[K, V]) index.KeySet { return index.NewKeySet(mapKeyBytes(e.Key)) },
		FromKey:    mapKeyBytes[K],
		FromString: func(s string) (index.Key, error) { return hex.DecodeString(s) },
		Unique:     true,
	}
}

// NewMapEntryTable creates the mirror of a map, with indexes beside that of the keys.
func NewMapEntryTable[K, V MapPart](db *statedb.DB, name string, secondary ...statedb.Indexer[*MapEntry[K, V]]) (statedb.RWTable[*MapEntry[K, V]], error) {
	return statedb.NewTable(db, name, mapEntryKeyIndex[K, V](), secondary...)
}

// mapKeyBytes returns a copy of the bytes of a key as the kernel sees them.
func mapKeyBytes[K comparable](key K) index.Key {
	b := make([]byte, unsafe.Sizeof(key))
	copy(b, unsafe.Slice((*byte)(unsafe.Pointer(&key)), len(b)))
	return b
}

// The mirrors of the maps of the egress gateway.
type (
	ClassEntry   = MapEntry[bpf.ClassKey, bpf.ClassValue]
	PodEntry     = MapEntry[bpf.PodKey, bpf.PodValue]
	IPCacheEntry = MapEntry[bpf.IPCacheKey, bpf.IPCacheValue]
	SourceEntry  = MapEntry[bpf.SourceKey, bpf.SourceValue]
	EgressEntry  = MapEntry[bpf.EgressKey, bpf.EgressValue]
	GatewayEntry = MapEntry[bpf.GatewayKey, bpf.GatewayValue]
)

// PolicyMapEntry is an entry of the mirror of sluice_policy.
type PolicyMapEntry = MapEntry[bpf.PolicyKey, bpf.PolicyValue]

// The mirrors of the maps of forwarding.
type (
	ExitEntry    = MapEntry[bpf.ExitKey, bpf.ExitValue]
	CoveredEntry = MapEntry[bpf.CoveredKey, bpf.CoveredValue]
	NodeEntry    = MapEntry[bpf.NodeKey, bpf.NodeValue]
	ConfigEntry  = MapEntry[bpf.ConfigKey, bpf.ConfigValue]
)

var (
	classEntryDigestIndex = statedb.Index[*ClassEntry, RoleDigest]{
		Name: "digest",
		FromObject: func(e *ClassEntry) index.KeySet {
			return index.NewKeySet(RoleDigest{e.Key.Role, e.Value.Digest}.key())
		},
		FromKey:    RoleDigest.key,
		FromString: func(s string) (index.Key, error) { return hex.DecodeString(s) },
	}

	sourceEntryClassIndex = statedb.Index[*SourceEntry, uint32]{
		Name:       "class",
		FromObject: func(e *SourceEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Value.Class)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}
	sourceEntryLeavingIndex = statedb.Index[*SourceEntry, uint32]{
		Name: "leaving",
		FromObject: func(e *SourceEntry) index.KeySet {
			if e.Wanted == WantedSame {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.Uint32(e.Value.Class))
		},
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	egressEntryClassIndex = statedb.Index[*EgressEntry, uint32]{
		Name:       "class",
		FromObject: func(e *EgressEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Key.Class)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}
	egressEntryGroupIndex = statedb.Index[*EgressEntry, uint32]{
		Name:       "group",
		FromObject: func(e *EgressEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Value.Group)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	gatewayEntryGroupIndex = statedb.Index[*GatewayEntry, uint32]{
		Name:       "group",
		FromObject: func(e *GatewayEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Key.Group)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	podEntryIfIndexIndex = statedb.Index[*PodEntry, uint32]{
		Name:       "ifindex",
		FromObject: func(e *PodEntry) index.KeySet { return ifIndexKeys(e.Value.IfIndex) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}
	exitEntryIfIndexIndex = statedb.Index[*ExitEntry, uint32]{
		Name:       "ifindex",
		FromObject: func(e *ExitEntry) index.KeySet { return ifIndexKeys(e.Value.IfIndex) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	// As the desired entries: by subject, direction and peer.
	policyMapEntryPairIndex = statedb.Index[*PolicyMapEntry, PolicyPair]{
		Name: "pair",
		FromObject: func(e *PolicyMapEntry) index.KeySet {
			return index.NewKeySet(PolicyPair{e.Key.Subject, e.Key.Direction, e.Key.Peer}.key())
		},
		FromKey:    PolicyPair.key,
		FromString: index.Uint32String,
	}
	policyMapEntryPeerIndex = statedb.Index[*PolicyMapEntry, uint32]{
		Name:       "peer",
		FromObject: func(e *PolicyMapEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Key.Peer)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	podEntrySubjectIndex = statedb.Index[*PodEntry, uint32]{
		Name:       "subject-class",
		FromObject: func(e *PodEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Value.SubjectClass)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	// PolicyMapEntriesOfPair queries the verdicts that the kernel has for a pair of classes.
	PolicyMapEntriesOfPair = policyMapEntryPairIndex.Query

	// PolicyMapEntriesByPeer queries the verdicts that the kernel has about a peer class.
	PolicyMapEntriesByPeer = policyMapEntryPeerIndex.Query

	// PodEntriesBySubjectClass queries the pods' addresses that the kernel has in
	// a subject class.
	PodEntriesBySubjectClass = podEntrySubjectIndex.Query

	// PodEntriesByIfIndex queries the pods' addresses to which the kernel knows
	// a device to lead, by its interface index.
	PodEntriesByIfIndex = podEntryIfIndexIndex.Query

	// ExitEntriesByIfIndex queries the egress addresses with which the kernel
	// lets traffic leave by a device, by its interface index.
	ExitEntriesByIfIndex = exitEntryIfIndexIndex.Query

	// SourceEntriesByClass queries the addresses that the kernel has in a class.
	SourceEntriesByClass = sourceEntryClassIndex.Query

	// SourceEntriesLeaving queries the addresses that the kernel has in a class
	// and that are wanted in another one, or in none.
	SourceEntriesLeaving = sourceEntryLeavingIndex.Query

	// ClassEntriesByDigest queries the numbers that the kernel's maps know
	// under a digest.
	ClassEntriesByDigest = classEntryDigestIndex.Query

	// EgressEntriesByClass queries the destinations that the kernel has for a class.
	EgressEntriesByClass = egressEntryClassIndex.Query

	// EgressEntriesByGroup queries the destinations that the kernel sends to a gateway group.
	EgressEntriesByGroup = egressEntryGroupIndex.Query

	// GatewayEntriesByGroup queries the buckets that the kernel has of a gateway group.
	GatewayEntriesByGroup = gatewayEntryGroupIndex.Query
)

// ifIndexKeys are the index keys of a device, none if it is not known.
func ifIndexKeys(ifIndex uint32) index.KeySet {
	if ifIndex == 0 {
		return index.NewKeySet()
	}
	return index.NewKeySet(index.Uint32(ifIndex))
}

// NewClassEntryTable creates the mirror of sluice_classes.
func NewClassEntryTable(db *statedb.DB) (statedb.RWTable[*ClassEntry], error) {
	return NewMapEntryTable[bpf.ClassKey, bpf.ClassValue](db, "map-classes", classEntryDigestIndex)
}

// NewPodEntryTable creates the mirror of sluice_pods.
func NewPodEntryTable(db *statedb.DB) (statedb.RWTable[*PodEntry], error) {
	return NewMapEntryTable[bpf.PodKey, bpf.PodValue](db, "map-pods", podEntryIfIndexIndex, podEntrySubjectIndex)
}

// NewIPCacheEntryTable creates the mirror of sluice_ipcache.
func NewIPCacheEntryTable(db *statedb.DB) (statedb.RWTable[*IPCacheEntry], error) {
	return NewMapEntryTable[bpf.IPCacheKey, bpf.IPCacheValue](db, "map-ipcache")
}

// NewSourceEntryTable creates the mirror of sluice_sources.
func NewSourceEntryTable(db *statedb.DB) (statedb.RWTable[*SourceEntry], error) {
	return NewMapEntryTable[bpf.SourceKey, bpf.SourceValue](db, "map-sources",
		sourceEntryClassIndex, sourceEntryLeavingIndex)
}

// NewEgressEntryTable creates the mirror of sluice_egress.
func NewEgressEntryTable(db *statedb.DB) (statedb.RWTable[*EgressEntry], error) {
	return NewMapEntryTable[bpf.EgressKey, bpf.EgressValue](db, "map-egress",
		egressEntryClassIndex, egressEntryGroupIndex)
}

// NewGatewayEntryTable creates the mirror of sluice_gateways.
func NewGatewayEntryTable(db *statedb.DB) (statedb.RWTable[*GatewayEntry], error) {
	return NewMapEntryTable[bpf.GatewayKey, bpf.GatewayValue](db, "map-gateways", gatewayEntryGroupIndex)
}

// NewExitEntryTable creates the mirror of sluice_exits.
func NewExitEntryTable(db *statedb.DB) (statedb.RWTable[*ExitEntry], error) {
	return NewMapEntryTable[bpf.ExitKey, bpf.ExitValue](db, "map-exits", exitEntryIfIndexIndex)
}

// NewCoveredEntryTable creates the mirror of sluice_covered.
func NewCoveredEntryTable(db *statedb.DB) (statedb.RWTable[*CoveredEntry], error) {
	return NewMapEntryTable[bpf.CoveredKey, bpf.CoveredValue](db, "map-covered")
}

// NewNodeEntryTable creates the mirror of sluice_nodes.
func NewNodeEntryTable(db *statedb.DB) (statedb.RWTable[*NodeEntry], error) {
	return NewMapEntryTable[bpf.NodeKey, bpf.NodeValue](db, "map-nodes")
}

// NewConfigEntryTable creates the mirror of sluice_config.
func NewConfigEntryTable(db *statedb.DB) (statedb.RWTable[*ConfigEntry], error) {
	return NewMapEntryTable[bpf.ConfigKey, bpf.ConfigValue](db, "map-config")
}

// PolicyMapEntriesOfSubject queries, with Prefix, the verdicts that the kernel
// has for a subject class.
func PolicyMapEntriesOfSubject(class uint32) statedb.Query[*PolicyMapEntry] {
	return policyMapEntryPairIndex.QueryFromKey(index.Uint32(class))
}

// NewPolicyMapEntryTable creates the mirror of sluice_policy.
func NewPolicyMapEntryTable(db *statedb.DB) (statedb.RWTable[*PolicyMapEntry], error) {
	return NewMapEntryTable[bpf.PolicyKey, bpf.PolicyValue](db, "map-policy", policyMapEntryPairIndex, policyMapEntryPeerIndex)
}
