// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// A proxy that finds no path takes nothing away: neither kinds of API servers themselves, nor
// kinds by CRDs. An agent that starts meanwhile waits, also for policies.
func TestServerNotFound(t *testing.T) {
	for _, source := range []string{objects.EndpointsKubernetes, objects.EndpointsCilium} {
		t.Run(source, func(t *testing.T) {
			s := newTestServer(t, true)
			require.NoError(t, s.Apply(pods("a", "b")))
			require.NoError(t, s.Apply([]byte(policy)))
			a := s.agent(t, source)
			a.policies("p")
			for _, resource := range slices.Sorted(maps.Keys(a.kinds)) {
				a.state(resource, tables.SourceSynced)
			}
			s.unknown.Store(true)
			s.breakWatches()
			s.CloseClientConnections()
			starting := s.agent(t, source)
			for _, agent := range []*agent{a, starting} {
				for resource := range agent.kinds {
					agent.state(resource, tables.SourceBroken)
					agent.awaitLevel(resource, "Degraded")
				}
			}
			if a.policies("p"); source == objects.EndpointsKubernetes {
				a.endpoints("a", "b")
			}
			require.False(t, starting.initialized(starting.tables.Namespaces))
			require.False(t, starting.initialized(starting.tables.NetworkPolicies))
			require.False(t, starting.initialized(starting.tables.EgressPolicies))

			s.unknown.Store(false)
			for _, agent := range []*agent{a, starting} {
				for resource := range agent.kinds {
					agent.state(resource, tables.SourceSynced)
				}
				agent.policies("p")
			}
		})
	}
}

// What discovery answers must be of discovery to say that a kind is absent.
func TestServerDiscoveryOfNothing(t *testing.T) {
	for name, answer := range map[string]string{
		"object": `{}`,
		"list":   `{"kind":"APIResourceList","apiVersion":"v1","resources":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(t, false)
			require.NoError(t, s.Apply([]byte(policy)))
			discovery := answerText("application/json", answer)
			s.discovery.Store(&discovery)
			s.instead.Store(policiesResource, answerer(
				func(_ *testServer, w http.ResponseWriter, req *http.Request) { http.NotFound(w, req) }))
			a := s.agent(t, objects.EndpointsKubernetes)
			a.state(policiesResource, tables.SourceBroken)
			n := s.lists(policiesResource)
			await.True(t, func() bool { return s.lists(policiesResource) > n+3 })
			a.state(policiesResource, tables.SourceBroken)
			require.False(t, a.initialized(a.tables.EgressPolicies))
			s.discovery.Store(nil)
			s.instead.Delete(policiesResource)
			a.policies("p")
		})
	}
}
