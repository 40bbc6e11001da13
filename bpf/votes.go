// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/dchest/siphash"
)

// Maps of egress addresses that move (programs/vote.h): VotesMap is the name of that of the
// addresses that this node may have, by [ExitKey], VotersMap that of the nodes that vote for them,
// by 0, and ToldMap that of the nodes that have told that they have an address, by [ExitKey]. The
// agent adds and removes entries; the programs note what other nodes say.
const (
	VotesMap  = "sluice_votes"
	VotersMap = "sluice_voters"
	ToldMap   = "sluice_told"
)

// EgressVoters is how many nodes vote at most, VoterSets how many sets of them are in use while
// one replaces the other, and EgressIPs how many addresses a node may have.
const (
	EgressVoters = 5
	VoterSets    = 2
	EgressIPs    = 1024
)

// ToldEntries is of how many addresses a node knows which node has them.
const ToldEntries = 8192

// Vote is the vote of a node for another one.
type Vote struct {
	Until uint64 // nanoseconds of CLOCK_BOOTTIME
	Set   uint64 // number of the set of voters; 0: no vote
}

// VotesValue is a value of [VotesMap]. The node has the address while a majority of a set votes for
// it.
type VotesValue struct {
	Votes   [VoterSets][EgressVoters]Vote // by the set, as in VotersValue, and the place in it
	IfIndex uint32                        // device that gets the address; 0: not in use yet
	_       uint32                        // lock of the kernel
}

// VotersValue is the value of [VotersMap].
type VotersValue struct {
	// Clock is added to CLOCK_BOOTTIME when voters are told the time. It is random, so that times
	// of another boot are of no use.
	Clock uint64
	Term  uint64              // nanoseconds for which votes of this node are valid
	Sets  [VoterSets]VoterSet // by their numbers modulo VoterSets
}

// VoterSet is a set of nodes that vote.
type VoterSet struct {
	Number   uint32
	Majority uint32                // 0: there is no such set
	Voters   [EgressVoters]Address // underlay addresses
}

// ToldValue is a value of [ToldMap].
type ToldValue struct {
	Node Address // underlay address, zero if no node has told
	At   uint64  // nanoseconds of CLOCK_BOOTTIME
}

// HeldBy returns the voters whose votes are valid at a time of CLOCK_BOOTTIME, and whether they are
// a majority of a set.
func (v *VotesValue) HeldBy(voters VotersValue, now uint64) (by []netip.Addr, held bool) {
	for s, set := range voters.Sets {
		count := uint32(0)
		for i, vote := range v.Votes[s] {
			if vote.Set != uint64(set.Number) || vote.Until <= now {
				continue
			}
			count++
			if voter := set.Voters[i].Addr(); !slices.Contains(by, voter) {
				by = append(by, voter)
			}
		}
		held = held || set.Majority > 0 && count >= set.Majority
	}
	return by, held
}

// Kinds of frames beside probes.
const (
	probeVotes ProbeKind = 5
	probeClock ProbeKind = 6
	probeOwner ProbeKind = 7
)

// VotesInFrame is for how many addresses a frame has votes at most.
const VotesInFrame = 64

// Votes is a message to a node: which addresses it shall have.
type Votes struct {
	Nonce uint64 // greater than in any votes for that node before: answers to these are not taken

	// Clock is the time there, as the node has told it last. The votes are valid for Term from then
	// on.
	Clock uint64
	Term  time.Duration
	Set   uint32       // number of the set of voters that they are of
	Addrs []netip.Addr // at most VotesInFrame
}

// VotesFrame returns the frame, inside the overlay packet, of votes from one node to another.
func VotesFrame(key OverlayKey, from, to netip.Addr, v Votes) []byte {
	return addrsFrame(key, probeVotes, from, to, v)
}

// OwnerFrame returns the frame by which a node tells another one that it has addresses, at most
// VotesInFrame. The number is greater than in any such frame before.
func OwnerFrame(
	key OverlayKey, from, to netip.Addr, number uint64, addrs []netip.Addr,
) []byte {
	return addrsFrame(key, probeOwner, from, to, Votes{Nonce: number, Addrs: addrs})
}

func addrsFrame(key OverlayKey, kind ProbeKind, from, to netip.Addr, v Votes) []byte {
	body := binary.NativeEndian.AppendUint64(nil, v.Nonce)
	body = binary.NativeEndian.AppendUint64(body, v.Clock)
	body = binary.NativeEndian.AppendUint64(body, uint64(v.Term))
	body = binary.NativeEndian.AppendUint32(body, v.Set)
	body = binary.NativeEndian.AppendUint32(body, uint32(len(v.Addrs)))
	for _, addr := range v.Addrs {
		addr := addr.As16()
		body = append(body, addr[:]...)
	}
	return frame(key, kind, from, to, body)
}

// ClockFrame returns the frame of the answer to votes: the time of a node.
func ClockFrame(key OverlayKey, from, to netip.Addr, nonce, clock uint64) []byte {
	body := binary.NativeEndian.AppendUint64(nil, nonce)
	body = binary.NativeEndian.AppendUint64(body, clock)
	return frame(key, probeClock, from, to, body)
}

// frame returns a frame with a MAC of its body, its kind, and the nodes that it is from and to.
func frame(key OverlayKey, kind ProbeKind, from, to netip.Addr, body []byte) []byte {
	message := append(append(body[:len(body):len(body)], from.AsSlice()...), to.AsSlice()...)
	outer := byte(0)
	if to.Is4() {
		outer = 1
	}
	message = append(message, 0, 0, 0, 0, 0, 0, byte(kind), outer)
	hash := siphash.Hash(key.Halves[0], key.Halves[1], message)
	mac := binary.LittleEndian.AppendUint64(nil, hash)
	frame := append([]byte{2, key.Number}, mac[:4]...)
	frame = append(append(frame, 2, byte(kind)), mac[4:]...)
	frame = binary.BigEndian.AppendUint16(frame, EtherTypeProbe)
	return append(frame, body...)
}

// PinnedVotes returns the addresses of the entries that an agent has left in a BPF file system,
// none if there is no such map.
func PinnedVotes(bpffs string) (addrs []netip.Addr, err error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs, pinDir, VotesMap), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", VotesMap, err)
	}
	defer m.Close()
	var key ExitKey
	var value VotesValue
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		addrs = append(addrs, key.Addr.Addr())
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", VotesMap, err)
	}
	return addrs, nil
}
