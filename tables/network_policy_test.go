// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/json"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// Kinds are numbers that are written as names, and in the same order as these.
func TestPolicyKinds(t *testing.T) {
	last := PolicyID{}
	for _, text := range []string{
		"CiliumClusterwideNetworkPolicy/web", "CiliumEgressGatewayPolicy/web", "CiliumNetworkPolicy/shop/web", "NetworkPolicy/shop/web",
	} {
		id, err := ParsePolicyID(text)
		require.NoError(t, err)
		require.Equal(t, text, id.String())
		require.Negative(t, last.Compare(id), text)
		require.Less(t, string(last.Key()), string(id.Key()))
		last = id

		key, err := policyKeyFromString(text)
		require.NoError(t, err)
		require.Equal(t, id.Key(), key)

		written, err := json.Marshal(&NetworkPolicy{Kind: id.Kind, Name: id.Name})
		require.NoError(t, err)
		require.Contains(t, string(written), `"kind":"`+id.Kind.String()+`"`)
		var read NetworkPolicy
		require.NoError(t, json.Unmarshal(written, &read))
		require.Equal(t, id, read.ID())
	}
	require.Error(t, json.Unmarshal([]byte(`{"kind":"Pod"}`), &NetworkPolicy{}))
}

// A prefix of a text is that of the keys.
func TestPolicyKeyPrefixes(t *testing.T) {
	db := statedb.New()
	table, err := NewNetworkPolicyTable(db)
	require.NoError(t, err)
	wtxn := db.WriteTxn(table)
	for _, id := range []PolicyID{
		{PolicyKubernetes, Name{"shop", "web"}}, {PolicyKubernetes, Name{"shop2", "web"}}, {PolicyCiliumClusterwide, Name{Name: "shop"}},
	} {
		_, _, err := table.Insert(wtxn, &NetworkPolicy{Kind: id.Kind, Name: id.Name})
		require.NoError(t, err)
	}
	wtxn.Commit()
	for text, want := range map[string]int{
		"NetworkPolicy": 2, "NetworkPolicy/": 2, "NetworkPolicy/shop": 2, "NetworkPolicy/shop/": 1, "NetworkPolicy/shop/web": 1, "NetworkPolicy/x": 0,
		"CiliumClusterwideNetworkPolicy": 1, "CiliumClusterwideNetworkPolicy/": 1, "CiliumClusterwideNetworkPolicy/sh": 1, "CiliumNetworkPolicy": 0,
	} {
		rows, err := statedb.AnyTable{Meta: table}.Prefix(db.ReadTxn(), "id", text)
		require.NoError(t, err)
		n := 0
		for range rows {
			n++
		}
		require.Equal(t, want, n, text)
	}
	_, err = statedb.AnyTable{Meta: table}.Prefix(db.ReadTxn(), "id", "Pod/shop")
	require.ErrorContains(t, err, `unknown kind "Pod"`)
}

// A number that is no kind is no reason to fail.
func TestNoPolicyKind(t *testing.T) {
	require.Equal(t, "PolicyKind(9)/shop/web", PolicyID{9, Name{"shop", "web"}}.String())
}

// Who reads a peer has what belongs to its kind, also where that says nothing.
func TestPeersAreReadAsWritten(t *testing.T) {
	for _, peer := range []PolicyPeer{
		{Kind: PeerPods}, {Kind: PeerServices, PeerService: &PeerService{}}, {Kind: PeerCIDRGroups, PeerPrefixes: &PeerPrefixes{}},
	} {
		written, err := json.Marshal(peer)
		require.NoError(t, err)
		var read PolicyPeer
		require.NoError(t, json.Unmarshal(written, &read))
		require.Equal(t, peer, read)
		require.NotEmpty(t, read.String())
	}
}

// The maps have cookies of other versions of the agent.
func TestCookieOfRule(t *testing.T) {
	rule := RuleID{Policy: PolicyID{PolicyKubernetes, Name{"shop", "web"}}, Direction: bpf.DirectionIngress}
	require.Equal(t, uint32(2401207741), CookieOf([]RuleID{rule}))
}
