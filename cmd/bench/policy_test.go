// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The scenarios are those of which the published figures are: as many entries.
func TestEntriesPerIdentity(t *testing.T) {
	for _, test := range []struct {
		scenario policyScenario
		want     int
	}{
		{policyScenario{identities: 10_000, policies: 2_000, local: 100}, 10_000},
		{policyScenario{identities: 50_000, policies: 10_000, local: 100}, 250_000},
		{policyScenario{identities: 10_000, policies: 1, local: 100, allPods: true}, 1_000_000},
	} {
		require.Equal(t, test.want, test.scenario.perIdentity(), test.scenario)
	}
}

func TestPolicyScenarios(t *testing.T) {
	for _, text := range []string{"", "10", "10x", "x10", "0x1", "10x-1", "10xmany"} {
		_, err := parsePolicyScenario(text)
		require.Error(t, err, text)
	}
	for _, text := range []string{"10x20", "10xall"} {
		s, err := parsePolicyScenario(text)
		require.NoError(t, err)
		require.Equal(t, text, s.String())
	}
}

// What the maps say is compared with what the policies do, and each event waits
// for its effect: a measurement that comes to an end is one.
func TestMeasurePolicies(t *testing.T) {
	o := &policyOptions{
		scenarios: []string{"2000x1000", "100xall"},
		local:     20,
		samples:   4,
		prefixes:  10,
	}
	require.NoError(t, o.complete(false))
	var out strings.Builder
	all, err := measurePolicies(&out, site{"memory", t.TempDir(), t.TempDir()}, o)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NoError(t, awaitMemory(), "the next scenario begins with nothing of these")
	for i, results := range all {
		scenario := o.scenarios[i]
		require.Contains(t, out.String(), "policy "+scenario)
		events := map[string]*result{}
		for _, r := range results {
			events[r.event] = &r
			require.Positive(t, r.p50, r.event)
		}
		writes := func(event string) float64 {
			require.Contains(t, events, event, scenario)
			return events[event].each(events[event].writes)
		}
		require.Equal(t, 2.0, writes("pod with new labels, known class"), scenario)
		require.InDelta(t, 2*wavePods, writes("500 such pods come at once"), 2, scenario)
		require.Zero(t, writes("policy comes again, and says the same"), scenario)
		if i == 0 {
			require.Contains(t, events, "policy of one pod meanwhile")
			require.GreaterOrEqual(t, writes("policy of 10 prefixes comes"), 10.0,
				"an address of each")
		}
	}
}

// A cluster with egress policies is measured to the end, too.
func TestMeasureControl(t *testing.T) {
	var out strings.Builder
	p := site{"memory", t.TempDir(), t.TempDir()}
	require.NoError(t, measureControl(&out, p, controlOptions{[]int{100}, []int{2}, 4}))
	require.Regexp(t, `new endpoint, known class .* 2\.[0-4] +0.0\n`, out.String(), "as on a gateway")
	require.Regexp(t, `gateway not ready, or ready again`, out.String())
}
