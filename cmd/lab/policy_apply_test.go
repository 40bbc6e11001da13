// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// enforce applies policies, waits until they are in force on all nodes, and takes
// them away again at the end of the test, or the test before it.
func (p *policyTest) enforce(manifests string) []Object {
	p.t.Helper()
	objects := parsed(p.t, manifests)
	p.t.Cleanup(func() { p.withdraw(objects...) })
	p.apply(objects...)
	return objects
}

func parsed(t *testing.T, manifests string) []Object {
	t.Helper()
	objects, err := ParseObjects(manifests)
	require.NoError(t, err)
	return objects
}

// generations number what is applied, as the API does.
var generations atomic.Int64

// apply applies objects and waits until those that are policies are in force.
func (p *policyTest) apply(objects ...Object) {
	p.t.Helper()
	generation := generations.Add(1)
	for _, o := range objects {
		if _, is := o.policy(); is {
			o["metadata"].(map[string]any)["generation"] = generation
		}
	}
	require.NoError(p.t, p.Apply(objects...))
	for _, n := range p.Nodes {
		for _, o := range objects {
			if id, is := o.policy(); is {
				require.NoError(p.t, n.Agent.awaitNetworkPolicy(p.ctx, id, generation))
			}
		}
		require.NoError(p.t, n.Agent.AwaitSettled(p.ctx))
	}
}

// withdraw deletes objects and waits until no trace of the policies is left.
func (p *policyTest) withdraw(objects ...Object) {
	p.t.Helper()
	require.NoError(p.t, p.Delete(objects...))
	for _, n := range p.Nodes {
		for _, o := range objects {
			if id, is := o.policy(); is {
				require.NoError(p.t, n.Agent.awaitNoNetworkPolicy(p.ctx, id))
			}
		}
		require.NoError(p.t, n.Agent.AwaitSettled(p.ctx))
	}
}

// policy is the identity of an object that is a network policy.
func (o Object) policy() (tables.PolicyID, bool) {
	id := o.id()
	kind, err := tables.ParsePolicyKind(id.kind)
	return tables.PolicyID{Kind: kind, Name: tables.Name{Namespace: id.namespace, Name: id.name}}, err == nil && kind != tables.PolicyEgress
}

// awaitNetworkPolicy waits until the rules of a generation of a policy are in force.
func (a *Agent) awaitNetworkPolicy(ctx context.Context, id tables.PolicyID, generation int64) error {
	ctx, cancel := context.WithTimeout(ctx, await.Bound)
	defer cancel()
	return AwaitRows(ctx, a, "network-policy-status", func(rows []policyStatus) error {
		for _, r := range rows {
			if r.Policy != id {
				continue
			}
			if r.Generation != generation || !r.Applied && !r.Settled || r.State != tables.PolicyInForce && r.State != tables.PolicyNotHere {
				return fmt.Errorf("policy %s is %+v, not applied with generation %d", id, r, generation)
			}
			return nil
		}
		return fmt.Errorf("policy %s is unknown", id)
	})
}

// policyStatus is a row of table network-policy-status.
type policyStatus struct {
	Policy     tables.PolicyID    `json:"policy"`
	Generation int64              `json:"generation"`
	State      tables.PolicyState `json:"state"`
	Applied    bool               `json:"applied"`
	Settled    bool               `json:"settled"` // the same in the former version
}

// awaitNoNetworkPolicy waits until a policy that is deleted has left nothing.
func (a *Agent) awaitNoNetworkPolicy(ctx context.Context, id tables.PolicyID) error {
	ctx, cancel := context.WithTimeout(ctx, await.Bound)
	defer cancel()
	if err := AwaitRows(ctx, a, "network-policy-status", func(rows []policyStatus) error {
		for _, r := range rows {
			if r.Policy == id {
				return fmt.Errorf("policy %s is %s", id, r.State)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return AwaitRows(ctx, a, "rulesets", func(rows []tables.Ruleset) error {
		for _, r := range rows {
			if slices.Contains(r.Policies, id) {
				return fmt.Errorf("ruleset %d has rules of policy %s", r.Number, id)
			}
		}
		return nil
	})
}
