// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
)

const (
	// A new owner tells all nodes at once, so often in succession, as messages get lost; and then
	// from time to time.
	tellFirst = 5
	tellLater = uint64(5 * time.Second)

	// believedFor is how long what a node has told is believed.
	believedFor = 3 * tellLater
)

// teller tells all other nodes which addresses this one has, and takes in what they tell.
type teller struct {
	params
	entries  kernelEntries
	now      func() uint64
	socket   *sockets
	told     []netip.Addr // last, in order
	times    int          // how often that was told
	due      uint64
	left     []message // of what is told now
	number   uint64    // of the last message
	expected map[netip.Addr]bool
}

// tell tells all nodes which addresses this one has, if it is due: new ones first. What there is no
// time for is told by the next calls.
func (h *teller) tell(has []netip.Addr) error {
	now := h.now()
	txn := h.DB.ReadTxn()
	if !slices.Equal(has, h.told) {
		added := slices.DeleteFunc(slices.Clone(has), func(addr netip.Addr) bool {
			_, known := slices.BinarySearchFunc(h.told, addr, netip.Addr.Compare)
			return known
		})
		h.told, h.times, h.due = has, min(len(added), 1), 0
		h.left = append(h.left, h.messages(txn, added)...)
	}
	if len(h.left) == 0 {
		if len(has) == 0 || now < h.due {
			return nil
		}
		h.times++
		if h.due = 0; h.times >= tellFirst {
			h.due = now + tellLater
		}
		h.left = h.messages(txn, has)
	}
	key, out, err := h.socket.get(txn)
	if err != nil {
		return err
	}
	var errs []error
	for until := now + uint64(h.Config.tick()); len(h.left) > 0 && h.now() < until; {
		if err := h.send(out, key, h.left[0]); err != nil {
			errs = append(errs, err)
		}
		h.left = h.left[1:]
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d messages could not be sent, such as: %w", len(errs), errs[0])
	}
	return nil
}

// message is what is to be told to a node.
type message struct {
	node  string
	to    netip.Addr
	addrs []netip.Addr
}

// messages returns what tells all other nodes that this one has addresses.
func (h *teller) messages(txn statedb.ReadTxn, addrs []netip.Addr) (messages []message) {
	for some := range slices.Chunk(addrs, bpf.VotesInFrame) {
		for node := range h.Nodes.All(txn) {
			if node.Name != h.LocalNode.Name && node.UnderlayIP().IsValid() {
				messages = append(messages, message{node.Name, node.UnderlayIP(), some})
			}
		}
	}
	return messages
}

// send tells a node which of some addresses this one still has.
func (h *teller) send(out transport, key bpf.OverlayKey, m message) error {
	var addrs []netip.Addr
	for _, addr := range m.addrs {
		if _, has := slices.BinarySearchFunc(h.told, addr, netip.Addr.Compare); has {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	// Greater than those before, also of a former run or boot.
	h.number = max(h.number+1, uint64(time.Now().UnixNano()))
	frame := bpf.OwnerFrame(key, h.socket.at.Underlay, m.to, h.number, addrs)
	if err := out.Send(frame, m.to); err != nil {
		return fmt.Errorf("tell node %s: %w", m.node, err)
	}
	return nil
}

// listen makes the rows of table egress-ip-owners what nodes have told of late. What this node has
// needs no message.
func (h *teller) listen(has []netip.Addr) error {
	txn := h.DB.ReadTxn()
	if err := h.expect(txn); err != nil {
		return err
	}
	now := h.now()
	owners := map[netip.Addr]netip.Addr{}
	for addr := range h.expected {
		v, err := h.entries.told(addr)
		if err != nil {
			return err
		}
		if v.At != 0 && (v.At >= now || now-v.At < believedFor) {
			owners[addr] = v.Node.Addr()
		}
	}
	if here := h.socket.at.Underlay; here.IsValid() {
		for _, addr := range has {
			owners[addr] = here
		}
	}
	return h.write(owners)
}

// expect has the programs note what nodes tell of the addresses that policies name.
func (h *teller) expect(txn statedb.ReadTxn) error {
	var errs []error
	used := map[netip.Addr]bool{}
	for ip := range h.IPs.All(txn) {
		if used[ip.Addr] = true; h.expected[ip.Addr] {
			continue
		}
		if err := h.entries.expect(ip.Addr); err != nil {
			errs = append(errs, err)
			continue
		}
		h.expected[ip.Addr] = true
	}
	for addr := range h.expected {
		if used[addr] {
			continue
		}
		if err := h.entries.expectNoMore(addr); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(h.expected, addr)
	}
	return errors.Join(errs...)
}

// adopt takes over the entries of a former agent.
func (h *teller) adopt() error {
	addrs, err := addrsOf(h.entries.Map(bpf.ToldMap))
	for _, addr := range addrs {
		h.expected[addr] = true
	}
	return err
}

func (h *teller) write(owners map[netip.Addr]netip.Addr) error {
	var rows []*tables.EgressIPOwner
	for addr, node := range owners {
		rows = append(rows, &tables.EgressIPOwner{Addr: addr, NodeAddr: node})
	}
	by := func(row *tables.EgressIPOwner) statedb.Query[*tables.EgressIPOwner] {
		return tables.EgressIPOwnerByAddr(row.Addr)
	}
	equal := func(a, b *tables.EgressIPOwner) bool { return *a == *b }
	return setRows(h.DB, h.Owners, by, equal, rows)
}

// transport sends frames to other nodes.
type transport interface {
	Send(frame []byte, to netip.Addr) error
	Close() error
}

// sockets has a socket for the overlay as it is.
type sockets struct {
	params
	open    func(frames.Overlay) (transport, error)
	current transport // nil: none
	at      frames.Overlay
}

// get returns the key that proves frames of this node, and what sends them.
func (s *sockets) get(txn statedb.ReadTxn) (key bpf.OverlayKey, out transport, err error) {
	key, found := tables.OwnOverlayKey(txn, s.Keys)
	if !found {
		return key, nil, errors.New("the overlay has no key: messages could not be proven")
	}
	o, found := tables.OverlayOf(txn, s.Settings)
	if !found {
		return key, nil, errors.New("there is no overlay device yet")
	}
	if s.current != nil && s.at == o {
		return key, s.current, nil
	}
	s.close()
	if out, err = s.open(o); err != nil {
		return key, nil, err
	}
	s.current, s.at = out, o
	return key, out, nil
}

func (s *sockets) close() {
	if s.current == nil {
		return
	}
	if err := s.current.Close(); err != nil {
		s.Log.Warn("Cannot close the socket for messages to other nodes", "error", err)
	}
	s.current = nil
}
