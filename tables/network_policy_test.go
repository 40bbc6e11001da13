// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/json"
	"testing"

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

// The maps have cookies of other versions of the agent.
func TestCookieOfRule(t *testing.T) {
	rule := RuleID{Policy: PolicyID{PolicyKubernetes, Name{"shop", "web"}}, Direction: bpf.DirectionIngress}
	require.Equal(t, uint32(2401207741), CookieOf([]RuleID{rule}))
}
