// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	// A new owner announces an address so often at first, and then from time to time: a switch
	// may have been down, or have forgotten it.
	announceFirst = 5
	announceSoon  = uint64(time.Second)
	announceLater = uint64(30 * time.Second)

	// withdrawAfter is how long an address stays at the device without a majority: one that is
	// just late changes nothing.
	withdrawAfter = uint64(time.Second)

	retryAssign = uint64(5 * time.Second)

	// maxChecks is how many addresses are asked for at one time: each has a socket, which gets what
	// is said to all others.
	maxChecks = 64
)

// owned is an address that this node may have.
type owned struct {
	addr    netip.Addr
	ifIndex uint32

	own        ownVote
	voters     []string // that vote for this node, in order of name
	held       bool     // by a majority
	generation uint32   // since when, as in the row
	lapsed     uint64   // since when not
	looked     uint64   // when that was looked at last
	isGone     bool     // this node is no candidate any more
	isKnown    bool     // it was in use before: by another node, or here by a former agent

	moves     bool // it shall be at another device than that of its entry
	busy      bool // there is a task for it
	assigned  bool
	wasUp     bool   // the device
	announced int    // how often
	due       uint64 // when it is announced, or tried, next
	removal   uint64 // when it may be taken from the device, after that has failed
	problem   error
}

// ownVote is the vote of a node for itself, as last noted.
type ownVote struct {
	until      uint64
	generation uint32 // of the voters
}

// generations begin here: see [tables.EgressIPLease].
var generationEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func generationAt(t time.Time) uint32 {
	return uint32(max(t.Sub(generationEpoch), 0) / (100 * time.Millisecond))
}

// votes takes in who votes for this node. If that was not looked at for longer than a vote is
// valid, another node may have had the address meanwhile: it is announced anew.
func (o *owned) votes(
	entry bpf.VotesValue, kernel bpf.VotersValue, names map[netip.Addr]string, now uint64,
) {
	by, held := entry.HeldBy(kernel, now)
	o.voters = nil
	for _, voter := range by {
		name := names[voter]
		if name == "" { // of a set that a former agent knew
			name = voter.String()
		}
		o.voters = append(o.voters, name)
	}
	slices.Sort(o.voters)
	late := now-o.looked > kernel.Term
	o.looked = now
	switch {
	case held && (!o.held || late):
		o.generation, o.announced, o.due = generationAt(time.Now()), 0, 0
	case !held && o.held || o.lapsed == 0:
		o.lapsed = now
	}
	o.held = held
}

func (o *owned) row() *tables.EgressIPLease {
	row := &tables.EgressIPLease{
		Addr: o.addr, IfIndex: o.ifIndex, Votes: o.voters, Held: o.held, Assigned: o.assigned,
	}
	if o.held {
		row.Generation = o.generation
	}
	if o.problem != nil {
		row.Problem = o.problem.Error()
	}
	return row
}

// keep brings an address to its device, or takes it from there.
func (k *keeper) keep(ctx context.Context, o *owned) {
	if o.busy {
		return
	}
	now := k.now()
	if !o.held {
		if !o.assigned {
			o.problem = nil
		} else if o.isGone || now-o.lapsed >= withdrawAfter {
			k.withdraw(o)
		}
		return
	}
	device, _, found := k.Devices.Get(k.DB.ReadTxn(), tables.DeviceByIndex(int(o.ifIndex)))
	isUp := found && device.OperUp
	if isUp != o.wasUp { // what is at its other end may be another switch
		o.announced, o.due = 0, 0
	}
	o.wasUp = isUp
	switch {
	case o.moves || now < o.due:
	case !o.assigned && !o.isKnown && !isUp: // nothing could answer
		o.due = now + retryAssign
		o.problem = fmt.Errorf("check %s before use: device %d has no link", o.addr, o.ifIndex)
	case !o.assigned && !o.isKnown:
		k.check(ctx, o)
	case k.guarded(o):
		k.bring(o, device, isUp)
	default:
		o.problem = nil // soon
	}
}

// work has a worker do something with an address, of which nothing else is done meanwhile.
func (k *keeper) work(w *worker, o *owned, do func() error, then func(error)) {
	o.busy = true
	w.queue <- task{do, func(err error) {
		o.busy, o.problem = false, err
		then(err)
	}}
}

// withdraw takes an address from its device. After that it may come back at once.
func (k *keeper) withdraw(o *owned) {
	if k.now() < o.removal {
		return
	}
	k.work(k.configurer, o, func() error { return k.remove(o.addr) }, func(err error) {
		if err != nil {
			o.removal = k.now() + retryAssign
			return
		}
		o.assigned, o.announced, o.due = false, 0, 0
	})
}

// bring announces an address, and gives it to its device. The programs serve it before.
func (k *keeper) bring(o *owned, device *tables.Device, isUp bool) {
	o.due = k.now() + retryAssign
	if !isUp {
		noLink := fmt.Errorf("announce %s: device %d has no link", o.addr, o.ifIndex)
		k.give(o, noLink, false)
		return
	}
	k.work(k.announcer, o, func() error { return k.announcements.announce(o.addr, device) },
		func(announced error) { k.give(o, announced, true) })
}

// give gives an address to its device.
func (k *keeper) give(o *owned, announced error, isUp bool) {
	ifIndex := int(o.ifIndex)
	k.work(k.configurer, o, func() error { return assign(o.addr, ifIndex) }, func(err error) {
		o.assigned = o.assigned || err == nil
		o.problem = cmp.Or(err, announced)
		o.brought(err, announced, isUp, k.now())
	})
}

// brought says when an address is announced next, after it was brought to its device.
func (o *owned) brought(err, announced error, isUp bool, now uint64) {
	switch {
	case o.due == 0: // votes ended and came again meanwhile
	case err != nil:
		o.due = now + retryAssign
	case !isUp:
		o.due = now + announceLater
	case announced != nil: // as when votes ended: the programs drop what announces it
		o.due = now + announceSoon
	default:
		o.due = now + announceLater
		if o.announced++; o.announced < announceFirst {
			o.due = now + announceSoon
		}
	}
}

// guarded reports whether the programs are silent about the address without a majority.
func (k *keeper) guarded(o *owned) bool {
	txn := k.DB.ReadTxn()
	config := tables.ConfigEntryOf(txn, k.ConfigEntries)
	return config != nil && config.Value.Flags&bpf.ConfigFloating != 0 && tables.Unattached(txn,
		k.Attachments, o.ifIndex, bpf.ProgramFromNetdev, bpf.ProgramToNetdev) == ""
}

// check asks whether another host uses an address that is new.
func (k *keeper) check(ctx context.Context, o *owned) {
	if k.checking == maxChecks {
		return
	}
	k.checking++
	o.busy = true
	addr, device := o.addr, int(o.ifIndex)
	go func() {
		err := probe(ctx, addr, device)
		k.done <- func() {
			k.checking--
			o.busy, o.isKnown, o.problem = false, err == nil, nil // if not, it is asked again
			if err != nil {
				o.problem = fmt.Errorf("check %s before use: %w", addr, err)
				o.due = k.now() + retryAssign
			}
		}
	}()
}
