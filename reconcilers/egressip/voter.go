// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// voter votes, if this node is a voter: for the node that it finds in egress-ips.
type voter struct {
	params
	socket   *sockets
	untaken  *untaken
	from     uint64 // until then votes of the former agent may be valid
	promises map[netip.Addr]promise
	peers    map[netip.Addr]*peer // nodes that this one votes for, by underlay address
	asked    bool                 // some node for its clock: votes for it are not valid yet
}

// promise says until when this node votes for no other node than this one. A node is its underlay
// address: another machine may come with the name of a former one.
type promise struct {
	node  string
	addr  netip.Addr
	until uint64
}

// peer is what this node knows of the clock of another one.
type peer struct {
	clock    uint64 // as it was told last, 0: not yet
	heard    uint64 // when that was read here, which was later
	last     uint64 // nonce of the last votes: each is greater than those before
	answered uint64 // nonce of the votes that are answered
}

func newVoter(p params, socket *sockets) *voter {
	return &voter{params: p, socket: socket, untaken: newUntaken(p),
		promises: map[netip.Addr]promise{},
		peers:    map[netip.Addr]*peer{}}
}

// term is for how long a vote is valid, and patience for how long this node waits until it
// has run out: clocks do not run alike.
func (v *voter) term() uint64     { return uint64(v.Config.EgressIPLease) }
func (v *voter) patience() uint64 { return patience(v.term()) }

func patience(term uint64) uint64 { return term + term/16 }

// begin waits for votes of a former agent to run out.
func (v *voter) begin(now, formerTerm uint64) {
	v.from = now + patience(max(formerTerm, v.term()))
}

// vote tells all nodes for which addresses this one votes, in each of some sets of voters. own is
// called with the address and the time until which the vote is valid for those of this node.
func (v *voter) vote(
	sets []tables.VoterSet, now func() uint64, clockOf clocks,
	own func(addr netip.Addr, until uint64) error,
) error {
	v.asked = false
	if len(sets) == 0 {
		return v.write(nil)
	}
	txn := v.DB.ReadTxn()
	key, out, err := v.socket.get(txn)
	if err != nil {
		return err
	}
	var rows []*tables.EgressIPVote
	ballots := map[netip.Addr][]netip.Addr{} // by the underlay address of the node
	var errs []error
	for ip := range v.IPs.All(txn) {
		if ip.Fixed {
			continue
		}
		row := &tables.EgressIPVote{Addr: ip.Addr, Node: ip.Node}
		rows = append(rows, row)
		at := now()
		if row.Wait = v.waits(ip, at); row.Wait != "" || ip.Node == "" {
			continue
		}
		if ip.Node == v.LocalNode.Name {
			v.promises[ip.Addr] = promise{ip.Node, ip.NodeAddr, at + v.patience()}
			errs = append(errs, own(ip.Addr, at+v.term()))
			continue
		}
		ballots[ip.NodeAddr] = append(ballots[ip.NodeAddr], ip.Addr)
		v.promise(ip)
	}
	v.forget(txn, now(), ballots)
	errs = append(errs, v.untaken.follow(rows, now()))
	for _, node := range slices.SortedFunc(maps.Keys(ballots), netip.Addr.Compare) {
		for some := range slices.Chunk(ballots[node], bpf.VotesInFrame) {
			for _, set := range sets {
				errs = append(errs, v.send(out, key, v.peer(node, clockOf), node, set.Number, some))
			}
		}
	}
	return errors.Join(append(errs, v.write(rows))...)
}

// answerSoon is how long a node has to answer its first votes, until they are repeated.
const answerSoon = 2 * time.Millisecond

// pause is for how long not to vote again: less if votes have no time of the node's clock yet.
func (v *voter) pause() time.Duration {
	if v.asked {
		return min(v.Config.tick(), answerSoon)
	}
	return v.Config.tick()
}

// clocks returns what the node of an underlay address has answered to votes last.
type clocks func(node netip.Addr) (clock, nonce uint64, err error)

// waits returns why this node does not vote for the owner of an address yet, empty if it does.
func (v *voter) waits(ip *tables.EgressIP, now uint64) string {
	if now < v.from {
		return "votes of the former agent may be valid"
	}
	if p, promised := v.promises[ip.Addr]; promised && p.addr != ip.NodeAddr && now < p.until {
		return "the vote for " + p.node + " is valid"
	}
	return ""
}

// promise notes that the next votes for a node have this address. They are valid for a term from
// the time there that is sent with them, which was before it was read here.
func (v *voter) promise(ip *tables.EgressIP) {
	p := v.peers[ip.NodeAddr]
	former := v.promises[ip.Addr]
	until := uint64(0)
	if former.addr == ip.NodeAddr {
		until = former.until
	}
	if p != nil && p.clock != 0 {
		until = max(until, p.heard+v.patience())
	}
	v.promises[ip.Addr] = promise{ip.Node, ip.NodeAddr, until}
}

// listen reads the clocks of all nodes that this one votes for.
func (v *voter) listen(now func() uint64, clockOf clocks) error {
	var errs []error
	for _, node := range slices.SortedFunc(maps.Keys(v.peers), netip.Addr.Compare) {
		p := v.peers[node]
		clock, nonce, err := clockOf(node)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if nonce > p.last { // sent by a host on the way, of a time when the clock here was ahead
			p.last, p.answered = nonce, nonce
		}
		if nonce <= p.answered {
			continue
		}
		p.answered, p.clock, p.heard = nonce, clock, now() // after it was read
	}
	return errors.Join(errs...)
}

// peer returns what this node knows of another one. The programs take no answer whose nonce is not
// greater than that of the last one, which may be of a former agent, so that answers that are sent
// again change nothing. Those of a former boot were to lesser nonces: they begin with the time.
func (v *voter) peer(node netip.Addr, clockOf clocks) *peer {
	p := v.peers[node]
	if p == nil {
		_, nonce, _ := clockOf(node) // listen tells what is wrong
		nonce = max(nonce, uint64(time.Now().UnixNano()))
		p = &peer{last: nonce, answered: nonce}
		v.peers[node], v.asked = p, true
	}
	return p
}

// send tells a node for which of its addresses this one votes.
func (v *voter) send(
	out transport, key bpf.OverlayKey, p *peer, node netip.Addr, set uint32, addrs []netip.Addr,
) error {
	p.last++
	frame := bpf.VotesFrame(key, v.socket.at.Underlay, node, bpf.Votes{
		Nonce: p.last, Clock: p.clock, Term: time.Duration(v.term()), Set: set, Addrs: addrs,
	})
	if err := out.Send(frame, node); err != nil {
		return fmt.Errorf("send votes to %s: %w", node, err)
	}
	return nil
}

// forget removes promises that have run out for addresses that are not used any more, and nodes
// that this one votes for no more.
func (v *voter) forget(txn statedb.ReadTxn, now uint64, ballots map[netip.Addr][]netip.Addr) {
	for addr, p := range v.promises {
		if _, _, used := v.IPs.Get(txn, tables.EgressIPByAddr(addr)); !used && now >= p.until {
			delete(v.promises, addr)
		}
	}
	for node := range v.peers {
		if ballots[node] == nil {
			delete(v.peers, node)
		}
	}
}

// write makes the rows of table egress-ip-votes these.
func (v *voter) write(rows []*tables.EgressIPVote) error {
	by := func(row *tables.EgressIPVote) statedb.Query[*tables.EgressIPVote] {
		return tables.EgressIPVoteByAddr(row.Addr)
	}
	equal := func(a, b *tables.EgressIPVote) bool { return *a == *b }
	return setRows(v.DB, v.Votes, by, equal, rows)
}
