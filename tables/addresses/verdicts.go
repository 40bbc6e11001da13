// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// verdicts are those of the kernel, and which classes it has peers in, as far as
// the rule of local endpoints has taken that in. It tells from one round to the
// next to whom the kernel has come to forbid what it allowed: changes that lag
// behind the snapshot are seen in a later round, none is missed.
type verdicts struct {
	subjects map[uint32]*subjectVerdicts
	peers    map[uint32]int // addresses and prefixes in each peer class
	around   surroundings   // of peers
	begun    bool           // the first round, which takes in what there is, is over

	// lost are the subject classes that peers who go from one class to another
	// have something forbidden with, by the verdicts of now.
	lost map[flip][]uint32

	// Of the round: entries as they were before it, and classes between which
	// peers have moved.
	former map[tables.PolicyPair]map[bpf.PolicyKey]*bpf.PolicyValue
	moved  map[flip]struct{}
}

// subjectVerdicts are the verdicts of a subject class by direction and peer class.
type subjectVerdicts struct {
	peers [bpf.Directions]map[uint32]traffic
}

// traffic are verdicts of a pair of classes. The keys are of no class.
type traffic map[bpf.PolicyKey]bpf.PolicyValue

// flip is a change of the class of an address.
type flip struct{ from, to uint32 }

// everything is the traffic of those to whom no policy applies.
var everything = traffic{bpf.PolicyKeyOf(0, 0, 0, 0, 0, 0): {Precedence: bpf.PrecedenceDeny}}

// verdictsChanged stands for all addresses that a change of verdicts concerns:
// which they are is known when the changes of the round are.
var verdictsChanged netip.Addr

func newVerdicts() *verdicts {
	return &verdicts{
		subjects: map[uint32]*subjectVerdicts{}, peers: map[uint32]int{},
		around: surroundings{classes: map[bpf.IPCacheKey]uint32{}},
		former: map[tables.PolicyPair]map[bpf.PolicyKey]*bpf.PolicyValue{}, moved: map[flip]struct{}{},
		lost: map[flip][]uint32{},
	}
}

// policyChanged takes in a change of an entry of sluice_policy.
func (v *verdicts) policyChanged(_ statedb.ReadTxn, old, new *tables.PolicyMapEntry, affect func(netip.Addr)) {
	if old != nil && new != nil && old.Value == new.Value {
		return
	}
	entry := new
	if new == nil {
		entry = old
	}
	pair := tables.PolicyPair{Subject: entry.Key.Subject, Direction: entry.Key.Direction, Peer: entry.Key.Peer}
	key := bpf.PolicyKey{PrefixLen: entry.Key.PrefixLen, Protocol: entry.Key.Protocol, Port: entry.Key.Port}
	s := v.subjects[pair.Subject]
	if s == nil {
		s = &subjectVerdicts{peers: [bpf.Directions]map[uint32]traffic{{}, {}}}
		v.subjects[pair.Subject] = s
	}
	entries := s.peers[pair.Direction][pair.Peer]
	if entries == nil {
		entries = traffic{}
		s.peers[pair.Direction][pair.Peer] = entries
	}
	if v.former[pair] == nil {
		v.former[pair] = map[bpf.PolicyKey]*bpf.PolicyValue{}
	}
	was, had := entries[key]
	if _, noted := v.former[pair][key]; !noted {
		v.former[pair][key] = nil
		if had {
			v.former[pair][key] = &was
		}
	}
	if had {
		delete(entries, key)
	}
	if new != nil {
		entries[key] = new.Value
	}
	affect(verdictsChanged)
}

// peerChanged takes in a change of an entry of sluice_ipcache. What comes to have
// one of its own was judged as what is around it, and what loses it will be: pods
// send before it is known here that there is one, and addresses are given to others.
//
// If what is around it changes in the same round, it may have been judged as that was
// or as it is now. It is no matter which of them is taken: that one, too, goes from
// the one class to the other, and what is lost on a way is lost in one of its steps.
func (v *verdicts) peerChanged(_ statedb.ReadTxn, old, new *tables.IPCacheEntry, affect func(netip.Addr)) {
	if old != nil && new != nil && old.Value.PeerClass == new.Value.PeerClass {
		return
	}
	f := flip{}
	if old != nil {
		f.from = old.Value.PeerClass
		if v.peers[f.from]--; v.peers[f.from] == 0 {
			delete(v.peers, f.from)
		}
	} else {
		f.from = v.around.of(new.Key)
	}
	if new != nil {
		f.to = new.Value.PeerClass
		v.peers[f.to]++
		v.around.set(new.Key, f.to)
	} else {
		v.around.remove(old.Key)
		f.to = v.around.of(old.Key)
	}
	if !v.begun || f.from == f.to {
		return
	}
	if losers, known := v.lost[f]; known && len(losers) == 0 && len(v.former) == 0 {
		return // others have gone that way, by the same verdicts
	}
	v.moved[f] = struct{}{}
	affect(verdictsChanged)
}

// turn begins another round. It returns the subject classes, of those that are
// in use, to which something is forbidden that was allowed before: none in the
// first round, which takes in how things are.
func (v *verdicts) turn(used func(subject uint32) bool) map[uint32]bool {
	revoked := map[uint32]bool{}
	changed := len(v.former) > 0
	if changed {
		clear(v.lost)
	}
	if v.begun {
		for pair := range v.former {
			if !revoked[pair.Subject] && used(pair.Subject) && v.changeRevokes(pair) {
				revoked[pair.Subject] = true
			}
		}
		for f := range v.moved {
			for _, subject := range v.losers(f) {
				if !revoked[subject] && used(subject) {
					revoked[subject] = true
				}
			}
		}
	}
	v.begun = true
	if changed {
		clear(v.lost) // what is in it is by former entries, too
	}
	clear(v.former)
	clear(v.moved)
	return revoked
}

// losers are the subject classes with which peers that go to another class have
// something forbidden. That is looked at once, until verdicts change.
func (v *verdicts) losers(f flip) []uint32 {
	losers, known := v.lost[f]
	if !known {
		for subject, s := range v.subjects {
			if s.tells(f) && v.moveRevokes(subject, f) {
				losers = append(losers, subject)
			}
		}
		v.lost[f] = losers
	}
	return losers
}

// changeRevokes reports whether the entries of a pair have come to forbid
// something to somebody, whose class is as before.
func (v *verdicts) changeRevokes(pair tables.PolicyPair) bool {
	anyPeer := pair
	anyPeer.Peer = bpf.AnyPeerClass
	wasAny, isAny := v.was(anyPeer), v.is(anyPeer)
	if pair.Peer != bpf.AnyPeerClass {
		return v.peers[pair.Peer] > 0 && revokes(v.was(pair), wasAny, v.is(pair), isAny)
	}
	if revokes(nil, wasAny, nil, isAny) {
		return true
	}
	for peer := range v.subjects[pair.Subject].peers[pair.Direction] {
		pair.Peer = peer
		if peer != bpf.AnyPeerClass && v.peers[peer] > 0 && revokes(v.was(pair), wasAny, v.is(pair), isAny) {
			return true
		}
	}
	return false
}

// moveRevokes reports whether peers that went to another class have something
// forbidden with a subject. They may have gone before or after the entries of
// their former class changed in the same round.
func (v *verdicts) moveRevokes(subject uint32, f flip) bool {
	for direction := range bpf.Direction(bpf.Directions) {
		of := func(verdicts func(tables.PolicyPair) traffic, peer uint32) traffic {
			return verdicts(tables.PolicyPair{Subject: subject, Direction: direction, Peer: peer})
		}
		alone := func(verdicts func(tables.PolicyPair) traffic, peer uint32) traffic {
			if peer == bpf.AnyPeerClass {
				return nil
			}
			return of(verdicts, peer)
		}
		to, isAny := alone(v.is, f.to), of(v.is, bpf.AnyPeerClass)
		if revokes(alone(v.was, f.from), of(v.was, bpf.AnyPeerClass), to, isAny) {
			return true
		}
		if len(v.former) > 0 && revokes(alone(v.is, f.from), isAny, to, isAny) {
			return true
		}
	}
	return false
}

// flipRevokes reports whether subjects that go from one class to another have
// something forbidden.
func (v *verdicts) flipRevokes(f flip) bool {
	if f.from == f.to || f.to == bpf.NoSubjectClass {
		return false
	}
	for direction := range bpf.Direction(bpf.Directions) {
		from, to := v.subjects[f.from].of(direction), v.subjects[f.to].of(direction)
		wasAny, isAny := from[bpf.AnyPeerClass], to[bpf.AnyPeerClass]
		if f.from == bpf.NoSubjectClass {
			wasAny = everything
		}
		if revokes(nil, wasAny, nil, isAny) {
			return true
		}
		for _, peers := range []map[uint32]traffic{from, to} {
			for peer := range peers {
				if peer != bpf.AnyPeerClass && v.peers[peer] > 0 && revokes(from[peer], wasAny, to[peer], isAny) {
					return true
				}
			}
		}
	}
	return false
}

// of returns the verdicts of a direction by peer class, of a nil class none.
func (s *subjectVerdicts) of(direction bpf.Direction) map[uint32]traffic {
	if s == nil {
		return nil
	}
	return s.peers[direction]
}

// tells reports whether there are verdicts about one of the classes alone.
func (s *subjectVerdicts) tells(f flip) bool {
	for _, peers := range s.peers {
		for _, peer := range []uint32{f.from, f.to} {
			if _, found := peers[peer]; found && peer != bpf.AnyPeerClass {
				return true
			}
		}
	}
	return false
}

// is returns the verdicts of a pair.
func (v *verdicts) is(pair tables.PolicyPair) traffic {
	return v.subjects[pair.Subject].of(pair.Direction)[pair.Peer]
}

// was returns the verdicts of a pair as they were before the round.
func (v *verdicts) was(pair tables.PolicyPair) traffic {
	is, former := v.is(pair), v.former[pair]
	if len(former) == 0 {
		return is
	}
	was := traffic{}
	for key, value := range is {
		was[key] = value
	}
	for key, value := range former {
		if value == nil {
			delete(was, key)
		} else {
			was[key] = *value
		}
	}
	return was
}
