// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

const policiesResource = "ciliumegressgatewaypolicies"

// definitionsAPI counts how often CRDs are read, and may refuse that.
type definitionsAPI struct {
	*FakeAPI
	t     testing.TB
	reads atomic.Int32
	err   atomic.Pointer[apierrors.StatusError]
	is    atomic.Pointer[definition] // instead of that of the FakeAPI
}

func (d *definitionsAPI) definition(ctx context.Context, k *objects.Kind) (definition, error) {
	d.reads.Add(1)
	if !k.Guarded {
		d.t.Errorf("%s has no CRD to be read", k.Source())
	}
	if err := d.err.Load(); err != nil {
		return definition{}, err
	}
	if is := d.is.Load(); is != nil {
		return *is, nil
	}
	return d.FakeAPI.definition(ctx, k)
}

// newGuarded returns an agent that follows the policies p and q.
func newGuarded(t *testing.T) (*definitionsAPI, *agent) {
	d := &definitionsAPI{FakeAPI: NewFakeAPI(), t: t}
	require.NoError(t, d.Sync())
	require.NoError(t, d.Apply(egressPolicies("p", "q")))
	a := newAgent(t, objects.EndpointsKubernetes, func([]*objects.Kind) api { return d })
	a.policies("p", "q")
	for resource := range a.kinds {
		a.state(resource, tables.SourceSynced)
	}
	return d, a
}

func egressPolicies(names ...string) []byte {
	var text string
	for _, n := range names {
		text += "---\n{apiVersion: cilium.io/v2, kind: CiliumEgressGatewayPolicy, metadata: {name: " + n + "}}\n"
	}
	return []byte(text)
}

// What policies say stays when their CRD goes, from the first of their deletions until
// there is another one. Health and the row of the kind say why.
func TestDefinitionDeleted(t *testing.T) {
	f, a := newGuarded(t)
	require.NoError(t, f.terminate(policiesResource))
	row := a.state(policiesResource, tables.SourceKept)
	require.Contains(t, row.Error,
		"CRD ciliumegressgatewaypolicies.cilium.io is being deleted: its objects stay as they were")
	require.Equal(t, 2, row.Objects)
	a.awaitLevel(policiesResource, "Degraded")
	a.policies("p", "q")

	// A listing has less by now, and is no reason to remove anything either.
	require.NoError(t, f.Break(policiesResource))
	a.state(policiesResource, tables.SourceBroken)
	require.NoError(t, f.Resume(policiesResource))
	a.state(policiesResource, tables.SourceKept)
	a.policies("p", "q")

	require.NoError(t, f.Absent(policiesResource))
	a.eventually(func(txn statedb.ReadTxn) error {
		row, _, _ := a.tables.Sources.Get(txn, tables.ObjectSourceByName(policiesResource+".cilium.io"))
		if row.State != tables.SourceKept || row.Error != "CRD ciliumegressgatewaypolicies.cilium.io is deleted: its objects stay as they were, "+
			"until it is there and they can be listed, or the agent restarts" {
			return fmt.Errorf("%s: %s", row.State, row.Error)
		}
		return nil
	})
	a.policies("p", "q")

	require.NoError(t, f.Apply(egressPolicies("q", "r")))
	require.NoError(t, f.Sync(policiesResource))
	a.policies("q", "r")
	require.Empty(t, a.state(policiesResource, tables.SourceSynced).Error)
	a.awaitLevel(policiesResource, "OK")
	require.NoError(t, f.Delete(egressPolicies("q")))
	a.policies("r")
}

// The CRD has gone and come again before the agent hears of the first deletion. It must not
// take that for one of a policy, though the CRD that there is now is not being deleted.
func TestDefinitionReplaced(t *testing.T) {
	f, a := newGuarded(t)
	_, changed := a.tables.EgressPolicies.AllWatch(a.db.ReadTxn())
	require.NoError(t, f.update([]string{policiesResource}, func(r *fakeResource) {
		objects := maps.Clone(r.objects)
		r.deleteObjects()
		r.objects, r.deleting = objects, false
		r.definition++
	}))
	a.eventually(func(statedb.ReadTxn) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r := f.find(policiesResource); r.committed < len(r.log) {
			return errors.New("the deletions are not dealt with")
		}
		return nil
	})
	a.state(policiesResource, tables.SourceSynced)
	a.policies("p", "q")
	select {
	case <-changed:
		t.Fatal("a policy went for a moment")
	default:
	}
	require.NoError(t, f.Delete(egressPolicies("q")))
	a.policies("p")
}

// Many deletions at once ask for the CRD once. Other events do not ask for it.
func TestDefinitionReads(t *testing.T) {
	f, a := newGuarded(t)
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("x%02d", i))
	}
	before := f.reads.Load()
	require.NoError(t, f.Apply(egressPolicies(names...)))
	a.policies(append([]string{"p", "q"}, names...)...)
	require.Equal(t, before, f.reads.Load())
	require.NoError(t, f.Delete(egressPolicies(names...)))
	a.policies("p", "q")
	require.Equal(t, before+1, f.reads.Load())
}

// A right that is missing is told, and then a CRD takes its policies with it.
func TestDefinitionForbidden(t *testing.T) {
	d := &definitionsAPI{FakeAPI: NewFakeAPI(), t: t}
	d.err.Store(apierrors.NewForbidden(schema.GroupResource{Group: definitions.Group,
		Resource: definitions.Resource}, "", errors.New("no")))
	require.NoError(t, d.Sync())
	require.NoError(t, d.Apply(egressPolicies("p", "q")))
	a := newAgent(t, objects.EndpointsKubernetes, func([]*objects.Kind) api { return d })
	a.policies("p", "q")
	require.Equal(t, "read the CRD of ciliumegressgatewaypolicies.cilium.io, whose deletion deletes its objects here too: missing right: "+
		"customresourcedefinitions.apiextensions.k8s.io is forbidden: no",
		a.state(policiesResource, tables.SourceSynced).Error)
	a.awaitLevel(policiesResource, "Degraded")
	require.NoError(t, d.Delete(egressPolicies("q")))
	a.policies("p")

	d.err.Store(nil) // the right is given
	require.NoError(t, d.Apply(egressPolicies("q", "r")))
	require.NoError(t, d.Delete(egressPolicies("r")))
	a.policies("p", "q")
	require.Empty(t, a.state(policiesResource, tables.SourceSynced).Error)
	d.err.Store(apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no")))
	require.NoError(t, d.Absent(policiesResource))
	a.policies()
	a.state(policiesResource, tables.SourceAbsent)
}

// While the CRD cannot be read a deletion waits.
func TestDefinitionUnreadable(t *testing.T) {
	f, a := newGuarded(t)
	f.err.Store(apierrors.NewServiceUnavailable("no CRDs"))
	require.NoError(t, f.Delete(egressPolicies("q")))
	require.Equal(t, "read the CRD of ciliumegressgatewaypolicies.cilium.io: no CRDs",
		a.state(policiesResource, tables.SourceBroken).Error)
	a.policies("p", "q")
	f.err.Store(nil)
	a.policies("p")
	require.Empty(t, a.state(policiesResource, tables.SourceSynced).Error)
}

// A CRD that cannot be found for a moment keeps what is deleted then, but for that moment only.
func TestDefinitionNotFoundForAMoment(t *testing.T) {
	f, a := newGuarded(t)
	f.is.Store(&definition{})
	require.NoError(t, f.Break(policiesResource))
	a.state(policiesResource, tables.SourceBroken)
	require.NoError(t, f.Delete(egressPolicies("q")))
	require.NoError(t, f.Resume(policiesResource))
	a.state(policiesResource, tables.SourceKept)
	a.policies("p", "q")
	f.is.Store(nil)
	a.policies("p")
	a.state(policiesResource, tables.SourceSynced)
	a.awaitLevel(policiesResource, "OK")
}

// A CRD that is there without the version that the agent reads has objects that are not enforced.
func TestDefinitionOfAnotherVersion(t *testing.T) {
	d := &definitionsAPI{FakeAPI: NewFakeAPI(), t: t}
	d.is.Store(&definition{uid: "of another version"})
	require.NoError(t, d.Sync())
	require.NoError(t, d.Absent(policiesResource))
	a := newAgent(t, objects.EndpointsKubernetes, func([]*objects.Kind) api { return d })
	require.Equal(t, "CRD ciliumegressgatewaypolicies.cilium.io does not serve cilium.io/v2: "+
		"its objects are not read", a.state(policiesResource, tables.SourceAbsent).Error)
	a.awaitLevel(policiesResource, "Degraded")
	require.True(t, a.initialized(a.tables.EgressPolicies))
}
