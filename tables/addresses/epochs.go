// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"crypto/sha256"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// epochParams are the mirrors of what the programs decide about a local pod's
// traffic by.
type epochParams struct {
	cell.In

	PodEntries     statedb.Table[*tables.PodEntry]
	IPCacheEntries statedb.Table[*tables.IPCacheEntry]
	PolicyEntries  statedb.Table[*tables.PolicyMapEntry]
	SourceEntries  statedb.Table[*tables.SourceEntry]
	EgressEntries  statedb.Table[*tables.EgressEntry]
	CoveredEntries statedb.Table[*tables.CoveredEntry]
	Floor          *EpochFloor `optional:"true"`
	Maps           *bpf.Maps   `optional:"true"`
}

// epochs gives out the epochs of local endpoints. A connection keeps the verdict
// of its first packet while the epoch of its pod stays; so an address gets a new
// epoch when its traffic may be chosen where it was not, or forbidden where it was
// allowed, and it does so after the kernel has what chooses or forbids it.
type epochs struct {
	*epochParams
	verdicts *verdicts

	last uint32
}

// EpochFloor is what all epochs of a run are greater than, and those of earlier
// runs are not: the time in seconds, unless somebody provides another one. The
// kernel's map alone cannot tell it, as the last epochs given out may have been
// those of addresses that are gone, while their connections are remembered.
type EpochFloor uint32

// begin continues after the epochs that the former agent's pods have.
func (e *epochs) begin() {
	e.last = uint32(time.Now().Unix())
	if e.Floor != nil {
		e.last = uint32(*e.Floor)
	}
	if e.Maps != nil {
		e.last = max(e.last, e.Maps.Former().Epoch)
	}
}

func (e *epochs) next() uint32 {
	if e.last++; e.last == 0 {
		e.last++ // all have been given out once
	}
	return e.last
}

// round is a round of the rule: rules of a class are looked at once in it.
type round struct {
	*epochs
	txn      statedb.ReadTxn
	digests  map[uint32]bpf.Digest
	revision uint64 // of map-covered, plus one

	revoked map[uint32]bool // subject classes to which something was forbidden
	flips   map[flip]bool   // whether something is forbidden to whom they concern
}

func (e *epochs) round(txn statedb.ReadTxn, inUse func(statedb.ReadTxn, uint32) bool) *round {
	r := &round{
		epochs: e, txn: txn, digests: map[uint32]bpf.Digest{}, revision: e.CoveredEntries.Revision(txn) + 1,
		flips: map[flip]bool{},
	}
	r.revoked = e.verdicts.turn(func(class uint32) bool { return inUse(txn, class) })
	return r
}

// fill fills in the epoch of a row, and what it was given for. existing is the
// row as it was, nil if there is none.
func (r *round) fill(row, existing *tables.LocalEndpoint) {
	key := bpf.AddressFrom(row.Addr)
	source, _, inClass := r.SourceEntries.Get(r.txn, tables.MapEntryByKey[bpf.SourceKey, bpf.SourceValue](bpf.SourceKey{Addr: key}))
	var chosen bpf.Digest
	if inClass {
		row.SourceClass, chosen = source.Value.Class, r.chosen(source.Value.Class)
	}
	egress := row.Flags & egressFlags
	pod := r.podInKernel(row.Addr)
	switch {
	case existing != nil && existing.Endpoint == row.Endpoint:
		row.Epoch, row.Judged, row.Held = existing.Epoch, existing.Judged, existing.Held
	case existing == nil && pod == nil && !inClass && egress != 0:
		row.Epoch, row.Held = r.next(), r.revision
	default:
		row.Epoch, row.Judged = r.next(), chosen
	}
	r.judge(row, inClass, chosen)
	r.judgePolicy(row, existing, pod)
}

// judge raises the epoch of a row if connections that are alive with it may be
// chosen now and were not before.
func (r *round) judge(row *tables.LocalEndpoint, inClass bool, chosen bpf.Digest) {
	switch {
	case !inClass && row.Flags&egressFlags == 0: // everything goes its ordinary way
		row.Judged, row.Held = bpf.Digest{}, 0
	case !inClass && row.Held == 0: // held, but not all the time
		row.Judged = bpf.Digest{}
	case !inClass: // held from its beginning
	case row.Held == r.revision && r.covered(row.SourceClass):
		row.Judged, row.Held = chosen, 0
	default:
		if chosen != row.Judged && chosen != (bpf.Digest{}) {
			row.Epoch = r.next()
		}
		row.Judged, row.Held = chosen, 0
	}
}

// chosen is a digest of the destinations that the kernel sends to gateways for
// a class, and of the exclusions among them: zero if there are none. To which
// gateways is no matter, as connections that have one keep it.
func (r *round) chosen(class uint32) bpf.Digest {
	digest, found := r.digests[class]
	if found || class == 0 {
		return digest
	}
	h, any := sha256.New(), false
	for e := range r.EgressEntries.List(r.txn, tables.EgressEntriesByClass(class)) {
		text, _ := e.Key.Prefix().MarshalBinary()
		verdict := byte('-')
		if e.Value.Group != bpf.GroupExcluded {
			verdict, any = '+', true
		}
		h.Write(append(text, verdict))
	}
	if any {
		copy(digest[:], h.Sum(nil))
	}
	r.digests[class] = digest
	return digest
}

// covered reports whether the kernel holds pods for all destinations that it
// sends to gateways for a class.
func (r *round) covered(class uint32) bool {
	for e := range r.EgressEntries.List(r.txn, tables.EgressEntriesByClass(class)) {
		if e.Value.Group != bpf.GroupExcluded && !r.coveredPrefix(e.Key.Prefix()) {
			return false
		}
	}
	return true
}

func (r *round) coveredPrefix(prefix netip.Prefix) bool {
	for bits := prefix.Bits(); bits >= 0; bits-- {
		key := bpf.CoveredKeyFrom(netip.PrefixFrom(prefix.Addr(), bits).Masked())
		e, _, found := r.CoveredEntries.Get(r.txn, tables.MapEntryByKey[bpf.CoveredKey, bpf.CoveredValue](key))
		if found && e.Wanted == tables.WantedSame {
			return true
		}
	}
	return false
}
