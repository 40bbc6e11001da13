// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// What an agent of another version tells is taken as far as it can be.
func TestNodeReport(t *testing.T) {
	db := statedb.New()
	all, err := NewTables(db, tables.LocalNode{})
	require.NoError(t, err)
	k := NodeReportKind()
	o, err := k.Decode([]byte(`{"apiVersion": "sluice.io/v1alpha1", "kind": "NodeReport", "metadata": {"name": "node-1"}, "status": {
		"agentVersion": "v9", "new": {"field": 1}, "omitted": 3, "summary": {"egress": "1/3", "failed": 1},
		"policies": [
			{"policy": "NetworkPolicy/shop/web", "failed": 1, "error": "full"},
			{"policy": "nonsense"},
			{"policy": "CiliumEgressGatewayPolicy/web", "uid": "uid", "generation": 2, "wanted": "many", "egressIPs": ["192.0.2.1", "nonsense"]}
		],
		"egressPorts": [
			{"pool": "b", "blocks": 2, "new": 1, "drained": [
				{"index": 7, "closed": "2025-01-02T03:04:05Z"}, {"index": 8}, {"closed": "2025-01-02T03:04:05Z"},
				{"index": 9, "closed": "soon"}, {"index": 1008, "closed": "2025-01-02T03:04:05Z"}]},
			{"pool": "b", "blocks": 1}, {"pool": "c", "blocks": 5}, {"pool": "d"}, {"pool": "/", "blocks": 1},
			{"pool": "e", "blocks": "many"}, {"pool": "a", "blocks": 4}
		]}}`))
	require.NoError(t, err)
	require.NoError(t, o.Err)
	wtxn := db.WriteTxn(all.NodeReports)
	require.NoError(t, k.Store(&all).Put(wtxn, o))
	wtxn.Commit()

	r, _, found := all.NodeReports.Get(db.ReadTxn(), tables.NodeReportByNode("node-1"))
	require.True(t, found)
	require.Equal(t, []tables.FieldError{
		{Field: "status.policies[2].wanted", Reason: "must be a number, is a text"},
		{Field: "status.egressPorts[5].blocks", Reason: "must be a number, is a text"},
		{Field: "status.policies[1].policy", Reason: `parse policy "nonsense": want kind/namespace/name`},
		{Field: "status.policies[2].egressIPs[1]", Reason: r.Errors[3].Reason},
		{Field: "status.egressPorts[0].drained[1].closed", Reason: "required"},
		{Field: "status.egressPorts[0].drained[2].index", Reason: "want one from 0 to 1007"},
		{Field: "status.egressPorts[0].drained[3].closed", Reason: r.Errors[6].Reason},
		{Field: "status.egressPorts[0].drained[4].index", Reason: "want one from 0 to 1007"},
		{Field: "status.egressPorts[1].pool", Reason: `"b" is that of an item before`},
		{Field: "status.egressPorts[2].blocks", Reason: "5 is not from 1 to 4"},
		{Field: "status.egressPorts[3].blocks", Reason: "0 is not from 1 to 4"},
		{Field: "status.egressPorts[4].pool", Reason: `"/" is no name of a pool`},
	}, r.Errors)
	require.Equal(t, []tables.PoolPorts{
		{Pool: "a", Blocks: 4},
		{Pool: "b", Blocks: 2, Drained: []tables.DrainedBlock{
			{Index: 7, Closed: time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)},
		}},
	}, r.EgressPorts)
	require.Equal(t, &tables.ReportedPolicy{
		Policy: tables.EgressPolicyID("web"), UID: "uid", Generation: 2, EgressIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}, r.Policy(tables.EgressPolicyID("web")))
	failed := r.Policy(tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}})
	require.NotNil(t, failed)
	require.False(t, failed.Applied())
	require.Nil(t, r.Policy(tables.EgressPolicyID("other")))
}

func FuzzNodeReport(f *testing.F) {
	fuzz(f, NodeReportKind(), func(t *testing.T, r *tables.NodeReport) {
		for i := range r.Policies {
			p := &r.Policies[i]
			validAddrs(t, p.EgressIPs...)
			require.NotNil(t, r.Policy(p.Policy))
		}
		for i, p := range r.EgressPorts {
			require.True(t, i == 0 || r.EgressPorts[i-1].Pool < p.Pool, p.Pool)
			require.True(t, 1 <= p.Blocks && p.Blocks <= tables.MaxNodeBlocks, p.Blocks)
			for _, d := range p.Drained {
				require.False(t, d.Closed.IsZero())
			}
		}
	}, `{"metadata":{"name":"n"},"status":{"agentVersion":"v1","omitted":1,"summary":{"egress":"1/1","failed":1},"policies":[
		{"policy":"CiliumEgressGatewayPolicy/b","uid":"u","generation":1,"wanted":2,"programmed":1,"failed":1,"error":"e","losesTo":["x"],
		"egressIPs":["::ffff:10.0.0.1","x"],"gatewayError":"g"},{"policy":"NetworkPolicy/a/b"},{"policy":"x"}],"egressPorts":[{"pool":"p","blocks":2,
		"drained":[{"index":1,"closed":"2025-01-02T03:04:05Z"}]}]}}`)
}
