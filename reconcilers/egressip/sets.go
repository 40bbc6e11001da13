// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// followVoters tells the programs who votes. The last set stays when there is none, or one with a
// mistake. Without --egress-ips no votes count, so that this node has no address any more.
func (k *keeper) followVoters() error {
	if !k.Enabled.Enabled {
		return k.tellVoters(bpf.VotersValue{Clock: k.kernelSet.Clock, Term: k.kernelSet.Term})
	}
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
	if err := k.tellVoters(v); err != nil {
		return err
	}
	if k.set == nil || !k.set.Equal(set) {
		k.setSince = k.now()
	}
	k.set = set
	return nil
}

// tellVoters has the programs go by the voters, unless they do.
func (k *keeper) tellVoters(v bpf.VotersValue) error {
	if v == k.kernelSet {
		return nil
	}
	if err := k.entries.writeVoters(v); err != nil {
		return err
	}
	k.kernelSet = v
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
