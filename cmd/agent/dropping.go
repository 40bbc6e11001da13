// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/tables"
)

// droppingCell says in health that policies drop what they should not: packets for which there
// is no egress gateway, and all packets of pods whose policies are too large.
var droppingCell = cell.Module(
	api.ModuleDropping,
	"Policies that cannot be applied and drop packets instead",

	cell.Invoke(reportDropping),
)

type droppingParams struct {
	cell.In

	DB      *statedb.DB
	Jobs    job.Group
	Health  cell.Health
	Egress  statedb.Table[*tables.EgressPolicyStatus]
	Network statedb.Table[*tables.NetworkPolicyStatus]
}

func reportDropping(p droppingParams) error {
	egress, err := tables.Follow(p.DB, p.Egress)
	if err != nil {
		return err
	}
	network, err := tables.Follow(p.DB, p.Network)
	if err != nil {
		return err
	}
	p.Jobs.Add(job.OneShot("check-policies", func(ctx context.Context, _ cell.Health) error {
		reasons := map[string]string{} // by policy
		note := func(policy, reason string, deleted bool) {
			delete(reasons, policy)
			if reason != "" && !deleted {
				reasons[policy] = reason
			}
		}
		for {
			txn := p.DB.ReadTxn()
			ofEgress, changedEgress := egress.Next(txn)
			for c := range ofEgress {
				id := tables.EgressPolicyID(c.Object.Policy)
				note(id.String(), c.Object.Drops, c.Deleted)
			}
			ofNetwork, changedNetwork := network.Next(txn)
			for c := range ofNetwork {
				note(c.Object.Policy.String(), c.Object.TooLarge, c.Deleted)
			}
			p.report(reasons)
			select {
			case <-ctx.Done():
				return nil
			case <-changedEgress:
			case <-changedNetwork:
			}
		}
	}))
	return nil
}

func (p droppingParams) report(reasons map[string]string) {
	if len(reasons) == 0 {
		p.Health.OK("All policies can be applied")
		return
	}
	first := slices.Min(slices.Collect(maps.Keys(reasons)))
	p.Health.Degraded(
		fmt.Sprintf("%d policies drop packets of their pods, as they cannot be applied", len(reasons)),
		errors.New(first+": "+reasons[first]),
	)
}
