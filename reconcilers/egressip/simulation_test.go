// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// network is a cluster in which each node has a clock of its own, packets take any time or get
// lost, agents stand still or start anew, and each node finds by itself who shall have an address.
type network struct {
	testing.TB
	random *rand.Rand
	time   uint64 // nanoseconds, as no node knows it
	nodes  []*simNode
	sets   []*tables.EgressVoters // all generations
	flying []packet

	isReliable bool // no packet is lost or late
	addrs      []netip.Addr
	held       map[netip.Addr]int // in how many steps an address had a node
	moves      map[netip.Addr]int
	owner      map[netip.Addr]*simNode
}

type packet struct {
	at       uint64
	from, to netip.Addr
	frame    []byte
}

// simNode is a node: its agent's voter, and what its programs have noted.
type simNode struct {
	*network
	index  int
	rate   float64 // of its clock
	offset uint64
	ips    tablestest.Table[*tables.EgressIP]
	voter  *voter
	set    *tables.EgressVoters
	taken  uint64 // when
	votes  map[netip.Addr]*bpf.VotesValue
	kernel bpf.VotersValue
	clocks map[netip.Addr][2]uint64 // clock and nonce of the answers of others
	next   uint64                   // when the agent runs again
	cut    bool                     // from all others
	side   int                      // only nodes of the same side reach each other
}

func (n *simNode) addr() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n.index)}) }
func (n *simNode) name() string     { return fmt.Sprintf("node-%d", n.index) }
func (n *simNode) now() uint64      { return n.offset + uint64(float64(n.time)*n.rate) }

func newNetwork(t testing.TB, seed uint64, nodes, voters int) *network {
	w := &network{
		TB: t, random: rand.New(rand.NewPCG(seed, 1)), time: 1e9, addrs: []netip.Addr{v4, v6},
		held: map[netip.Addr]int{}, moves: map[netip.Addr]int{}, owner: map[netip.Addr]*simNode{},
	}
	set := &tables.EgressVoters{Generation: 1, Sets: []tables.VoterSet{{Number: 1}}}
	for i := range nodes {
		n := &simNode{
			network: w, index: i, rate: 0.98 + 0.04*w.random.Float64(), offset: w.random.Uint64N(1e15),
			votes: map[netip.Addr]*bpf.VotesValue{}, clocks: map[netip.Addr][2]uint64{},
		}
		n.kernel.Clock = w.random.Uint64()
		for _, addr := range w.addrs {
			n.votes[addr] = &bpf.VotesValue{}
		}
		w.nodes = append(w.nodes, n)
		if i < voters {
			voter := tables.EgressVoter{Node: n.name(), Addr: n.addr()}
			set.Sets[0].Voters = append(set.Sets[0].Voters, voter)
		}
		n.start()
	}
	w.sets = []*tables.EgressVoters{set}
	for _, n := range w.nodes {
		n.take(set)
	}
	return w
}

// start starts an agent that knows nothing but what the kernel has.
func (n *simNode) start() {
	db := statedb.New()
	n.ips = tablestest.Open(n.TB, db, tables.NewEgressIPTable)
	keys := tablestest.Open(n.TB, db, tables.NewOverlayKeysTable)
	keys.Put(&tables.OverlayKeys{Keys: []bpf.OverlayKey{bpf.NewOverlayKey([16]byte{1})}})
	settings := tablestest.Open(n.TB, db, tables.NewDatapathConfigTable)
	settings.Put(&tables.DatapathConfig{Underlay: n.addr(), OverlayIfIndex: 1})
	p := params{
		Config: DefaultConfig, DB: db, Log: hivetest.Logger(n.TB), IPs: n.ips, Keys: keys,
		Settings: settings, Votes: tablestest.Open(n.TB, db, tables.NewEgressIPVoteTable),
		Owners:    tablestest.Open(n.TB, db, tables.NewEgressIPOwnerTable),
		Untaken:   tablestest.Open(n.TB, db, tables.NewEgressIPUntakenTable),
		LocalNode: tables.LocalNode{Name: n.name()},
	}
	open := func(frames.Overlay) (transport, error) { return n, nil }
	n.voter = newVoter(p, &sockets{params: p, open: open})
	n.voter.begin(n.now(), n.kernel.Term)
	for _, addr := range n.addrs {
		n.choose(addr, n.random.IntN(len(n.nodes)))
	}
}

// choose has the node find that another one shall have an address.
func (n *simNode) choose(addr netip.Addr, node int) {
	o := n.nodes[min(node, len(n.nodes)-1)]
	n.ips.Put(&tables.EgressIP{Addr: addr, Node: o.name(), NodeAddr: o.addr(), IfIndex: 1})
}

// take takes over sets of voters.
func (n *simNode) take(set *tables.EgressVoters) {
	if n.set == set {
		return
	}
	n.set, n.taken = set, n.now()
	n.kernel.Term = uint64(DefaultConfig.EgressIPLease)
	n.kernel.Sets = [bpf.VoterSets]bpf.VoterSet{}
	for _, s := range set.Sets {
		n.kernel.Sets[s.Number%bpf.VoterSets] = kernelVoters(s)
	}
}

// hasTaken reports whether no vote of the node is valid but those of a generation: see
// [keeper.takeOver].
func (n *simNode) hasTaken(set *tables.EgressVoters) bool {
	return n.set == set && n.now() >= max(n.taken+n.voter.patience(), n.voter.from)
}

// Send and Close implement [transport].
func (n *simNode) Send(frame []byte, to netip.Addr) error {
	isLost := !n.isReliable && n.random.IntN(10) == 0
	if n.cut || n.side != n.nodes[to.As4()[3]].side || isLost {
		return nil
	}
	delay := n.random.Uint64N(2e6)
	if !n.isReliable && n.random.IntN(20) == 0 {
		delay = n.random.Uint64N(2e9)
	}
	n.flying = append(n.flying, packet{n.time + delay, n.addr(), to, slices.Clone(frame)})
	return nil
}

func (*simNode) Close() error { return nil }

func (n *simNode) clockOf(node netip.Addr) (clock, nonce uint64, err error) {
	noted := n.clocks[node]
	return noted[0], noted[1], nil
}

func (n *simNode) voteForSelf(addr netip.Addr, until uint64) error {
	for _, set := range n.set.Of(n.name()) {
		vote := bpf.Vote{Until: until, Set: uint64(set.Number)}
		n.votes[addr].Votes[set.Number%bpf.VoterSets][set.Place(n.name())] = vote
	}
	return nil
}

// agent is what the agent does at each tick.
func (n *simNode) agent() {
	require.NoError(n, n.voter.listen(n.now, n.clockOf))
	require.NoError(n, n.voter.vote(n.set.Of(n.name()), n.now, n.clockOf, n.voteForSelf))
}

// receive is what the programs do: see programs/vote.h.
func (n *simNode) receive(p packet) {
	const kindAt, bodyAt, addrsAt = 7, 14, 14 + 32
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(p.frame[bodyAt+8*i:]) }
	if p.frame[kindAt] == 6 {
		if word(0) > n.clocks[p.from][1] {
			n.clocks[p.from] = [2]uint64{word(1), word(0)}
		}
		return
	}
	now := n.now()
	key := bpf.NewOverlayKey([16]byte{1})
	answer := bpf.ClockFrame(key, n.addr(), p.from, word(0), now+n.kernel.Clock)
	require.NoError(n, n.Send(answer, p.from))
	number := binary.NativeEndian.Uint32(p.frame[bodyAt+24:])
	side := number % bpf.VoterSets
	set := n.kernel.Sets[side]
	age := now + n.kernel.Clock - word(1)
	place := slices.Index(set.Voters[:], bpf.AddressFrom(p.from))
	if set.Number != number || age >= word(2) || place < 0 {
		return
	}
	until := now - age + word(2)
	for rest := p.frame[addrsAt:]; len(rest) > 0; rest = rest[16:] {
		vote := &n.votes[netip.AddrFrom16([16]byte(rest[:16])).Unmap()].Votes[side][place]
		if vote.Set != uint64(number) || vote.Until < until {
			*vote = bpf.Vote{Until: until, Set: uint64(number)}
		}
	}
}

// step lets a millisecond pass, and checks that no address has two nodes.
func (w *network) step() {
	w.Helper()
	w.time += uint64(time.Millisecond)
	var later []packet
	now := w.flying
	w.flying = nil
	for _, p := range now {
		to := w.nodes[p.to.As4()[3]]
		switch {
		case p.at > w.time:
			later = append(later, p)
		case !to.cut:
			to.receive(p)
		}
	}
	w.flying = append(w.flying, later...)
	for _, n := range w.nodes {
		if w.time >= n.next {
			n.agent()
			n.next = w.time + uint64(n.voter.pause())
		}
	}
	for _, addr := range w.addrs {
		var owners []*simNode
		for _, n := range w.nodes {
			if _, held := n.votes[addr].HeldBy(n.kernel, n.now()); held {
				owners = append(owners, n)
			}
		}
		require.LessOrEqual(w, len(owners), 1, "%s has two nodes", addr)
		if len(owners) == 1 {
			w.held[addr]++
			if w.owner[addr] != owners[0] {
				w.moves[addr]++
				w.owner[addr] = owners[0]
			}
		}
	}
}

func (w *network) steps(n int) {
	w.Helper()
	for range n {
		w.step()
	}
}

// all has all nodes find the same.
func (w *network) all(addr netip.Addr, node int) {
	for _, n := range w.nodes {
		n.choose(addr, node)
	}
}

// change takes the next step to a set of voters with a node more or less, if a majority of the last
// one has taken this step over.
func (w *network) change() {
	object := w.sets[len(w.sets)-1]
	last := object.Last()
	taken := 0
	for _, n := range w.nodes {
		if last.Place(n.name()) >= 0 && n.hasTaken(object) {
			taken++
		}
	}
	if taken < last.Majority() {
		return
	}
	next := &tables.EgressVoters{Generation: object.Generation + 1, Sets: []tables.VoterSet{last}}
	if len(object.Sets) == 1 {
		n := w.nodes[w.random.IntN(len(w.nodes))]
		voters := slices.DeleteFunc(slices.Clone(last.Voters), func(v tables.EgressVoter) bool {
			return v.Node == n.name()
		})
		if len(voters) == len(last.Voters) {
			voters = append(voters, tables.EgressVoter{Node: n.name(), Addr: n.addr()})
		}
		if len(voters) == 0 || len(voters) > tables.MaxEgressVoters {
			return
		}
		next.Sets = append(next.Sets, tables.VoterSet{Number: last.Number + 1, Voters: voters})
	}
	w.sets = append(w.sets, next)
}
