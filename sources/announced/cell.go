// SPDX-License-Identifier: Apache-2.0

// Package announced gives pods of other nodes their addresses before their status has
// them: the agent of a pod's node announces these when the CNI plugin has told of them.
//
//	backend-slices, of the agents' namespace ──► addresses of endpoints
package announced

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// Cell follows what agents announce, if endpoints are made from Pods.
var Cell = cell.Module(
	"announced",
	"Addresses of pods announced by the agents of their nodes",

	cell.Invoke(register),
)

type params struct {
	cell.In

	Objects objects.Config
	DB      *statedb.DB
	Jobs    job.Group
	Tables  objects.Tables
}

func register(p params) error {
	if p.Objects.EndpointSource != objects.EndpointsKubernetes {
		return nil
	}
	run, err := objects.GivePodsAddrs(p.DB, p.Tables, p.Tables.BackendSlices,
		func(s *tables.BackendSlice) (pods []tables.Name) {
			for _, announced := range s.Pods {
				pods = append(pods, announced.Pod)
			}
			return pods
		})
	if err != nil {
		return err
	}
	p.Jobs.Add(job.OneShot("give-pods-announced-addresses", run, job.WithShutdown()))
	return nil
}
