// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestPolicyLatency measures from an API call to the verdict that the kernel's maps
// give: a policy of a pod of this node is created, opens another port, and is deleted.
// It fails only if a verdict never comes.
func TestPolicyLatency(t *testing.T) {
	c := startCluster(t)
	populate(c)
	a := newAgent(t, c)
	a.startReady()
	policies := c.Client().NetworkingV1().NetworkPolicies("prod")
	allowing := func(port int) *networkingv1.NetworkPolicy {
		number := intstr.FromInt(port)
		return &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "latency"},
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
				{Ports: []networkingv1.NetworkPolicyPort{{Port: &number}}},
			}},
		}
	}

	var comes, changes, goes []time.Duration
	for range samples / 4 {
		_, err := policies.Create(t.Context(), allowing(80), metav1.CreateOptions{})
		comes = append(comes, a.awaitVerdict(err, "443", "denied"))
		_, err = policies.Update(t.Context(), allowing(443), metav1.UpdateOptions{})
		changes = append(changes, a.awaitVerdict(err, "443", "allowed"))
		goes = append(goes, a.awaitVerdict(policies.Delete(t.Context(), "latency", metav1.DeleteOptions{}), "80", "allowed"))
	}
	t.Logf("latency of a policy, from the API call's return to the kernel's verdict, found by a question every 0.3 ms:")
	t.Logf("it comes: %s", percentiles(comes))
	t.Logf("it changes: %s", percentiles(changes))
	t.Logf("it goes: %s", percentiles(goes))
}

// awaitVerdict returns how long after a successful API call the kernel's maps have a
// verdict about what comes to the local pod.
func (a *agent) awaitVerdict(err error, port, verdict string) time.Duration {
	a.t.Helper()
	require.NoError(a.t, err)
	returned := time.Now()
	for deadline := returned.Add(timeout); ; {
		var answer struct{ Kernel struct{ Verdict string } }
		status := a.decode("/explain/policy?from=203.0.113.1&to="+localPod.String()+"&port="+port, &answer)
		require.Equal(a.t, http.StatusOK, status)
		if answer.Kernel.Verdict == verdict {
			return time.Since(returned)
		}
		require.True(a.t, time.Now().Before(deadline), "port %s does not become %s", port, verdict)
	}
}
