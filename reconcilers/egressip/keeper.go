// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// keeper has the addresses at this node for which a majority votes. It has but one goroutine, which
// never waits: beside it are those of workers, and of what asks whether others use an address.
type keeper struct {
	params
	voter         *voter
	teller        *teller
	socket        *sockets
	done          chan func() // functions that take in what has come of tasks and checks
	announcer     *worker
	configurer    *worker       // changes the addresses of devices, which may take long
	announcements announcements // of announcer
	entries       kernelEntries
	now           func() uint64
	remove        func(netip.Addr) error // takes an address from its device
	initialized   func(statedb.WriteTxn)
	owned         map[netip.Addr]*owned // addresses that this node may have
	checking      int                   // how many checks there are
	set           *tables.EgressVoters  // nil: it is not known yet
	setSince      uint64                // when the kernel and votes began to go by it
	kernelSet     bpf.VotersValue
	voted         error  // what was wrong with the last votes
	said          string // in health
	health        cell.Health
	metrics       metrics
}

func newKeeper(p params) *keeper {
	entries, socket := kernelEntries{p.Datapath}, &sockets{params: p, open: openSocket}
	done := make(chan func(), 2*bpf.EgressIPs)
	return &keeper{
		params: p, metrics: newMetrics(), owned: map[netip.Addr]*owned{},
		done: done, announcer: newWorker(done), configurer: newWorker(done), now: now,
		remove: remove, entries: entries, socket: socket,
		voter: newVoter(p, socket),
		teller: &teller{params: p, entries: entries, now: now, socket: socket,
			expected: map[netip.Addr]bool{}},
	}
}

// lookIdle is how often it is looked whether there is anything to do.
const lookIdle = time.Second

// run keeps the addresses until the context ends. Those that a former agent has left stay at their
// devices until it is known who votes.
func (k *keeper) run(ctx context.Context, health cell.Health) error {
	k.health = health
	if !k.Datapath.Loaded() {
		k.start()
		health.OK("Addresses are left alone, as there are no programs")
		<-ctx.Done()
		return nil
	}
	if err := k.adopt(); err != nil {
		return err
	}
	k.start() // before it is known who votes: where programs run depends on the rows
	if !tables.AwaitInitialized(ctx, k.DB, k.IPs, k.Voters, k.Keys, k.Settings, k.Addresses) {
		return nil
	}
	defer k.socket.close()
	defer k.startWorkers(ctx)()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			k.voted = k.vote()
			next := k.voter.pause()
			if len(k.owned) == 0 && k.IPs.NumObjects(k.DB.ReadTxn()) == 0 {
				next = lookIdle
			}
			timer.Reset(next)
		case takeIn := <-k.done:
			takeIn()
		case <-ctx.Done():
			return nil
		}
		k.report(errors.Join(k.voted, k.keepAll(ctx)))
	}
}

// startWorkers starts the workers, and returns what waits for their end.
func (k *keeper) startWorkers(ctx context.Context) (wait func()) {
	var workers sync.WaitGroup
	workers.Go(func() {
		defer k.announcements.close()
		k.announcer.run(ctx)
	})
	workers.Go(func() { k.configurer.run(ctx) })
	return workers.Wait
}

// adopt takes over what a former agent has left in the kernel.
func (k *keeper) adopt() error {
	set, err := k.entries.readVoters()
	if err != nil {
		return err
	}
	k.kernelSet = set
	k.voter.begin(k.now(), set.Term)
	addrs, err := addrsOf(k.entries.votes())
	if err != nil {
		return err
	}
	devices, err := devices()
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		entry, err := k.entries.votesFor(addr)
		if err != nil {
			return err
		}
		device := devices[addr]
		o := &owned{addr: addr, ifIndex: entry.IfIndex}
		o.isKnown = entry.IfIndex != 0
		o.assigned = device != 0 && device == int(entry.IfIndex)
		o.votes(entry, set, nil, k.now()) // what it has already is not taken
		k.owned[addr] = o
	}
	return errors.Join(k.teller.adopt(), k.write())
}

// start says that the rows are complete.
func (k *keeper) start() {
	wtxn := k.DB.WriteTxn(k.Leases)
	k.initialized(wtxn)
	wtxn.Commit()
}

// vote takes in who votes and which addresses this node may have, and votes.
func (k *keeper) vote() error {
	errs := []error{k.followVoters(), k.followCandidates()}
	if k.set != nil {
		errs = append(errs, k.voter.listen(k.now, k.entries.clockOf),
			k.voter.vote(k.set.Of(k.LocalNode.Name), k.now, k.entries.clockOf, k.voteForSelf),
			k.takeOver())
	} else if k.IPs.NumObjects(k.DB.ReadTxn()) > 0 {
		errs = append(errs, errors.New("no nodes vote yet: the operator chooses them"))
	}
	return errors.Join(errs...)
}

// keepAll brings the addresses to where the votes say. What is wrong with one address concerns no
// other.
func (k *keeper) keepAll(ctx context.Context) error {
	var errs []error
	for len(k.done) > 0 {
		(<-k.done)()
	}
	var has []netip.Addr
	names := k.voterNames()
	for _, addr := range slices.SortedFunc(maps.Keys(k.owned), netip.Addr.Compare) {
		o := k.owned[addr]
		entry, err := k.entries.votesFor(addr)
		errs = append(errs, err, k.serve(o, entry))
		had := o.held
		o.votes(entry, k.kernelSet, names, k.now())
		if o.held && !had {
			k.metrics.taken.Inc()
		}
		k.keep(ctx, o)
		errs = append(errs, o.problem)
		if o.held && o.assigned && o.wasUp { // without a link another node is to have it
			has = append(has, addr)
		}
	}
	k.metrics.held.Set(float64(len(has)))
	errs = append(errs, k.write(), k.teller.tell(has), k.teller.listen(has))
	return errors.Join(errs...)
}

// followCandidates has an entry in the kernel for each address that this node may have, and none
// for others. An entry stays as long as something may be translated to the address: without one the
// programs would not look whether the node has it.
func (k *keeper) followCandidates() error {
	txn := k.DB.ReadTxn()
	mayHave := map[netip.Addr]bool{}
	var errs []error
	refused := 0
	for ip := range k.IPs.All(txn) {
		if !k.Enabled.Enabled || ip.IfIndex == 0 {
			continue
		}
		mayHave[ip.Addr] = true
		o := k.owned[ip.Addr]
		isNew := o == nil
		if isNew {
			o = &owned{addr: ip.Addr}
		}
		o.isGone = false
		o.isKnown = o.isKnown || ip.Owner != "" && ip.Owner != k.LocalNode.Name
		switch {
		case o.ifIndex == ip.IfIndex:
			o.moves = false
		case !k.knowsOwners(txn, ip.Addr):
		case isNew && len(k.owned) == bpf.EgressIPs:
			refused++
		case isNew:
			errs = append(errs, k.add(txn, o, ip.IfIndex))
		default:
			errs = append(errs, k.move(o, ip.IfIndex))
		}
	}
	if refused > 0 {
		errs = append(errs, fmt.Errorf("%d addresses cannot come here: %s has room for %d",
			refused, bpf.VotesMap, bpf.EgressIPs))
	}
	for addr, o := range k.owned {
		if mayHave[addr] {
			continue
		}
		o.isGone = true
		if o.assigned || o.busy || k.translated(txn, addr) {
			continue
		}
		if err := k.entries.remove(addr); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(k.owned, addr)
	}
	return errors.Join(errs...)
}

// add makes the entry of an address, unless others have given that to this node.
func (k *keeper) add(txn statedb.ReadTxn, o *owned, ifIndex uint32) error {
	if a, _, found := k.Addresses.Get(txn, tables.NodeAddressesByAddr(o.addr)); found {
		return fmt.Errorf("%s was given to device %d by others: it is left alone",
			o.addr, a.DeviceIndex)
	}
	if err := k.put(o, ifIndex); err != nil {
		return err
	}
	k.owned[o.addr] = o
	return nil
}

// move has an address come to another device, when it has gone from the former one.
func (k *keeper) move(o *owned, ifIndex uint32) error {
	o.moves = true
	switch {
	case o.busy:
		return nil
	case o.assigned:
		k.withdraw(o)
		return nil
	}
	return k.put(o, ifIndex)
}

// serve has the programs use an address while this node has a majority, once it is known that no
// other host uses it.
func (k *keeper) serve(o *owned, entry bpf.VotesValue) error {
	if !o.isKnown || entry.IfIndex != 0 {
		return nil
	}
	entry.IfIndex = o.ifIndex
	return k.entries.put(o.addr, entry)
}

// put writes the entry of an address that is at no device, without a vote.
func (k *keeper) put(o *owned, ifIndex uint32) error {
	if err := k.entries.put(o.addr, bpf.VotesValue{}); err != nil {
		return err
	}
	o.ifIndex, o.own = ifIndex, ownVote{}
	o.moves, o.announced, o.due = false, 0, 0
	return nil
}

// knowsOwners reports whether the programs know which node gets a reply to an address. Just after
// the machine has booted they do not.
func (k *keeper) knowsOwners(txn statedb.ReadTxn, addr netip.Addr) bool {
	if initialized, _ := k.PortOwners.Initialized(txn); !initialized {
		return false
	}
	for row := range k.PortOwners.Prefix(txn, tables.PortOwnersOfAddr(addr)) {
		if row.Status.Kind == reconciler.StatusKindPending {
			return false
		}
	}
	return true
}

// translated reports whether packets may get an address in the kernel, of which the programs have
// to look whether the node has it.
func (k *keeper) translated(txn statedb.ReadTxn, addr netip.Addr) bool {
	if ip, _, found := k.IPs.Get(txn, tables.EgressIPByAddr(addr)); found && ip.Fixed {
		return false // others may have given it to a device here
	}
	_, _, found := k.Exits.Get(txn, tables.MirrorByKey[bpf.ExitKey, bpf.ExitValue](keyOf(addr)))
	return found
}

// voteForSelf notes a vote of this node for itself, unless the one before is valid for about as
// long.
func (k *keeper) voteForSelf(addr netip.Addr, until uint64) error {
	o := k.owned[addr]
	if o == nil {
		return nil // it has no device for the address, or others have given it one
	}
	vote := ownVote{until, k.set.Generation}
	if o.own.generation == vote.generation && until-o.own.until < k.voter.term()/4 {
		return nil
	}
	v, err := k.entries.votesFor(addr)
	if err != nil {
		return err
	}
	for _, set := range k.set.Of(k.LocalNode.Name) {
		vote := bpf.Vote{Until: until, Set: uint64(set.Number)}
		v.Votes[set.Number%bpf.VoterSets][set.Place(k.LocalNode.Name)] = vote
	}
	if err := k.entries.put(addr, v); err != nil {
		return err
	}
	o.own = vote
	return nil
}

// write makes the rows those of the addresses that this node may have.
func (k *keeper) write() error {
	var rows []*tables.EgressIPLease
	for _, o := range k.owned {
		rows = append(rows, o.row())
	}
	by := func(row *tables.EgressIPLease) statedb.Query[*tables.EgressIPLease] {
		return tables.EgressIPLeaseByAddr(row.Addr)
	}
	return setRows(k.DB, k.Leases, by, (*tables.EgressIPLease).Equal, rows)
}

// report says in health what is wrong, when that is not what it said last.
func (k *keeper) report(err error) {
	said := "Addresses are where they shall be"
	if err != nil {
		said = err.Error()
	}
	if said == k.said {
		return
	}
	k.said = said
	if err != nil {
		k.health.Degraded("Egress addresses are not where they shall be", err)
	} else {
		k.health.OK(said)
	}
}
