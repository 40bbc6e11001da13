// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
	"github.com/sluice-net/sluice/tables"
)

const policies = "ciliumegressgatewaypolicies.cilium.io"

// TestAbsentCRD starts the agent without the CRD of egress
// policies: everything else works, and policies do once it is there.
func TestAbsentCRD(t *testing.T) {
	c := startCluster(t)
	crd, err := os.ReadFile("../../deploy/crds/ciliumegressgatewaypolicies.yaml")
	require.NoError(t, err)
	c.Delete(string(crd))
	populate(c)
	a := newAgent(t, c)
	a.awaitNoPolicies(c)
	a.startReady()
	k := a.kernel()
	w := a.converge(c, k)
	require.Equal(t, plain, w.decide(localPod, netip.MustParseAddr("203.0.113.1")).kind)
	a.awaitStates(map[string]string{policies: "absent"})
	require.Contains(t, a.log(), "Resource is not served, as its CRD is missing")
	a.eventually("the agent is healthy", func() error {
		if report := a.health(); report.Status != "ok" {
			return fmt.Errorf("%s: %v", report.Status, report.Reasons)
		}
		return nil
	})
	c.CreatePod(cluster.Pod{Namespace: "prod", Name: "new", Node: localNode, IPs: addrs("10.1.0.77")})
	a.converge(c, k)

	// It is looked for every ten seconds.
	c.Apply(string(crd))
	c.Apply(blue)
	w = a.converge(c, k)
	require.Equal(t, redirected, w.decide(localPod, netip.MustParseAddr("203.0.113.1")).kind)
	a.awaitStates(nil)

	// And when it goes, its policies stay: those that are deleted while one with a finalizer keeps
	// the CRD from going, and that one.
	c.Apply(strings.NewReplacer("name: blue", "name: finalized, finalizers: [sluice.net/test]", "203.0.113.0/24", "192.0.2.0/24").Replace(blue))
	a.converge(c, k)
	before := a.contents(k)
	c.Delete(string(crd))
	a.awaitKept("is being deleted")
	a.requireUnchanged(k, before)
	_, err = c.Dynamic().Resource(policyResource).Patch(t.Context(), "finalized", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	a.awaitNoPolicies(c)
	a.awaitKept("is deleted")
	a.requireUnchanged(k, before)

	// There is another one, whose policies are followed.
	c.Apply(string(crd))
	c.Apply(blue)
	a.converge(c, k)
	a.awaitStates(nil)
	a.awaitHealthy()
	c.Delete(blue)
	a.converge(c, k)
	c.Apply(blue)
	a.converge(c, k)

	// An agent that starts while there is none takes the kind for empty.
	c.Delete(string(crd))
	a.awaitNoPolicies(c)
	a.awaitKept("is deleted")
	require.Zero(t, a.terminate())
	a.startReady()
	w = a.converge(c, k)
	require.Equal(t, plain, w.decide(localPod, netip.MustParseAddr("203.0.113.1")).kind)
	a.awaitStates(map[string]string{policies: "absent"})
}

// awaitKept waits until the agent says that policies stay, and what becomes of their CRD.
func (a *agent) awaitKept(crd string) {
	a.t.Helper()
	a.eventually("the agent keeps the policies", func() error {
		if s := a.sources()[policies]; s.State != "kept" || !strings.Contains(s.Error, "CRD "+policies+" "+crd) {
			return fmt.Errorf("%s is %s: %s", s.Source, s.State, s.Error)
		}
		if report := a.health(); report.Status != "degraded" {
			return fmt.Errorf("the health is %s", report.Status)
		}
		return nil
	})
}

// awaitNoPolicies waits until the API server does not serve policies any more,
// some time after their CRD is deleted.
func (a *agent) awaitNoPolicies(c *cluster.Cluster) {
	a.t.Helper()
	a.eventually("policies are not served", func() error {
		_, err := c.Dynamic().Resource(policyResource).List(a.t.Context(), metav1.ListOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("listing gives %v", err)
		}
		return nil
	})
}

// awaitStates waits until all kinds are in state synced but those named, and without
// an error: with the rights that deploy/ gives nothing is refused. The agent says so a
// moment after the objects have come.
func (a *agent) awaitStates(others map[string]string) {
	a.t.Helper()
	require.GreaterOrEqual(a.t, len(a.sources()), 6)
	a.eventually("all kinds are followed", func() (err error) {
		for name, s := range a.sources() {
			want := "synced"
			if other := others[name]; other != "" {
				want = other
			}
			if s.State != want || s.Error != "" {
				err = errors.Join(err, fmt.Errorf("%s is %s, not %s: %s", name, s.State, want, s.Error))
			}
		}
		return err
	})
	require.NotContains(a.t, a.log(), "forbidden")
}

// brokenSource returns the row of a kind that cannot be followed.
func (a *agent) brokenSource(name string) (tables.ObjectSource, error) {
	s := a.sources()[name]
	if s.State != "broken" || s.Error == "" {
		return s, fmt.Errorf("%s is %q", name, s.State)
	}
	return s, nil
}
