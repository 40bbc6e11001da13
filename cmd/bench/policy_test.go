// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
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

// A policy of all pods has come when all of them are under it, also those that no policy
// was about.
func TestPolicyOfAllPods(t *testing.T) {
	s := policyScenario{identities: 2000, policies: 400, local: 20}
	require.NoError(t, withPolicyWorld("memory", t.TempDir(), t.TempDir(), s, 1, func(w *policyWorld) error {
		b := &policyBench{bench: bench{world: w.world, samples: 1}, w: w, r: &policyResult{}}
		w.fillPolicies(s.allPolicies())
		w.fillPods(s.pods())
		b.lastChange(time.Now(), w.complete)
		require.Less(t, len(w.isolated()), len(w.allLocal()))
		_, err := b.clusterwide(true)(0)
		require.NoError(t, err)
		for _, pod := range w.allLocal() {
			allowed, err := w.allowed(pod, w.peerOf(0, 0), bpf.DirectionIngress, noPort)
			require.NoError(t, err)
			require.False(t, allowed, pod)
		}
		return nil
	}))
}

// What the maps say is compared with what the policies do, and each event waits
// for its effect: a measurement that comes to an end is one.
func TestMeasurePolicies(t *testing.T) {
	o := &policyOptions{scenarios: []string{"2000x400", "100xall"}, local: 20, samples: 4, prefixes: 10}
	require.NoError(t, o.complete(false))
	var out strings.Builder
	results, err := measurePolicies(&out, "memory", t.TempDir(), t.TempDir(), o)
	require.NoError(t, err)
	require.Len(t, results, 2)
	require.NoError(t, awaitMemory(), "the next scenario begins with nothing of these")
	for _, r := range results {
		require.Positive(t, r.Entries, r.Scenario)
		require.Less(t, r.Peers, r.Identities, r.Scenario)
		require.Contains(t, out.String(), "policy "+r.Scenario)
		events := map[string]policyEvent{}
		for _, e := range r.Events {
			events[e.Event] = e
			require.Positive(t, e.P50, e.Event)
		}
		require.Equal(t, 1.0, events["pod with new labels, known class"].Writes, r.Scenario)
		require.Zero(t, events["change without effect"].Writes, r.Scenario)
		require.Contains(t, events, "floor: 5 rows, one after another")
		require.Equal(t, 1.0*wavePods, events["500 such pods come at once"].Writes, r.Scenario)
		require.Equal(t, 1.0*wavePods, events["500 go at once"].Deletes, r.Scenario)
		require.GreaterOrEqual(t, events["policy of 10 prefixes comes"].Writes, 3*10.0, "a number, an address and a verdict of each")
		require.GreaterOrEqual(t, events["as many others in their place"].Writes, 3*10.0, "and of the others")
		require.Equal(t, 400, r.Explain.Questions, r.Scenario)
		require.Positive(t, r.Explain.PerSecond, r.Scenario)
	}
}
