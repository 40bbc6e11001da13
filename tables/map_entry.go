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
	return UniqueIndex(mapEntryKey, KeysOf(mapKeyBytes[K], hexKey),
		func(e *MapEntry[K, V]) K { return e.Key })
}

func hexKey(s string) (index.Key, error) { return hex.DecodeString(s) }

// DeclareMirror is [Declare] for the mirror of a map. Its primary index is by the keys.
func DeclareMirror[K, V MapPart](
	name string, secondary ...statedb.Indexer[*MapEntry[K, V]],
) func(*statedb.DB) (statedb.RWTable[*MapEntry[K, V]], error) {
	return Declare(name, mapEntryKeyIndex[K, V](), secondary...)
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
	classEntryDigestIndex = Index("digest", KeysOf(RoleDigest.key, hexKey),
		func(e *ClassEntry) RoleDigest { return RoleDigest{e.Key.Role, e.Value.Digest} })

	sourceEntryClassIndex = Index("class", Uint32Keys,
		func(e *SourceEntry) uint32 { return e.Value.Class })
	sourceEntryLeavingIndex = IndexIf("leaving", Uint32Keys,
		func(e *SourceEntry) (uint32, bool) { return e.Value.Class, e.Wanted != WantedSame })

	egressEntryClassIndex = Index("class", Uint32Keys,
		func(e *EgressEntry) uint32 { return e.Key.Class })
	egressEntryGroupIndex = Index("group", Uint32Keys,
		func(e *EgressEntry) uint32 { return e.Value.Group })

	gatewayEntryGroupIndex = Index("group", Uint32Keys,
		func(e *GatewayEntry) uint32 { return e.Key.Group })

	podEntryIfIndexIndex = IndexIf("ifindex", Uint32Keys,
		func(e *PodEntry) (uint32, bool) { return e.Value.IfIndex, e.Value.IfIndex != 0 })
	exitEntryIfIndexIndex = IndexIf("ifindex", Uint32Keys,
		func(e *ExitEntry) (uint32, bool) { return e.Value.IfIndex, e.Value.IfIndex != 0 })

	// As the desired entries: by subject, direction and peer.
	policyMapEntryPairIndex = Index("pair", KeysOf(PolicyPair.key, index.Uint32String),
		func(e *PolicyMapEntry) PolicyPair { return PairOf(e.Key) })
	policyMapEntryPeerIndex = Index("peer", Uint32Keys,
		func(e *PolicyMapEntry) uint32 { return e.Key.Peer })

	podEntrySubjectIndex = Index("subject-class", Uint32Keys,
		func(e *PodEntry) uint32 { return e.Value.SubjectClass })

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

// NewClassEntryTable creates the table of what numbers stand for, as recorded.
var NewClassEntryTable = DeclareMirror("map-classes", classEntryDigestIndex)

// NewPodEntryTable creates the mirror of sluice_pods.
var NewPodEntryTable = DeclareMirror("map-pods", podEntryIfIndexIndex, podEntrySubjectIndex)

// NewIPCacheEntryTable creates the mirror of sluice_ipcache.
var NewIPCacheEntryTable = DeclareMirror[bpf.IPCacheKey, bpf.IPCacheValue]("map-ipcache")

// NewSourceEntryTable creates the mirror of sluice_sources.
var NewSourceEntryTable = DeclareMirror(
	"map-sources", sourceEntryClassIndex, sourceEntryLeavingIndex,
)

// NewEgressEntryTable creates the mirror of sluice_egress.
var NewEgressEntryTable = DeclareMirror("map-egress", egressEntryClassIndex, egressEntryGroupIndex)

// NewGatewayEntryTable creates the mirror of sluice_gateways.
var NewGatewayEntryTable = DeclareMirror("map-gateways", gatewayEntryGroupIndex)

// NewExitEntryTable creates the mirror of sluice_exits.
var NewExitEntryTable = DeclareMirror("map-exits", exitEntryIfIndexIndex)

// NewCoveredEntryTable creates the mirror of sluice_covered.
var NewCoveredEntryTable = DeclareMirror[bpf.CoveredKey, bpf.CoveredValue]("map-covered")

// NewNodeEntryTable creates the mirror of sluice_nodes.
var NewNodeEntryTable = DeclareMirror[bpf.NodeKey, bpf.NodeValue]("map-nodes")

// NewConfigEntryTable creates the mirror of sluice_config.
var NewConfigEntryTable = DeclareMirror[bpf.ConfigKey, bpf.ConfigValue]("map-config")

// PolicyMapEntriesOfSubject queries, with Prefix, the verdicts that the kernel
// has for a subject class.
func PolicyMapEntriesOfSubject(class uint32) statedb.Query[*PolicyMapEntry] {
	return policyMapEntryPairIndex.QueryFromKey(index.Uint32(class))
}

// NewPolicyMapEntryTable creates the mirror of sluice_policy.
var NewPolicyMapEntryTable = DeclareMirror(
	"map-policy", policyMapEntryPairIndex, policyMapEntryPeerIndex,
)
