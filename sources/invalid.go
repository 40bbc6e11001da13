// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

type invalidParams struct {
	cell.In

	DB        *statedb.DB
	Jobs      job.Group
	Tables    objects.Tables
	LocalNode tables.LocalNode
}

// reportLocalNode has the health tell while there is no Node of this node's
// name: then no pod is a local one, and nothing is this node's business.
func reportLocalNode(p invalidParams) {
	p.Jobs.Add(job.OneShot("check-local-node", func(ctx context.Context, health cell.Health) error {
		for {
			txn := p.DB.ReadTxn()
			_, _, watch, found := p.Tables.Nodes.GetWatch(txn, tables.NodeByName(p.LocalNode.Name))
			initialized, complete := p.Tables.Nodes.Initialized(txn)
			switch {
			case found:
				health.OK("This is node " + p.LocalNode.Name)
			case initialized:
				health.Degraded("No pod is known to be of this node", fmt.Errorf("there is no Node %s: --node-name sets the name", p.LocalNode.Name))
			}
			if initialized {
				complete = nil // it stays closed
			}
			select {
			case <-ctx.Done():
				return nil
			case <-watch:
			case <-complete:
			}
		}
	}))
}

// reportInvalid has the health tell of objects that cannot be used, or not in
// full. Their rows say so too; here one need not look for them.
func reportInvalid(p invalidParams) error {
	t := p.Tables
	return errors.Join(
		reportInvalidRows(p, t.Nodes, func(n *tables.Node) (string, []tables.FieldError) { return n.Name, n.Errors }),
		reportInvalidRows(p, t.Namespaces, func(n *tables.Namespace) (string, []tables.FieldError) { return n.Name, n.Errors }),
		reportInvalidRows(p, t.Endpoints, func(e *tables.Endpoint) (string, []tables.FieldError) { return e.Name.String(), e.Errors }),
		reportInvalidRows(p, t.Services, func(s *tables.Service) (string, []tables.FieldError) { return s.Name.String(), s.Errors }),
		reportInvalidRows(p, t.BackendSlices, func(b *tables.BackendSlice) (string, []tables.FieldError) { return b.Name.String(), b.Errors }),
		reportInvalidRows(p, t.EgressPolicies, func(e *tables.EgressPolicy) (string, []tables.FieldError) { return e.Name, e.Errors }),
		reportInvalidRows(p, t.NetworkPolicies, func(n *tables.NetworkPolicy) (string, []tables.FieldError) {
			return n.ID().String(), append(slices.Clip(n.Errors), n.Unsupported...)
		}),
		reportInvalidRows(p, t.CIDRGroups, func(g *tables.CIDRGroup) (string, []tables.FieldError) { return g.Name, g.Errors }),
		reportInvalidRows(p, t.Identities, func(i *tables.Identity) (string, []tables.FieldError) { return fmt.Sprint(i.ID), i.Errors }),
		reportInvalidRows(p, t.CiliumEndpoints, func(e *tables.CiliumEndpoint) (string, []tables.FieldError) { return string(e.Key()), e.Errors }),
		reportInvalidRows(p, t.EgressIPPools, func(e *tables.EgressIPPool) (string, []tables.FieldError) {
			return e.Name, e.Errors
		}),
		reportInvalidRows(p, t.EgressBGPPeers, func(b *tables.EgressBGPPeer) (
			string, []tables.FieldError,
		) {
			return b.Name, b.Errors
		}),
		reportInvalidRows(p, t.CiliumNodes, func(n *tables.CiliumNode) (string, []tables.FieldError) { return n.Name, n.Errors }),
	)
}

// reportInvalidRows follows one table. The work is that of the changes.
func reportInvalidRows[Row any](p invalidParams, table statedb.RWTable[Row], describe func(Row) (name string, errs []tables.FieldError)) error {
	changes, err := tables.Follow(p.DB, table.ToTable())
	if err != nil {
		return err
	}
	invalid := map[string]string{} // first error by object
	p.Jobs.Add(job.OneShot("check-"+table.Name(), func(ctx context.Context, health cell.Health) error {
		for {
			seq, watch := changes.Next(p.DB.ReadTxn())
			for change := range seq {
				name, errs := describe(change.Object)
				delete(invalid, name)
				if len(errs) > 0 && !change.Deleted {
					invalid[name] = errs[0].Error()
				}
			}
			report(health, table.Name(), invalid)
			select {
			case <-ctx.Done():
				return nil
			case <-watch:
			}
		}
	}))
	return nil
}

func report(health cell.Health, table string, invalid map[string]string) {
	if len(invalid) == 0 {
		health.OK("No object has errors")
		return
	}
	first := slices.Min(slices.Collect(maps.Keys(invalid)))
	health.Degraded(fmt.Sprintf("%d rows of %s have errors", len(invalid), table), fmt.Errorf("%s: %s", first, invalid[first]))
}
