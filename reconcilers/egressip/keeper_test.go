// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// An address comes with the votes, is announced several times, and goes with them. Its entry stays
// until nothing is translated to it.
func TestAddressComesAndGoes(t *testing.T) {
	w := newWorld(t)
	listen, err := arp.Dial(w.far)
	require.NoError(t, err)
	defer listen.Close()
	listen6, _, err := ndp.Listen(w.far, ndp.LinkLocal)
	require.NoError(t, err)
	defer listen6.Close()
	require.NoError(t, listen6.JoinGroup(allNodes))
	w.start()
	defer func() { w.stop() }()
	owner := &tables.PortOwner{
		OwnerKey: bpf.OwnerKey{Egress: bpf.AddressFrom(v6)}, Reconciled: tables.Pending()}
	w.portOwners.Put(owner)
	w.wants(v4, "node-1")
	w.wants(v6, "node-1")
	w.assigned(v4)
	require.Nil(t, w.row(v6), "replies to it would be dropped")
	known := *owner
	known.Reconciled = tables.Done()
	w.portOwners.Put(&known)
	for n := 0; n < 2; {
		require.NoError(t, listen.SetDeadline(time.Now().Add(await.Bound)))
		p, _, err := listen.Read()
		require.NoError(t, err)
		if p.SenderIP == v4 && p.TargetIP == v4 &&
			p.SenderHardwareAddr.String() == w.near.HardwareAddr.String() {
			n++
		}
	}
	for n := 0; n < 2; {
		require.NoError(t, listen6.SetDeadline(time.Now().Add(await.Bound)))
		m, _, _, err := listen6.ReadFrom()
		require.NoError(t, err)
		if na, ok := m.(*ndp.NeighborAdvertisement); ok && na.TargetAddress == v6 {
			require.True(t, na.Override && !na.Solicited)
			require.Equal(t, linkLayer(ndp.Target, w.near), na.Options)
			n++
		}
	}
	for _, addr := range []netip.Addr{v4, v6} {
		w.assigned(addr)
		require.Equal(t, []string{"node-1"}, w.row(addr).Votes)
		require.NotZero(t, w.row(addr).Generation)
	}
	w.eventually("both are counted", func() bool { return w.metric("sluice_egress_ips_held") == 2 })
	require.GreaterOrEqual(t, w.metric("sluice_egress_ips_taken_total"), 2.0)

	exit := &tables.ExitMirror{Key: keyOf(v6)}
	w.exits.Put(exit)
	w.wants(v4, "node-2")
	w.ips.Remove(&tables.EgressIP{Addr: v6})
	for _, addr := range []netip.Addr{v4, v6} {
		w.eventually("it goes", func() bool { return !w.row(addr).Assigned })
		require.False(t, w.has(addr))
		require.False(t, w.row(addr).Held)
		require.Empty(t, w.row(addr).Votes)
	}
	var v bpf.VotesValue
	require.NoError(t, w.votes.Lookup(keyOf(v6), &v))
	w.exits.Remove(exit)
	w.eventually("it is forgotten", func() bool { return w.row(v6) == nil })
	require.ErrorIs(t, w.votes.Lookup(keyOf(v6), &v), ebpf.ErrKeyNotExist)
	require.NoError(t, w.votes.Lookup(keyOf(v4), &v), "others may vote for this node again")

	require.Zero(t, w.metric("sluice_egress_ips_held"))
	w.wants(v4, "node-1")
	w.assigned(v4)
	w.eventually("it is counted", func() bool { return w.metric("sluice_egress_ips_held") == 1 })
	require.GreaterOrEqual(t, w.metric("sluice_egress_ips_taken_total"), 3.0)
}

// An address that becomes a fixed one goes, and is forgotten though packets are translated to it:
// the node may have it by others then, and no node votes on it.
func TestAddressBecomesFixed(t *testing.T) {
	w := newWorld(t)
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	w.assigned(v4)
	w.exits.Put(&tables.ExitMirror{Key: keyOf(v4)})
	w.ips.Put(&tables.EgressIP{Addr: v4, Pool: "f", Fixed: true, Owner: "node-1"})
	w.eventually("it is forgotten", func() bool { return w.row(v4) == nil })
	require.False(t, w.has(v4))
	var v bpf.VotesValue
	require.ErrorIs(t, w.votes.Lookup(keyOf(v4), &v), ebpf.ErrKeyNotExist)
	require.Empty(t, statedb.Collect(w.Votes.All(w.db.ReadTxn())))
}

// An agent that stops leaves the address; the next one goes on, or takes the address away if it
// shall be elsewhere by then.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.wants(v4, "node-1")
	w.assigned(v4)
	w.stop()
	require.True(t, w.has(v4))
	for _, node := range []string{"node-1", "node-2"} {
		w.fill()
		w.wants(v4, node)
		w.start()
		if node == "node-1" {
			w.assigned(v4)
			w.eventually("it is voted for", func() bool { return w.row(v4).Held })
			require.True(t, w.has(v4))
		} else {
			w.eventually("it goes", func() bool { return w.row(v4) != nil && !w.has(v4) })
		}
		w.stop()
	}
}

// An agent without --egress-ips takes the addresses of a former one from their devices, also while
// others go on to vote for this node.
func TestSwitchedOff(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.wants(v4, "node-1")
	w.assigned(v4)
	w.stop()
	entry, err := w.entries.votesFor(v4)
	require.NoError(t, err)
	entry.Votes[1][0].Until = now() + uint64(time.Hour)
	require.NoError(t, w.entries.put(v4, entry))
	w.fill()
	w.set.Remove(&tables.EgressVoters{}) // the object is not read
	w.keeper.Enabled.Enabled = false
	w.start()
	defer func() { w.stop() }()
	w.eventually("it goes", func() bool { return w.row(v4) == nil && !w.has(v4) })
}

// An address that another host has is not used, unless a node has told that it is that; and that of
// others on this node is left alone.
func TestConflicts(t *testing.T) {
	w := newWorld(t)
	answer := w.otherHost()
	defer answer.Close()
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-2") // which does not have it, as no node has told
	w.eventually("it may come", func() bool { return w.row(v4) != nil })
	w.wants(v4, "node-1")
	w.eventually("it is told", func() bool { return w.row(v4) != nil && w.row(v4).Problem != "" })
	require.Equal(t, "check 203.0.113.9 before use: 203.0.113.9 is in use by 02:00:00:00:00:09 on "+
		w.near.Name, w.row(v4).Problem)
	require.False(t, w.has(v4))
	require.False(t, w.row(v4).Assigned)
	entry, err := w.entries.votesFor(v4)
	require.NoError(t, err)
	require.Zero(t, entry.IfIndex, "the programs do not use it either")
	// What answers may be a node that had it before: nothing is asked, as after a boot.
	w.ips.Put(&tables.EgressIP{
		Addr: v4, Pool: "a", Node: "node-1", NodeAddr: netip.MustParseAddr("192.0.2.1"),
		Owner: "node-2", OwnerAddr: netip.MustParseAddr("192.0.2.2"), IfIndex: uint32(w.near.Index),
	})
	w.assigned(v4)

	require.NoError(t, assign(v6, w.near.Index))
	defer func() { require.NoError(t, remove(v6)) }()
	w.addresses.Put(&tables.NodeAddress{Addr: v6, DeviceIndex: w.near.Index})
	w.wants(v6, "node-1")
	w.eventually("health tells", func() bool {
		w.health.Lock()
		defer w.health.Unlock()
		return w.health.Error != nil && strings.Contains(w.health.Error.Error(), "left alone")
	})
	require.Nil(t, w.row(v6))
	require.True(t, w.has(v6))
}

// otherHost answers for an address at the other end of the link, until it is closed.
func (w *world) otherHost() *arp.Client {
	answer, err := arp.Dial(w.far)
	require.NoError(w, err)
	go func() {
		for {
			p, _, err := answer.Read()
			if err != nil {
				return
			}
			if p.Operation == arp.OperationRequest && p.TargetIP == v4 {
				reply, _ := arp.NewPacket(arp.OperationReply, net.HardwareAddr{2, 0, 0, 0, 0, 9}, v4,
					p.SenderHardwareAddr, p.SenderIP)
				answer.WriteTo(reply, w.near.HardwareAddr)
			}
		}
	}()
	return answer
}

// Without a link there is no answer by which another host could tell that it has an address: a new
// one is not used before there was a link.
func TestConflictBeforeTheLink(t *testing.T) {
	w := newWorld(t)
	far, err := netlink.LinkByIndex(w.far.Index)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetDown(far))
	w.link(false)
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	w.eventually("it is told", func() bool { return w.row(v4) != nil && w.row(v4).Problem != "" })
	require.Contains(t, w.row(v4).Problem, "has no link")
	require.False(t, w.has(v4))

	require.NoError(t, netlink.LinkSetUp(far))
	answer := w.otherHost()
	defer answer.Close()
	w.link(true)
	w.eventually("it is found", func() bool {
		return strings.Contains(w.row(v4).Problem, "in use by")
	})
	require.False(t, w.has(v4))
	entry, err := w.entries.votesFor(v4)
	require.NoError(t, err)
	require.Zero(t, entry.IfIndex, "the programs do not use it either")
}

// Without voters, or with a set of them that has a mistake, nothing changes, and health tells why.
func TestVotersAreMissing(t *testing.T) {
	w := newWorld(t)
	tells := func(text string) {
		w.eventually(text, func() bool {
			w.health.Lock()
			defer w.health.Unlock()
			return w.health.Error != nil && strings.Contains(w.health.Error.Error(), text)
		})
	}
	row, _, _ := w.set.Get(w.db.ReadTxn(), tables.EgressVotersByIndex(0))
	w.set.Remove(row)
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	tells("no nodes vote yet")
	w.set.Put(row)
	w.assigned(v4)
	w.set.Put(&tables.EgressVoters{Error: "generation: is missing"})
	tells("generation: is missing")
	w.wants(v4, "node-2")
	w.eventually("it goes", func() bool { return !w.has(v4) })
	w.wants(v4, "node-1")
	w.assigned(v4) // by the set before
}

// TestVotesThatDoNotCount: a node that is not probed can answer no votes, which is told.
func TestVotesThatDoNotCount(t *testing.T) {
	w := newWorld(t)
	w.socket.open = func(frames.Overlay) (transport, error) { return &wire{}, nil }
	require.NoError(t, w.adopt())
	w.voter.from = 0
	w.wants(v4, "node-2")
	require.NoError(t, w.vote())
	require.ErrorContains(t, w.vote(), "192.0.2.2 do not count: it is not probed")
	require.NoError(t, w.paths.Put(
		bpf.NodeKey{Addr: bpf.AddressFrom(netip.MustParseAddr("192.0.2.2"))}, bpf.PathValue{}))
	require.NoError(t, w.vote())
}

// TestShorterTerm: the term of a former agent is kept until its votes have run out, for the agent
// that follows this one.
func TestShorterTerm(t *testing.T) {
	w := newWorld(t)
	clock := uint64(1e12)
	w.keeper.now = func() uint64 { return clock }
	const former = uint64(10 * time.Second)
	require.NoError(t, w.voters.Put(uint32(0), bpf.VotersValue{Term: former}))
	term := func() uint64 {
		var v bpf.VotersValue
		require.NoError(t, w.followVoters())
		require.NoError(t, w.voters.Lookup(uint32(0), &v))
		return v.Term
	}
	require.NoError(t, w.adopt())
	require.Equal(t, former, term())
	clock += patience(former) - 1
	require.Equal(t, former, term())
	clock++
	require.Equal(t, w.voter.term(), term())
}

// TestMoreAddressesThanRoom: addresses for which there is no room are told as one, and others come.
func TestMoreAddressesThanRoom(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.adopt())
	const more = 3
	for i := range bpf.EgressIPs + more {
		w.wants(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), "node-2")
	}
	for range 2 {
		require.EqualError(t, w.followCandidates(),
			"3 addresses cannot come here: sluice_votes has room for 1024")
		require.Len(t, w.owned, bpf.EgressIPs)
	}
	w.ips.Remove(&tables.EgressIP{Addr: netip.AddrFrom4([4]byte{203, 0, 0, 0})})
	require.Error(t, w.followCandidates())
	require.ErrorContains(t, w.followCandidates(), "2 addresses")
	require.Len(t, w.owned, bpf.EgressIPs)
}
