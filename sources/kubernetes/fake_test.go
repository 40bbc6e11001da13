// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func endpoint(name string) statedb.Query[*tables.Endpoint] {
	return tables.EndpointByName(tables.Name{Namespace: "default", Name: name})
}

// What is applied before a resource is listed is in the listing; the resource
// is not initialized before, and no other waits for it.
func TestFakeSync(t *testing.T) {
	f := NewFakeAPI()
	require.NoError(t, f.Apply(pods("a")))
	a := newFakeAgent(t, objects.EndpointsKubernetes, f)
	require.NoError(t, f.Sync("nodes", "endpointslices.discovery.k8s.io"))
	a.state("nodes", tables.SourceSynced)
	a.state("endpointslices", tables.SourceSynced)
	a.state("pods", tables.SourceSyncing)
	require.True(t, a.initialized(a.tables.Nodes))
	require.False(t, a.initialized(a.tables.Endpoints))
	require.Zero(t, a.tables.Endpoints.NumObjects(a.db.ReadTxn()))

	require.NoError(t, f.Sync())
	a.endpoints("a")
	a.state("pods", tables.SourceSynced)
	require.True(t, a.initialized(a.tables.Endpoints))
	require.ErrorContains(t, f.Sync("nosuch"), `unknown resource "nosuch"`)
}

// The objects of one manifest are one transaction, however many they are.
func TestFakeBatch(t *testing.T) {
	f := NewFakeAPI()
	require.NoError(t, f.Sync())
	a := newFakeAgent(t, objects.EndpointsKubernetes, f)
	a.state("pods", tables.SourceSynced)
	var names []string
	for i := range maxBatch + 100 {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	_, changed := a.tables.Endpoints.AllWatch(a.db.ReadTxn())
	require.NoError(t, f.Apply(pods(names...)))
	<-changed
	require.Equal(t, len(names), a.tables.Endpoints.NumObjects(a.db.ReadTxn()))

	_, changed = a.tables.Endpoints.AllWatch(a.db.ReadTxn())
	require.NoError(t, f.Delete(pods(names...)))
	<-changed
	require.Zero(t, a.tables.Endpoints.NumObjects(a.db.ReadTxn()))
}

func TestFakeBreak(t *testing.T) {
	f := NewFakeAPI()
	require.NoError(t, f.Sync())
	require.NoError(t, f.Apply(pods("a", "b")))
	a := newFakeAgent(t, objects.EndpointsKubernetes, f)
	a.endpoints("a", "b")

	require.NoError(t, f.Break("pods"))
	require.Contains(t, a.state("pods", tables.SourceBroken).Error, "broken by k8s/break")
	require.NoError(t, f.Delete(pods("a")))
	require.NoError(t, f.Apply(pods("c")))
	a.endpoints("a", "b")
	require.NoError(t, f.Resume("pods"))
	a.endpoints("b", "c")
	require.Empty(t, a.state("pods", tables.SourceSynced).Error)
}

func TestFakeAbsent(t *testing.T) {
	f := NewFakeAPI()
	require.NoError(t, f.Absent("ciliumegressgatewaypolicies"))
	require.NoError(t, f.Sync())
	a := newFakeAgent(t, objects.EndpointsKubernetes, f)
	a.state("ciliumegressgatewaypolicies", tables.SourceAbsent)
	require.True(t, a.initialized(a.tables.EgressPolicies))
	require.NoError(t, f.Sync("ciliumegressgatewaypolicies"))
	a.state("ciliumegressgatewaypolicies", tables.SourceSynced)
	require.NoError(t, f.Apply([]byte(policy)))
	a.policies("p")
	require.NoError(t, f.Delete([]byte(policy)))
	a.policies()
	require.NoError(t, f.Absent("ciliumegressgatewaypolicies")) // there is nothing to keep
	a.state("ciliumegressgatewaypolicies", tables.SourceAbsent)
}

// What an API server fills in stays with the object until it is deleted.
func TestFakeMetadata(t *testing.T) {
	f := NewFakeAPI()
	require.NoError(t, f.Sync())
	require.NoError(t, f.Apply(pods("a", "b")))
	a := newFakeAgent(t, objects.EndpointsKubernetes, f)
	a.endpoints("a", "b")
	get := func(name string) *tables.Endpoint {
		e, _, _ := a.tables.Endpoints.Get(a.db.ReadTxn(), endpoint(name))
		return e
	}
	first, second := get("a"), get("b")
	require.True(t, first.Created.Before(second.Created))
	require.NotEqual(t, first.UID, second.UID)

	require.NoError(t, f.Apply([]byte("{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {x: z}}}")))
	a.eventually(func(statedb.ReadTxn) error {
		if get("a").LabelSet.Labels.Get("x") != "z" {
			return errors.New("not relabeled")
		}
		return nil
	})
	require.Equal(t, first.UID, get("a").UID)
	require.Equal(t, first.Created, get("a").Created)
	require.NoError(t, f.Delete(pods("a")))
	require.NoError(t, f.Apply(pods("a")))
	a.eventually(func(statedb.ReadTxn) error {
		if e := get("a"); e == nil || e.UID == first.UID {
			return errors.New("not another pod")
		}
		return nil
	})

	require.ErrorContains(t, f.Delete(pods("x")), "default/x: not found")
	require.ErrorContains(t, f.Apply([]byte("{apiVersion: v1, kind: Pod}")), "document 1 (line 1): metadata.name: required")
	require.ErrorContains(t, f.Apply([]byte("{apiVersion: v2, kind: Pod}")), "no kind Pod of v2")
}

// CiliumEndpoints and CiliumEndpointSlices share a table: listing the ones
// leaves the others alone.
func TestFakeCiliumKinds(t *testing.T) {
	f := NewFakeAPI()
	require.NoError(t, f.Apply([]byte(`
{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: a}}
---
{apiVersion: cilium.io/v2alpha1, kind: CiliumEndpointSlice, metadata: {name: s}, namespace: default, endpoints: [{name: a, id: 7}, {name: b, id: 8}]}
---
{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "7"}}
---
{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: node-1}, spec: {addresses: [{ip: 10.0.0.1}]}}
`)))
	a := newFakeAgent(t, objects.EndpointsCilium, f)
	require.NotContains(t, a.kinds, "pods")
	require.NoError(t, f.Sync("ciliumendpoints", "ciliumidentities", "ciliumnodes"))
	a.state("ciliumendpoints", tables.SourceSynced)
	require.False(t, a.initialized(a.tables.CiliumEndpoints)) // the slices are missing
	require.NoError(t, f.Sync())
	require.Equal(t, 2, a.state("ciliumendpointslices", tables.SourceSynced).Objects)
	count := func(n int) {
		t.Helper()
		await.True(t, func() bool { return a.tables.CiliumEndpoints.NumObjects(a.db.ReadTxn()) == n })
	}
	count(3)
	require.True(t, a.initialized(a.tables.CiliumEndpoints))
	require.Equal(t, 1, a.state("ciliumidentities", tables.SourceSynced).Objects)
	require.Equal(t, 1, a.state("ciliumnodes", tables.SourceSynced).Objects)

	require.NoError(t, f.Apply([]byte(`
{apiVersion: cilium.io/v2alpha1, kind: CiliumEndpointSlice, metadata: {name: s}, namespace: default, endpoints: [{name: c, id: 7}]}
`)))
	count(2)
	require.NoError(t, f.Absent("ciliumendpointslices"))
	count(1)
	require.NoError(t, f.Absent("ciliumendpoints"))
	count(0)
}

// Without the resources of Cilium there is no endpoint in its mode, and health
// says so. Slices and nodes of it are an addition only.
func TestFakeCiliumAbsent(t *testing.T) {
	f := NewFakeAPI()
	kinds := []string{"ciliumendpoints", "ciliumidentities", "ciliumendpointslices", "ciliumnodes"}
	for _, resource := range kinds {
		require.NoError(t, f.Absent(resource))
	}
	require.NoError(t, f.Sync())
	a := newFakeAgent(t, objects.EndpointsCilium, f)
	for _, resource := range kinds[:2] {
		require.Contains(t, a.state(resource, tables.SourceAbsent).Error, "--endpoint-source=cilium has no endpoints without it")
		require.Equal(t, "Degraded", string(a.level(resource)), resource)
		require.NoError(t, f.Sync(resource))
		require.Empty(t, a.state(resource, tables.SourceSynced).Error)
		require.Equal(t, "OK", string(a.level(resource)), resource)
	}
	for _, resource := range kinds[2:] {
		require.Empty(t, a.state(resource, tables.SourceAbsent).Error)
		require.Equal(t, "OK", string(a.level(resource)), resource)
	}
}
