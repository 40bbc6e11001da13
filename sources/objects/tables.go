// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Tables are the tables that hold objects. The optional ones are those of kinds that only the
// agent reads, or only the operator: a program has the tables of its [Reads].
type Tables struct {
	cell.In

	Nodes           statedb.RWTable[*tables.Node]
	Namespaces      statedb.RWTable[*tables.Namespace]    `optional:"true"`
	Endpoints       statedb.RWTable[*tables.Endpoint]     `optional:"true"`
	Services        statedb.RWTable[*tables.Service]      `optional:"true"`
	BackendSlices   statedb.RWTable[*tables.BackendSlice] `optional:"true"`
	EgressPolicies  statedb.RWTable[*tables.EgressPolicy]
	NetworkPolicies statedb.RWTable[*tables.NetworkPolicy]
	CIDRGroups      statedb.RWTable[*tables.CIDRGroup]      `optional:"true"`
	Identities      statedb.RWTable[*tables.Identity]       `optional:"true"`
	CiliumEndpoints statedb.RWTable[*tables.CiliumEndpoint] `optional:"true"`
	CiliumNodes     statedb.RWTable[*tables.CiliumNode]     `optional:"true"`
	EgressIPPools   statedb.RWTable[*tables.EgressIPPool]   `optional:"true"`
	EgressBGPPeers  statedb.RWTable[*tables.EgressBGPPeer]  `optional:"true"`
	EgressVoters    statedb.RWTable[*tables.EgressVoters]   `optional:"true"`
	NodeReports     statedb.RWTable[*tables.NodeReport]     `optional:"true"`

	// CNIAttachments gives pods of this node their addresses, before their status
	// has them.
	CNIAttachments statedb.RWTable[*tables.CNIAttachment] `optional:"true"`
	LocalNode      tables.LocalNode

	// Namespace is where slices that announce pods of other nodes come from.
	Namespace tables.AgentNamespace

	// Sources says how it goes with what is read.
	Sources statedb.RWTable[*tables.ObjectSource]
}

// NewTables creates the tables, for tests and benchmarks without a hive.
func NewTables(db *statedb.DB, local tables.LocalNode) (t Tables, err error) {
	var errs [17]error
	t.Nodes, errs[0] = tables.NewNodeTable(db)
	t.Namespaces, errs[1] = tables.NewNamespaceTable(db)
	t.Endpoints, errs[2] = tables.NewEndpointTable(db, local)
	t.Services, errs[3] = tables.NewServiceTable(db)
	t.BackendSlices, errs[4] = tables.NewBackendSliceTable(db)
	t.EgressPolicies, errs[5] = tables.NewEgressPolicyTable(db)
	t.Identities, errs[6] = tables.NewIdentityTable(db)
	t.CiliumEndpoints, errs[7] = tables.NewCiliumEndpointTable(db)
	t.CiliumNodes, errs[8] = tables.NewCiliumNodeTable(db)
	t.Sources, errs[9] = tables.NewObjectSourceTable(db)
	t.NetworkPolicies, errs[10] = tables.NewNetworkPolicyTable(db)
	t.CIDRGroups, errs[11] = tables.NewCIDRGroupTable(db)
	t.NodeReports, errs[12] = tables.NewNodeReportTable(db)
	t.CNIAttachments, errs[13] = tables.NewCNIAttachmentTable(db)
	t.EgressIPPools, errs[14] = tables.NewEgressIPPoolTable(db)
	t.EgressBGPPeers, errs[15] = tables.NewEgressBGPPeerTable(db)
	t.EgressVoters, errs[16] = tables.NewEgressVotersTable(db)
	t.LocalNode = local
	return t, errors.Join(errs[:]...)
}

// withAddrs returns a pod of this node with the addresses of the interfaces that the
// CNI plugin told of, if it did, and one of another node with those that the agent
// there announces, until its status has them.
func (t *Tables) withAddrs(txn statedb.ReadTxn, e *tables.Endpoint) *tables.Endpoint {
	if e.Node == t.LocalNode.Name {
		return e.WithAttachment(tables.CNIAddrsOf(txn, t.CNIAttachments, e))
	}
	return e.WithAnnounced(tables.AnnouncedAddrs(txn, t.BackendSlices, t.Namespace, e))
}
