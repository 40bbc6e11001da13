// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestServer(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		require.NoError(t, s.Apply(pods("a", "b")))
		a := s.agent(t, objects.EndpointsKubernetes)
		a.endpoints("a", "b")
		require.Equal(t, 2, a.state("pods", tables.SourceSynced).Objects)
		require.True(t, a.initialized(a.tables.Endpoints))

		require.NoError(t, s.Apply(pods("c")))
		a.endpoints("a", "b", "c")
		require.NoError(t, s.Delete(pods("a")))
		a.endpoints("b", "c")
		require.NoError(t, s.Apply([]byte("{apiVersion: v1, kind: Pod, metadata: {name: b}, status: {phase: Failed}}")))
		a.endpoints("c")
		await.True(t, func() bool { return a.state("pods", tables.SourceSynced).Objects == 1 })
		if s.watchLists {
			for resource := range a.kinds {
				require.Zero(t, s.lists(resource), resource)
			}
		}
		require.Equal(t, s.protobuf, s.messages.Load() > 0)
	})
}

// eachServer runs a test with API servers of all kinds.
func eachServer(t *testing.T, test func(*testing.T, *testServer)) {
	for _, watchLists := range []bool{false, true} {
		for _, protobuf := range []bool{false, true} {
			t.Run(fmt.Sprintf("watchLists=%v protobuf=%v", watchLists, protobuf), func(t *testing.T) {
				s := newTestServer(t, watchLists)
				s.protobuf = protobuf
				test(t, s)
			})
		}
	}
}

// A long listing comes in pages, and is one transaction all the same.
func TestServerPages(t *testing.T) {
	s := newTestServer(t, false)
	var names []string
	for i := range 1200 {
		names = append(names, fmt.Sprintf("p%04d", i))
	}
	require.NoError(t, s.Apply(pods(names...)))
	a := s.agent(t, objects.EndpointsKubernetes)
	_, changed := a.tables.Endpoints.AllWatch(a.db.ReadTxn())
	<-changed
	a.endpoints(names...)
	require.Equal(t, 1200, a.state("pods", tables.SourceSynced).Objects)
	require.Equal(t, 3, s.lists("pods"))
}

// What went while nothing watched is gone after the listing that follows, and
// what stayed the same is not written again.
func TestServerRelist(t *testing.T) {
	eachServer(t, func(t *testing.T, s *testServer) {
		require.NoError(t, s.Apply(pods("a", "b")))
		a := s.agent(t, objects.EndpointsKubernetes)
		a.endpoints("a", "b")
		_, revision, _ := a.tables.Endpoints.Get(a.db.ReadTxn(), endpoint("b"))

		s.hangUp()
		a.state("pods", tables.SourceBroken)
		await.True(t, func() bool { return a.level("pods") == "Degraded" })
		require.NoError(t, s.Delete(pods("a")))
		require.NoError(t, s.Apply(pods("c")))
		s.compact(t, "pods") // the watch is answered with 410
		a.endpoints("a", "b")
		s.down.Store(false)
		a.endpoints("b", "c")
		require.Empty(t, a.state("pods", tables.SourceSynced).Error)
		require.Equal(t, "OK", string(a.level("pods")))
		_, after, _ := a.tables.Endpoints.Get(a.db.ReadTxn(), endpoint("b"))
		require.Equal(t, revision, after)
	})
}

// A watch that breaks goes on from where it was, without a listing. It must have had an
// event: cache.Reflector lists again after one that ends within a second without any.
func TestServerResume(t *testing.T) {
	s := newTestServer(t, false)
	require.NoError(t, s.Apply(pods("a")))
	a := s.agent(t, objects.EndpointsKubernetes)
	a.endpoints("a")
	comeAndGo := func() {
		require.NoError(t, s.Apply(pods("b")))
		a.endpoints("a", "b")
		require.NoError(t, s.Delete(pods("b")))
		a.endpoints("a")
	}
	comeAndGo()
	for range 3 {
		s.breakWatches()
		comeAndGo()
	}
	a.state("pods", tables.SourceSynced)
	require.Equal(t, 1, s.lists("pods"))
}

func TestServerUnreachableAtStart(t *testing.T) {
	s := newTestServer(t, true)
	s.down.Store(true)
	a := s.agent(t, objects.EndpointsKubernetes)
	for resource := range a.kinds {
		require.Contains(t, a.state(resource, tables.SourceBroken).Error,
			"list "+a.kinds[resource].Source()+": ")
	}
	require.False(t, a.initialized(a.tables.Endpoints))
	require.False(t, a.initialized(a.tables.EgressPolicies))
	s.down.Store(false)
	for resource := range a.kinds {
		a.state(resource, tables.SourceSynced)
	}
	require.True(t, a.initialized(a.tables.Endpoints))
}

// A right that is missing is named, and the other kinds do without it.
func TestServerForbidden(t *testing.T) {
	s := newTestServer(t, true)
	s.forbidden.Store("nodes")
	a := s.agent(t, objects.EndpointsKubernetes)
	a.state("pods", tables.SourceSynced)
	require.Equal(t, `list nodes: missing right: nodes is forbidden: no`,
		a.state("nodes", tables.SourceBroken).Error)
	require.False(t, a.initialized(a.tables.Nodes))
	s.forbidden.Store("")
	a.state("nodes", tables.SourceSynced)
	require.True(t, a.initialized(a.tables.Nodes))
}

const policy = "{apiVersion: cilium.io/v2, kind: CiliumEgressGatewayPolicy, metadata: {name: p}}"

// A definition that is missing at the start means that there are no such objects. It may come
// later. When it goes, what its objects said stays, until there is another one.
func TestServerAbsent(t *testing.T) {
	for _, watchLists := range []bool{false, true} {
		t.Run(fmt.Sprintf("watchLists=%v", watchLists), func(t *testing.T) {
			s := newTestServer(t, watchLists)
			const resource = "ciliumegressgatewaypolicies"
			require.NoError(t, s.Absent(resource))
			a := s.agent(t, objects.EndpointsKubernetes)
			a.state(resource, tables.SourceAbsent)
			require.True(t, a.initialized(a.tables.EgressPolicies))
			require.Equal(t, "OK", string(a.level(resource)))

			require.NoError(t, s.Sync(resource))
			a.state(resource, tables.SourceSynced)
			require.NoError(t, s.Apply([]byte(policy)))
			a.policies("p")

			require.NoError(t, s.Absent(resource))
			require.Contains(t, a.state(resource, tables.SourceKept).Error,
				"is deleted: its objects stay as they were")
			s.CloseClientConnections()
			a.policies("p")

			require.NoError(t, s.Sync(resource))
			a.state(resource, tables.SourceSynced)
			a.policies()
			require.NoError(t, s.Apply([]byte(policy)))
			a.policies("p")
			require.NoError(t, s.Delete([]byte(policy)))
			a.policies()
		})
	}
}
