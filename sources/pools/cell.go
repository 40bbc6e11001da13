// SPDX-License-Identifier: Apache-2.0

// Package pools gives egress policies that name a pool the address that the pool has given to
// them, so that to all else they are policies with an address.
//
//	egress-ip-pools ──► addresses of egress-policies
package pools

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// Cell follows what pools give to policies.
var Cell = cell.Module(
	"policy-addresses",
	"Addresses that pools give to policies",

	cell.Invoke(register),
)

type params struct {
	cell.In

	EgressIPs tables.EgressIPs
	DB        *statedb.DB
	Jobs      job.Group
	Tables    objects.Tables
}

func register(p params) {
	if p.EgressIPs.Enabled {
		p.Jobs.Add(job.OneShot("give-policies-addresses",
			objects.GivePoliciesAddrs(p.DB, p.Tables), job.WithShutdown()))
	}
}
