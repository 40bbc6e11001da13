// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// keeper has the addresses at this node for which a majority votes. It has but one goroutine,
// beside those that ask whether others use an address.
type keeper struct {
	params
	voter       *voter
	teller      *teller
	socket      *sockets
	announcer   announcer
	entries     kernelEntries
	now         func() uint64
	initialized func(statedb.WriteTxn)
	owned       map[netip.Addr]*owned // addresses that this node may have
	given       map[netip.Addr]given  // addresses that others have given to this node
	checks      chan check
	checking    int                  // how many checks there are
	set         *tables.EgressVoters // nil: it is not known yet
	setSince    uint64               // when the kernel and votes began to go by it
	kernelSet   bpf.VotersValue
	behind      bool       // a tick was over before all addresses were brought to where they shall be
	resume      netip.Addr // the first address that was not
	said        string     // in health
	health      cell.Health
}

// given is an address that is left alone, as others have given it to a device.
type given struct {
	err error
	due uint64 // when it is looked again whether it is there
}

func newKeeper(p params, initialized func(statedb.WriteTxn)) *keeper {
	entries, socket := kernelEntries{p.Datapath}, &sockets{params: p, open: openSocket}
	return &keeper{
		params: p, initialized: initialized, owned: map[netip.Addr]*owned{},
		given:  map[netip.Addr]given{},
		checks: make(chan check), now: now, entries: entries, socket: socket,
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
	for _, input := range []interface {
		Initialized(statedb.ReadTxn) (bool, <-chan struct{})
	}{k.IPs, k.Voters, k.Keys, k.Settings} {
		_, initialized := input.Initialized(k.DB.ReadTxn())
		select {
		case <-initialized:
		case <-ctx.Done():
			return nil
		}
	}
	defer k.socket.close()
	defer k.announcer.close()
	for {
		k.report(k.tick(ctx))
		next := k.Config.tick()
		if k.behind {
			next = 0
		} else if len(k.owned) == 0 && k.IPs.NumObjects(k.DB.ReadTxn()) == 0 {
			next = lookIdle
		}
		if !pause.For(ctx, next) {
			return nil
		}
	}
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
		o := &owned{addr: addr, ifIndex: entry.IfIndex, isKnown: true}
		o.assigned = device != 0 && device == int(entry.IfIndex)
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

// tick votes, and brings the addresses to where the votes say. What is wrong with one address
// concerns no other.
func (k *keeper) tick(ctx context.Context) error {
	errs := []error{k.followVoters(), k.followCandidates()}
	if k.set != nil {
		errs = append(errs, k.voter.listen(k.now, k.entries.clockOf),
			k.voter.vote(k.set.Of(k.LocalNode.Name), k.now, k.entries.clockOf, k.voteForSelf),
			k.takeOver())
	} else if k.IPs.NumObjects(k.DB.ReadTxn()) > 0 {
		errs = append(errs, errors.New("no nodes vote yet: the operator chooses them"))
	}
	k.takeChecks()
	var has []netip.Addr
	// Votes must go on: the work of a tick is bounded, and the next one goes on with the rest.
	now := k.now()
	until := now + uint64(k.Config.tick())
	names := k.voterNames()
	k.behind = false
	for _, addr := range k.inTurn() {
		o := k.owned[addr]
		entry, err := k.entries.votesFor(addr)
		errs = append(errs, err)
		o.votes(entry, k.kernelSet, names, now)
		if !k.behind && now >= until {
			k.behind, k.resume = true, addr
		}
		if !k.behind {
			k.keep(ctx, o)
			now = k.now()
		}
		if o.problem != nil {
			errs = append(errs, o.problem)
		}
		if o.held && o.assigned {
			has = append(has, addr)
		}
	}
	slices.SortFunc(has, netip.Addr.Compare)
	errs = append(errs, k.write(), k.teller.tell(has), k.teller.listen(has))
	return errors.Join(errs...)
}

// inTurn returns the addresses that this node may have, from the one at which the last tick was
// over.
func (k *keeper) inTurn() []netip.Addr {
	addrs := slices.SortedFunc(maps.Keys(k.owned), netip.Addr.Compare)
	at, _ := slices.BinarySearchFunc(addrs, k.resume, netip.Addr.Compare)
	return slices.Concat(addrs[at:], addrs[:at])
}

// followVoters tells the programs who votes. The last set stays when there is none, or one with a
// mistake.
func (k *keeper) followVoters() error {
	set, _, found := k.Voters.Get(k.DB.ReadTxn(), tables.EgressVotersByIndex(0))
	switch {
	case !found:
		return nil
	case set.Error != "":
		return fmt.Errorf("the nodes that vote: %s", set.Error)
	}
	term := k.voter.term()
	if k.now() < k.voter.from { // the next agent has to wait for votes of the former one too
		term = max(term, k.kernelSet.Term)
	}
	v := bpf.VotersValue{Clock: k.kernelSet.Clock, Term: term}
	for _, s := range set.Sets {
		v.Sets[s.Number%bpf.VoterSets] = kernelVoters(s)
	}
	if v != k.kernelSet {
		if err := k.entries.writeVoters(v); err != nil {
			return err
		}
		k.kernelSet = v
	}
	if k.set == nil || k.set.Generation != set.Generation {
		k.setSince = k.now()
	}
	k.set = set
	return nil
}

func kernelVoters(s tables.VoterSet) bpf.VoterSet {
	v := bpf.VoterSet{Number: s.Number, Majority: uint32(s.Majority())}
	for i, voter := range s.Voters {
		v.Voters[i] = bpf.AddressFrom(voter.Addr)
	}
	return v
}

// takeOver says that this node goes by the sets of voters, once no vote that it has given in others
// is valid. The row stays when there are no voters any more: the next ones are to be of a greater
// generation.
func (k *keeper) takeOver() error {
	if k.now() < max(k.setSince+k.voter.patience(), k.voter.from) {
		return nil
	}
	by := func(*tables.EgressVotersTaken) statedb.Query[*tables.EgressVotersTaken] {
		return tables.EgressVotersTakenByIndex(0)
	}
	equal := func(a, b *tables.EgressVotersTaken) bool { return *a == *b }
	return setRows(k.DB, k.Taken, by, equal,
		[]*tables.EgressVotersTaken{{Generation: k.set.Generation}})
}

// voterNames returns the names of the voters by their underlay addresses.
func (k *keeper) voterNames() map[netip.Addr]string {
	names := map[netip.Addr]string{}
	if k.set != nil {
		for _, s := range k.set.Sets {
			for _, v := range s.Voters {
				names[v.Addr] = v.Node
			}
		}
	}
	return names
}

// followCandidates has an entry in the kernel for each address that this node may have, and none
// for others. An entry stays as long as something may be translated to the address: without one the
// programs would not look whether the node has it.
func (k *keeper) followCandidates() error {
	txn := k.DB.ReadTxn()
	mayHave := map[netip.Addr]bool{}
	var errs []error
	var at map[netip.Addr]int // devices by address, once they are needed
	refused, now := 0, k.now()
	for ip := range k.IPs.All(txn) {
		if !k.Enabled.Enabled || ip.IfIndex == 0 {
			continue
		}
		mayHave[ip.Addr] = true
		o := k.owned[ip.Addr]
		if o == nil {
			o = &owned{addr: ip.Addr}
		}
		o.isGone = false
		node, _ := ip.At()
		o.isKnown = o.isKnown || node != k.LocalNode.Name
		if k.owned[ip.Addr] != nil && o.ifIndex == ip.IfIndex || !k.knowsOwners(txn, ip.Addr) {
			continue
		}
		if k.owned[ip.Addr] == nil && len(k.owned) == bpf.EgressIPs {
			refused++
			continue
		}
		if g := k.given[ip.Addr]; now < g.due {
			errs = append(errs, g.err)
			continue
		}
		if at == nil {
			var err error
			if at, err = devices(); err != nil {
				return err
			}
		}
		delete(k.given, ip.Addr)
		if device := at[ip.Addr]; device != 0 && !o.assigned {
			err := fmt.Errorf("%s was given to device %d by others: it is left alone", ip.Addr, device)
			k.given[ip.Addr] = given{err, now + retryAssign}
			errs = append(errs, err)
		} else if err := k.add(o, ip.IfIndex); err != nil {
			errs = append(errs, err)
		}
	}
	if refused > 0 {
		errs = append(errs, fmt.Errorf("%d addresses cannot come here: %s has room for %d",
			refused, bpf.VotesMap, bpf.EgressIPs))
	}
	for addr := range k.given {
		if !mayHave[addr] {
			delete(k.given, addr)
		}
	}
	for addr, o := range k.owned {
		if mayHave[addr] {
			continue
		}
		o.isGone = true
		if o.assigned || k.translated(txn, addr) {
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

// add makes the entry of an address, or moves it to another device.
func (k *keeper) add(o *owned, ifIndex uint32) error {
	if o.assigned {
		if err := remove(o.addr); err != nil {
			return err
		}
		o.assigned = false
	}
	if err := k.entries.put(o.addr, bpf.VotesValue{IfIndex: ifIndex}); err != nil {
		return err
	}
	o.ifIndex, o.own = ifIndex, ownVote{}
	k.owned[o.addr] = o
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

// translated reports whether packets may get an address in the kernel.
func (k *keeper) translated(txn statedb.ReadTxn, addr netip.Addr) bool {
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
