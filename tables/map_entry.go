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
	return statedb.NewTable(db, "map-classes", mapEntryKeyIndex[bpf.ClassKey, bpf.ClassValue](), classEntryDigestIndex)
}

// NewPodEntryTable creates the mirror of sluice_pods.
func NewPodEntryTable(db *statedb.DB) (statedb.RWTable[*PodEntry], error) {
	return statedb.NewTable(db, "map-pods", mapEntryKeyIndex[bpf.PodKey, bpf.PodValue](), podEntryIfIndexIndex, podEntrySubjectIndex)
}

// NewIPCacheEntryTable creates the mirror of sluice_ipcache.
func NewIPCacheEntryTable(db *statedb.DB) (statedb.RWTable[*IPCacheEntry], error) {
	return statedb.NewTable(db, "map-ipcache", mapEntryKeyIndex[bpf.IPCacheKey, bpf.IPCacheValue]())
}

// NewSourceEntryTable creates the mirror of sluice_sources.
func NewSourceEntryTable(db *statedb.DB) (statedb.RWTable[*SourceEntry], error) {
	return statedb.NewTable(db, "map-sources", mapEntryKeyIndex[bpf.SourceKey, bpf.SourceValue](),
		sourceEntryClassIndex, sourceEntryLeavingIndex)
}

// NewEgressEntryTable creates the mirror of sluice_egress.
func NewEgressEntryTable(db *statedb.DB) (statedb.RWTable[*EgressEntry], error) {
	return statedb.NewTable(db, "map-egress", mapEntryKeyIndex[bpf.EgressKey, bpf.EgressValue](),
		egressEntryClassIndex, egressEntryGroupIndex)
}

// NewGatewayEntryTable creates the mirror of sluice_gateways.
func NewGatewayEntryTable(db *statedb.DB) (statedb.RWTable[*GatewayEntry], error) {
	return statedb.NewTable(db, "map-gateways", mapEntryKeyIndex[bpf.GatewayKey, bpf.GatewayValue](), gatewayEntryGroupIndex)
}

// NewExitEntryTable creates the mirror of sluice_exits.
func NewExitEntryTable(db *statedb.DB) (statedb.RWTable[*ExitEntry], error) {
	return statedb.NewTable(db, "map-exits", mapEntryKeyIndex[bpf.ExitKey, bpf.ExitValue](), exitEntryIfIndexIndex)
}

// NewCoveredEntryTable creates the mirror of sluice_covered.
func NewCoveredEntryTable(db *statedb.DB) (statedb.RWTable[*CoveredEntry], error) {
	return statedb.NewTable(db, "map-covered", mapEntryKeyIndex[bpf.CoveredKey, bpf.CoveredValue]())
}

// NewNodeEntryTable creates the mirror of sluice_nodes.
func NewNodeEntryTable(db *statedb.DB) (statedb.RWTable[*NodeEntry], error) {
	return statedb.NewTable(db, "map-nodes", mapEntryKeyIndex[bpf.NodeKey, bpf.NodeValue]())
}

// NewConfigEntryTable creates the mirror of sluice_config.
func NewConfigEntryTable(db *statedb.DB) (statedb.RWTable[*ConfigEntry], error) {
	return statedb.NewTable(db, "map-config", mapEntryKeyIndex[bpf.ConfigKey, bpf.ConfigValue]())
}

// PolicyMapEntriesOfSubject queries, with Prefix, the verdicts that the kernel
// has for a subject class.
func PolicyMapEntriesOfSubject(class uint32) statedb.Query[*PolicyMapEntry] {
	return policyMapEntryPairIndex.QueryFromKey(index.Uint32(class))
}

// NewPolicyMapEntryTable creates the mirror of sluice_policy.
func NewPolicyMapEntryTable(db *statedb.DB) (statedb.RWTable[*PolicyMapEntry], error) {
	return statedb.NewTable(db, "map-policy", mapEntryKeyIndex[bpf.PolicyKey, bpf.PolicyValue](), policyMapEntryPairIndex, policyMapEntryPeerIndex)
}
