// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// clockOffset is added to the time of this node for voters.
const clockOffset = 1 << 60

const term = 10 * time.Second

// voters says which nodes vote, as one set.
func (f *fixture) voters(number uint32, nodes ...netip.Addr) {
	f.Helper()
	f.voterSets(voterSet(number, nodes...))
}

func voterSet(number uint32, nodes ...netip.Addr) bpf.VoterSet {
	set := bpf.VoterSet{Number: number, Majority: uint32(len(nodes)/2 + 1)}
	for i, node := range nodes {
		set.Voters[i] = bpf.AddressFrom(node)
	}
	return set
}

func (f *fixture) voterSets(sets ...bpf.VoterSet) {
	f.Helper()
	v := bpf.VotersValue{Clock: clockOffset}
	for _, set := range sets {
		v.Sets[set.Number%bpf.VoterSets] = set
	}
	require.NoError(f, f.Map(bpf.VotersMap).Put(uint32(0), v))
}

// mayHave says that this node may have an address, without a vote yet.
func (f *fixture) mayHave(addr netip.Addr) {
	f.Helper()
	require.NoError(f, f.AddFlags(bpf.ConfigFloating))
	require.NoError(f, f.Map(bpf.VotesMap).Put(
		bpf.ExitKey{Addr: bpf.AddressFrom(addr)}, bpf.VotesValue{}))
}

// votesFor reads the votes for an address.
func (f *fixture) votesFor(addr netip.Addr) (v bpf.VotesValue) {
	f.Helper()
	require.NoError(f, f.Map(bpf.VotesMap).Lookup(bpf.ExitKey{Addr: bpf.AddressFrom(addr)}, &v))
	return v
}

// held asks for an address and reports whether this node answers.
func (f *fixture) held(addr netip.Addr) bool {
	return f.at("from_netdev", f.asked(addr)).Verdict == packettest.Next
}

// vote has a node send votes for an address, given at a time ago.
func (f *fixture) vote(
	node netip.Addr, set uint32, ago time.Duration, addrs ...netip.Addr,
) *packettest.Result {
	f.Helper()
	return f.probed(node, bpf.VotesFrame(firstKey, node, f.NodeIP, bpf.Votes{
		Nonce: nonce, Clock: f.bootTime() + clockOffset - uint64(ago), Term: term,
		Set: set, Addrs: addrs,
	}))
}

func votingFixture(f *fixture) {
	config := f.Config
	config.Underlay = bpf.AddressFrom(f.NodeIP)
	require.NoError(f, f.SetConfig(config))
	require.NoError(f, f.SetOverlayKeys(false, firstKey))
}

// The node has an address as long as a majority of the voters of this generation votes for it.
func TestMajority(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		votingFixture(f)
		first, second := f.SecondNode, f.ThirdNode
		f.mayHave(f.Egress)
		require.False(f, f.held(f.Egress), "there are no voters")
		f.voters(7, first, second, f.NodeIP)
		f.vote(first, 7, 0, f.Egress)
		require.False(f, f.held(f.Egress), "one of three")
		f.vote(first, 7, 0, f.Egress)
		require.False(f, f.held(f.Egress), "the same one")
		for _, set := range []uint32{5, 6, 8, 9} {
			f.vote(second, set, 0, f.Egress)
			require.False(f, f.held(f.Egress), "of another set")
		}
		f.vote(second, 7, 0, f.NodeIP)
		require.False(f, f.held(f.Egress), "for another address")
		f.vote(second, 7, term, f.Egress)
		require.False(f, f.held(f.Egress), "it has run out")
		f.vote(second, 7, -time.Second, f.Egress)
		require.False(f, f.held(f.Egress), "of a time that has not come")
		f.vote(second, 7, 0, f.NodeIP, f.Egress)
		require.True(f, f.held(f.Egress))
		until := f.votesFor(f.Egress).Votes[1][1].Until
		require.LessOrEqual(f, until, f.bootTime()+uint64(term))
		f.vote(second, 7, term/2, f.Egress)
		require.Equal(f, until, f.votesFor(f.Egress).Votes[1][1].Until, "one that is late takes nothing")

		f.voters(8, first, f.NodeIP, second)
		require.False(f, f.held(f.Egress), "of the former set")
		f.vote(first, 8, 0, f.Egress)
		require.False(f, f.held(f.Egress))
		f.vote(second, 8, 0, f.Egress)
		require.True(f, f.held(f.Egress))
		f.voters(9, f.NodeIP, second)
		f.vote(first, 9, 0, f.Egress)
		f.vote(second, 9, 0, f.Egress)
		require.False(f, f.held(f.Egress), "the first one votes no more")
	})
}

// While one set replaces another a majority of either is enough, and votes of both are not mixed.
func TestMajorityOfTwoSets(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		votingFixture(f)
		first, second := f.SecondNode, f.ThirdNode
		three, two := voterSet(7, first, second, f.NodeIP), voterSet(8, first, second)
		f.mayHave(f.Egress)
		f.voters(7, first, second, f.NodeIP)
		f.vote(first, 7, 0, f.Egress)
		f.vote(second, 7, term/2, f.Egress)
		require.True(f, f.held(f.Egress))
		f.voterSets(three, two)
		require.True(f, f.held(f.Egress), "of the former set")
		f.voters(8, first, second)
		require.False(f, f.held(f.Egress))
		f.voterSets(three, two)
		f.vote(first, 8, 0, f.Egress)
		f.vote(second, 8, 0, f.Egress)
		f.voters(8, first, second)
		require.True(f, f.held(f.Egress), "of the next set")
		f.voterSets(two, voterSet(9, second, f.NodeIP, first))
		require.True(f, f.held(f.Egress), "of the set that is the former now")

		f.mayHave(f.SecondNode)
		f.voterSets(three, two)
		f.vote(first, 8, 0, f.SecondNode)
		f.vote(second, 7, 0, f.SecondNode)
		require.False(f, f.held(f.SecondNode), "one of each")

		// Places of votes of a set that has gone are those of other nodes.
		f.voters(10, first, f.NodeIP, second)
		f.vote(second, 10, 0, f.SecondNode)
		require.False(f, f.held(f.SecondNode))
	})
}

// Votes are answered with the time here, and the time of another node is noted.
func TestVotesAreAnswered(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		votingFixture(f)
		node := f.SecondNode
		f.voters(1, node)
		var most []netip.Addr
		for range bpf.VotesInFrame {
			most = append(most, f.Egress)
		}
		for _, addrs := range [][]netip.Addr{nil, {f.Egress}, most} {
			before := f.bootTime() + clockOffset
			res := f.vote(node, 2, 0, addrs...)
			require.Equal(f, packettest.Redirect, res.Verdict)
			require.Equal(f, node, res.Tunnel.Remote)
			clock := binary.NativeEndian.Uint64(res.Out[22:])
			require.Equal(f, bpf.ClockFrame(firstKey, f.NodeIP, node, nonce, clock), res.Out)
			require.GreaterOrEqual(f, clock, before)
			require.LessOrEqual(f, clock, f.bootTime()+clockOffset)
		}
		answer := bpf.ClockFrame(firstKey, node, f.NodeIP, nonce, 99)
		f.dropped(f.probed(node, answer), bpf.ReasonNoRule)
		f.probes(node)
		require.Equal(f, packettest.Next, f.probed(node, answer).Verdict)
		require.EqualValues(f, 99, f.path(node).Clock)
		require.EqualValues(f, nonce, f.path(node).ClockNonce)
		for _, late := range []uint64{nonce, nonce - 1} {
			answer := bpf.ClockFrame(firstKey, node, f.NodeIP, late, 9)
			f.dropped(f.probed(node, answer), bpf.ReasonNoRule)
			require.EqualValues(f, 99, f.path(node).Clock)
		}
	})
}

// TestLongVotes: no vote is valid for longer than agents may say.
func TestLongVotes(t *testing.T) {
	f := newFixture(t, packettest.World4)
	votingFixture(f)
	node := f.SecondNode
	f.voters(1, node)
	f.mayHave(f.Egress)
	f.probed(node, bpf.VotesFrame(firstKey, node, f.NodeIP, bpf.Votes{
		Nonce: nonce, Clock: f.bootTime() + clockOffset, Term: term + 1, Set: 1,
		Addrs: []netip.Addr{f.Egress},
	}))
	require.False(f, f.held(f.Egress))
	f.vote(node, 1, 0, f.Egress)
	require.True(f, f.held(f.Egress))
}

// What no node of the cluster has sent by a key for just this is dropped.
func TestVotesForged(t *testing.T) {
	f := newFixture(t, packettest.World4)
	votingFixture(f)
	require.NoError(f, f.SetOverlayKeys(true, firstKey))
	node := f.SecondNode
	f.probes(node)
	f.mayHave(f.Egress)
	f.voters(1, node)
	votes := bpf.Votes{Nonce: nonce, Clock: f.bootTime() + clockOffset, Term: term, Set: 1,
		Addrs: []netip.Addr{f.Egress}}
	for name, right := range map[string][]byte{
		"votes": bpf.VotesFrame(firstKey, node, f.NodeIP, votes),
		"clock": bpf.ClockFrame(firstKey, node, f.NodeIP, nonce, 1),
		"owner": bpf.OwnerFrame(firstKey, node, f.NodeIP, 1, votes.Addrs),
	} {
		for i := range right {
			if i == 12 || i == 13 {
				continue // the type
			}
			broken := append([]byte{}, right...)
			broken[i] ^= 1
			require.Equal(f, packettest.Drop, f.probed(node, broken).Verdict, "%s: byte %d", name, i)
		}
		for _, short := range []int{20, len(right) - 1} {
			require.Equal(f, packettest.Drop, f.probed(node, right[:short]).Verdict, name)
		}
	}
	for name, forged := range map[string][]byte{
		"another key":    bpf.VotesFrame(secondKey, node, f.NodeIP, votes),
		"from elsewhere": bpf.VotesFrame(firstKey, f.ThirdNode, f.NodeIP, votes),
		"to elsewhere":   bpf.VotesFrame(firstKey, node, f.ThirdNode, votes),
	} {
		f.dropped(f.probed(node, forged), bpf.ReasonOverlayKey)
		require.False(f, f.held(f.Egress), name)
	}
	require.Zero(f, f.votesFor(f.Egress))
	require.Zero(f, f.path(node))
	many := votes
	for range bpf.VotesInFrame {
		many.Addrs = append(many.Addrs, f.Egress)
	}
	f.dropped(f.probed(node, bpf.VotesFrame(firstKey, node, f.NodeIP, many)), bpf.ReasonMalformed)
	f.probed(node, bpf.VotesFrame(firstKey, node, f.NodeIP, votes))
	require.True(f, f.held(f.Egress))
}

// toldBy reads which node has told that it has an address.
func (f *fixture) toldBy(addr netip.Addr) (v bpf.ToldValue) {
	f.Helper()
	require.NoError(f, f.Map(bpf.ToldMap).Lookup(bpf.ExitKey{Addr: bpf.AddressFrom(addr)}, &v))
	return v
}

// TestOwnerIsNoted: a node that tells that it has an address is noted, until another one does. What
// was sent before is not taken again.
func TestOwnerIsNoted(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		votingFixture(f)
		tell := func(node netip.Addr, number uint64) *packettest.Result {
			return f.probed(node, bpf.OwnerFrame(
				firstKey, node, f.NodeIP, number, []netip.Addr{f.NodeIP, f.Egress}))
		}
		f.dropped(tell(f.SecondNode, 5), bpf.ReasonNoRule)
		f.probes(f.SecondNode)
		f.probes(f.ThirdNode)
		key := bpf.ExitKey{Addr: bpf.AddressFrom(f.Egress)}
		require.NoError(f, f.Map(bpf.ToldMap).Put(key, bpf.ToldValue{}))
		require.Equal(f, packettest.Next, tell(f.SecondNode, 5).Verdict)
		require.Equal(f, bpf.AddressFrom(f.SecondNode), f.toldBy(f.Egress).Node)
		require.NotZero(f, f.toldBy(f.Egress).At)
		require.Equal(f, packettest.Next, tell(f.ThirdNode, 2).Verdict)
		require.Equal(f, bpf.AddressFrom(f.ThirdNode), f.toldBy(f.Egress).Node)
		for _, number := range []uint64{4, 5} {
			f.dropped(tell(f.SecondNode, number), bpf.ReasonNoRule)
		}
		require.Equal(f, bpf.AddressFrom(f.ThirdNode), f.toldBy(f.Egress).Node)
		tell(f.SecondNode, 6)
		require.Equal(f, bpf.AddressFrom(f.SecondNode), f.toldBy(f.Egress).Node)
	})
}
